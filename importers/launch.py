"""Finds the training command in an evaluated script and its flags (what it says about size is `launch_size`).

A launch is a command that runs a Python file (or anything followed by model flags) under torchrun, deepspeed, srun,
mpirun, accelerate or python. Where a script only builds argument variables and starts nothing, the variables that
nobody else uses are taken, with a warning. A file that is nothing but flags is an argument string.
"""

import re
import shlex
from dataclasses import dataclass

from importers.megatron_table import FLAGS
from importers.shell import PRINTERS
from importers.shell.budget import Budget, pieces
from importers.shell.script import Command, Script
from plan.ledger import Ledger

MODEL_FLAGS = (
    "--num-layers",
    "--hidden-size",
    "--num-attention-heads",
    "--tensor-model-parallel-size",
    "--micro-batch-size",
    "--model-parallel-size",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """The training command: the words before its flags, the flags, its Python file and where it stands."""

    launcher: tuple[str, ...]
    flags: tuple[str, ...]
    program: str
    where: str


def find_launch(script: Script, ledger: Ledger) -> Launch | None:
    """The one training command of a script; None (and a problem) when there is none or there are several."""
    dropped = [command for command in script.commands if command.words[0].startswith("--")]
    candidates = [command for command in script.commands if _runs_a_model(command)]
    if not candidates and dropped:
        words = tuple(word for command in dropped for word in command.words)
        return Launch((), words, "", "the argument string")
    for command in dropped:
        ledger.warn(
            f"line {command.line} starts with a flag: a backslash is missing at the end of a line before it, so bash"
            f" does not pass {', '.join(word for word in command.words if word.startswith('--'))}; not applied"
        )
    different = {(launch.flags, launch.program): command for command in candidates for launch in [_split(command)]}
    if len(different) > 1:
        ledger.problem(_several(list(different.values())))
        return None
    if candidates:
        command = next((each for each in reversed(candidates) if not each.condition), candidates[-1])
        launchers = {each.words: each for each in candidates}
        if len({each.line for each in launchers.values()}) > 1:
            ledger.warn(
                f"lines {_lines(list(launchers.values()))} start the same training under different launchers: line"
                f" {command.line} is taken"
            )
        elif command.condition:
            ledger.warn(
                f"the training command in line {command.line} depends on {command.condition}: it is taken to run"
            )
        return _split(command)
    return _from_variables(script, ledger)


def _several(commands: list[Command]) -> str:
    deciding = "; ".join(dict.fromkeys(each.condition for each in commands if each.condition))
    return (
        f"the script starts {len(commands)} different training commands (lines {_lines(commands)})"
        + (f", and which one runs depends on {deciding}" if deciding else "")
        + "; keep the one to import"
    )


def _lines(commands: list[Command]) -> str:
    return ", ".join(dict.fromkeys(str(command.line) for command in commands))


def _runs_a_model(command: Command) -> bool:
    if command.words[0] in PRINTERS or command.words[0].startswith("--"):
        return False
    return any(word.split("=")[0] in MODEL_FLAGS for word in command.words)


def _split(command: Command) -> Launch:
    words = command.words
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if place is None:
        place = next(i for i, word in enumerate(words) if word.split("=")[0] in {*FLAGS, *MODEL_FLAGS}) - 1
    return Launch(words[:place], words[place + 1 :], words[place] if place >= 0 else "", f"line {command.line}")


def _from_variables(script: Script, ledger: Ledger) -> Launch | None:
    """Flags of variables that hold flags and are not part of another such variable."""
    words_of = {name: _words(value, script.expander.budget) for name, value in script.expander.variables.items()}
    holders = {name: words for name, words in words_of.items() if _holds_flags(words)}
    inner = {used for name in holders for used in script.made_from.get(name, ())} - {""}
    outer = [name for name in holders if name not in inner] or list(holders)
    words = [word for name in outer for word in holders[name]]
    if not any(word.split("=")[0] in MODEL_FLAGS for word in words):
        if (unknown := _unknown_flags(script)) is not None:
            ledger.problem(unknown)
            return None
        other = next(
            (
                c
                for c in script.commands
                if re.search(r"\.(sh|slurm|sbatch)$", c.words[-1]) and c.words[0] in ("bash", "sh", "sbatch")
            ),
            None,
        )
        hint = f"; line {other.line} runs another script, {other.words[-1]}: give that one" if other else ""
        ledger.problem(
            "the script has no model flags (--num-layers, --hidden-size, --num-attention-heads, ...)"
            f"{hint}; give a script that starts Megatron, or a model with --model"
        )
        return None
    ledger.warn(f"no training command found; flags are taken from the variables {', '.join(outer)}")
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)
    return Launch(
        tuple(words[: max(place, 0)]),
        tuple(words[place + 1 :]),
        words[place] if place >= 0 else "",
        "variables " + ", ".join(outer),
    )


def _unknown_flags(script: Script) -> str | None:
    """Why a command that starts a training program has no flags: they are in a value that is unknown."""
    for command in script.commands:
        program = next((word for word in command.words if re.search(r"train\w*\.py$", word[-512:])), None)
        reasons = [(word, why) for word in command.words for why in script.expander.why(word)[:1]]
        if program is not None and reasons and command.words[0] not in PRINTERS:
            word, why = reasons[-1]
            return (
                f"line {command.line} starts {program} with {script.expander.show(word)}, whose value is unknown:"
                f" {why.sentence()}"
            )
    return None


def _words(value: str | list[str], budget: Budget) -> list[str]:
    if isinstance(value, list):
        return value
    budget.step(pieces(len(value), 8))
    budget.take(len(value))
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _holds_flags(words: list[str]) -> bool:
    return any(re.match(r"--[A-Za-z]", word) for word in words)
