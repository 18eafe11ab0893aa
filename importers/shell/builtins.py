"""What the shell's own commands change in its state: `set`, `shift`, `export $(…)`, files that nobody could read."""

from importers.shell.script import Script

ARGUMENT_BYTES = 200
"""A positional argument is a variable besides, with a name of its own."""


def options(script: Script, words: list[str]) -> bool:
    """`set -u`, `set +u`, `set -euo pipefail`, `set -o nounset`, and the arguments of `set -- a b`."""
    if "--" in words:
        place = words.index("--")
        give(script, words[place + 1 :])
        words = words[:place]
    for number, word in enumerate(words):
        script.expander.budget.step()
        named = word in ("-o", "+o") and words[number + 1 : number + 2] == ["nounset"]
        if named or (word[:1] in ("-", "+") and "u" in word):
            script.expander.nounset = word[0] == "-"
    return True


def give(script: Script, arguments: list[str]) -> None:
    """The positional arguments, together and one by one."""
    script.expander.budget.take(ARGUMENT_BYTES * len(arguments))
    script.expander.budget.step(len(arguments))
    script.expander.variables |= {str(i): word for i, word in enumerate(arguments, 1)} | {"@": arguments}


def shift(script: Script, count: int) -> None:
    """Positional arguments move down."""
    given = script.expander.variables.get("@", [])
    for number in range(1, len(given) + 1):
        script.expander.variables.pop(str(number), None)
    if isinstance(given, list) and "@" in script.expander.variables:
        give(script, given[count:])


def exported(script: Script, words: list[str], line: int) -> None:
    """`export $(cat .env)`: assignments that appear only when the words are expanded."""
    for word in words:
        script.expander.budget.step()
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            script.expander.variables[name] = value
        elif any(entry.kind == "command" for entry in script.expander.why(name)):
            unread(script, line, f"exports {script.expander.show(word)}")


def unread(script: Script, line: int, what: str) -> None:
    """Variables may have been set that nobody here can know."""
    script.warn(
        f"line {line} {what}, which is not found beside the script: what it defines is unknown, and what was"
        " defined before is taken as it was"
    )
    script.expander.unread = f"line {line} {what}, which is not read"
