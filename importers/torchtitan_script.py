"""A script that starts torchtitan: its TOML file with the `--section.key=value` overrides of the command line laid over
it.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from importers.arguments import is_flag
from importers.launch import Launch
from importers.launch_size import size_statements
from importers.shell.script import Command, Script
from importers.table import nested
from importers.torchtitan import read
from importers.world import World, agree
from plan.ledger import Ledger, as_number
from program.errors import InputError

CONFIG_FLAGS = frozenset({"--job.config_file", "--job.config-file", "--job.config"})


def find(script: Script) -> Command | None:
    """The first command that names a torchtitan configuration."""
    return next((c for c in script.commands if any(word.split("=")[0] in CONFIG_FLAGS for word in c.words)), None)


def tables(script: Script, command: Command, sized: bool, ledger: Ledger) -> tuple[dict[str, Any], World]:
    """The configuration (dotted keys) after overrides, and what the launcher says about the size of the job."""
    for warning in script.warnings:
        ledger.warn(warning)
    for other in script.commands:
        if other is not command and other.words[0].startswith("--"):
            dropped = ", ".join(word for word in other.words if is_flag(word))
            ledger.warn(
                f"line {other.line} starts with a flag: a backslash is missing at the end of a line before it, so bash"
                f" does not pass {dropped}; not applied"
            )
    given = _overrides(command.words, script, ledger)
    name = next((str(given.pop(flag[2:])) for flag in sorted(CONFIG_FLAGS) if flag[2:] in given), "")
    launch = Launch(command.words, (), "", f"line {command.line}")
    world = agree(size_statements(script, launch, sized, ledger), ledger)
    return {**_file(name, script, ledger), **given}, world


def _overrides(words: tuple[str, ...], script: Script, ledger: Ledger) -> dict[str, Any]:
    """Dotted flags and their values; a flag without a value is true."""
    found: dict[str, Any] = {}
    queue = deque(words)
    while queue:
        flag, equals, value = queue.popleft().partition("=")
        if not flag.startswith("--") or "." not in flag:
            continue
        if not equals and queue and not is_flag(queue[0]):
            equals, value = "=", queue.popleft()
        reasons = script.expander.why(value)
        if reasons:
            ledger.problem(f"{flag} is {script.expander.show(value)}, whose value is unknown: {reasons[0].sentence()}")
        elif flag not in CONFIG_FLAGS:
            ledger.note(f"{flag}{f' {value}' if equals else ''} overrides the TOML file")
        number = as_number(value)
        plain: Any = value if number is None else number
        found[flag[2:]] = {"true": True, "false": False}.get(value.lower(), plain) if equals else True
    return found


def _file(name: str, script: Script, ledger: Ledger) -> Mapping[str, Any]:
    """The tables of the file that a script names, as dotted keys."""
    shown = script.expander.show(name)
    try:
        text = script.beside.text(name)
    except InputError as error:
        ledger.problem(str(error))
        return {}
    if text is None:
        ledger.problem(f"{shown or 'the TOML file'} is not beside the script; put it there, or add --allow-read DIR")
        return {}
    return nested(read(text, shown))
