"""What `printf` and `seq` print."""

import re

from importers.shell.values import Words


def printed(owner: Words, form: str, arguments: list[str]) -> str | None:
    """What `printf` makes of a format with `%s`, `%d`, `%03d` and the like, taken again while arguments are left; None
    for any other format."""
    pieces = re.split(r"%(%|-?0?[0-9]{0,3}[sdi])", form)
    if any("%" in text for text in pieces[::2]) or owner.why(form):
        return None
    left, made = list(arguments), ""
    while True:
        taken = 0
        for text, kind in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            owner.budget.step()
            made += text.replace("\\n", "\n").replace("\\t", "\t")
            if kind in ("", "%"):
                made += kind
                continue
            value, taken = (left.pop(0) if left else ""), taken + 1
            if kind[-1] != "s" and not re.fullmatch(r"-?[0-9]{1,18}", value or "0"):
                return None
            made += f"%{kind}" % (value if kind[-1] == "s" else int(value or 0))
        if not left or not taken:
            return made


def sequence(owner: Words, words: list[str]) -> str | None:
    """`seq LAST`, `seq FIRST LAST`, `seq FIRST STEP LAST`, with `-s` between them."""
    between = "\n"
    if words and words[0].startswith("-s"):
        glued = words[0][2:]
        between, words = (glued, words[1:]) if glued else (" ".join(words[1:2]), words[2:])
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?[0-9]{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    start, *middle, last = [1, *numbers] if len(numbers) == 1 else numbers
    step = middle[0] if middle else 1
    if step == 0:
        return None
    owner.budget.step(max(0, (last - start) // step))
    return between.join(map(str, range(start, last + (1 if step > 0 else -1), step)))
