"""What the shell's own commands change in its state: `set`, `shift`, `export $(…)`, files that nobody could read."""

from plan.shell.script import Script


def options(script: Script, words: list[str]) -> None:
    """`set -u`, `set +u`, `set -euo pipefail`, `set -o nounset`, and the arguments of `set -- a b`."""
    if "--" in words:
        place = words.index("--")
        script.expander.variables |= {"@": words[place + 1 :]}
        script.expander.variables |= {str(i): word for i, word in enumerate(words[place + 1 :], 1)}
        words = words[:place]
    for number, word in enumerate(words):
        named = word in ("-o", "+o") and words[number + 1 : number + 2] == ["nounset"]
        if named or (word[:1] in ("-", "+") and "u" in word):
            script.expander.nounset = word[0] == "-"


def shift(script: Script, count: int) -> None:
    """Positional arguments move down."""
    given = script.expander.variables.get("@", [])
    left = list(given[count:]) if isinstance(given, list) else []
    for number in range(1, len(given) + 1):
        script.expander.variables.pop(str(number), None)
    if "@" in script.expander.variables:
        script.expander.variables |= {str(i): word for i, word in enumerate(left, 1)} | {"@": left}


def exported(script: Script, words: list[str], line: int) -> None:
    """`export $(cat .env)`: assignments that appear only when the words are expanded."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            script.expander.variables[name] = value
        elif any(entry.kind == "command" for entry in script.expander.why(name)):
            unread(script, line, f"exports {script.expander.show(word)}")


def unread(script: Script, line: int, what: str) -> None:
    """Variables may have been set that nobody here can know."""
    script.warnings.append(
        f"line {line} {what}, which is not found beside the script: what it defines is unknown, and what was"
        " defined before is taken as it was"
    )
    script.expander.unread = f"line {line} {what}, which is not read"
