"""What `printf` and `seq` print, and what filters make of a text."""

import re

from importers.shell.budget import pieces
from importers.shell.values import Words


def printed(owner: Words, form: str, arguments: list[str]) -> str | None:
    """What `printf` makes of a format with `%s`, `%d`, `%03d` and the like, taken again while arguments are left; None
    for any other format."""
    parts = re.split(r"%(%|-?0?[0-9]{0,3}[sdi])", form)
    if any("%" in text for text in parts[::2]) or owner.why(form):
        return None
    left, made = list(arguments), ""
    while True:
        taken = 0
        for text, kind in zip(parts[::2], [*parts[1::2], ""], strict=True):
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


def filtered(owner: Words, words: list[str], text: str) -> str | None:
    """What a filter prints of a text that is known: `xargs`, `wc -l`, `bc` of whole numbers, `head -n 1`, `tail -1`,
    `cut -d_ -f2`, `tr -d ' '`; None for any other."""
    owner.budget.step(pieces(len(text), 8))
    lines = text.split("\n")
    match words:
        case ["xargs"]:
            return " ".join(text.split())
        case ["wc", "-l"]:
            return str(len(lines) if text else 0)
        case ["bc"] if re.fullmatch(r"[0-9+*/() -]{1,100}", text) and ("/" not in text or "." not in text):
            return owner.arithmetic(text)
        case ["head", "-1"] | ["head", "-n1"] | ["head", "-n", "1"]:
            return lines[0]
        case ["tail", "-1"] | ["tail", "-n1"] | ["tail", "-n", "1"]:
            return lines[-1]
        case ["tr", "-d", gone] if len(gone) == 1:
            return text.replace(gone, "")
    cut = re.fullmatch(r"cut -d ?(.) -f ?([0-9]{1,3})", " ".join(words))
    if cut is None:
        return None
    place = int(cut[2]) - 1
    fields = [line.split(cut[1]) for line in lines]
    return "\n".join(each[place] if place < len(each) else each[0] if len(each) == 1 else "" for each in fields)
