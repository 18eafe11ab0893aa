"""Shell patterns (`*`, `?`, `[a-z]`) matched in a time that grows with text × pattern and no faster: all places of the
pattern that a text may have reached are followed at once, one bit each.

    Glob("*/", budget).end("a/b/c", longest=True)  ->  4
"""

from collections.abc import Iterator

from importers.shell.budget import Budget, pieces

MOST_PATTERN = 1_000
CHARACTERS_A_STEP = 8


class Glob:
    """One pattern. Its bits: bit i is set when the first i tokens are matched."""

    def __init__(self, pattern: str, budget: Budget, backward: bool = False) -> None:
        if len(pattern) > MOST_PATTERN:
            raise budget.out(f"has a pattern of {len(pattern):,} characters", f"{MOST_PATTERN:,}")
        self.budget, self.backward = budget, backward
        tokens = list(_tokens(pattern))
        if backward:
            tokens.reverse()
        self.literals: dict[str, int] = {}
        self.any, self.stars, place = 0, 0, 0
        self.sets: list[tuple[int, str]] = []
        for token in tokens:
            if token == "*":
                self.stars |= 1 << place
                continue
            if token == "?":
                self.any |= 1 << place
            elif len(token) > 1:
                self.sets.append((1 << place, token))
            else:
                self.literals[token] = self.literals.get(token, 0) | 1 << place
            place += 1
        self.goal = 1 << place

    def ends(self, text: str, start: int = 0) -> Iterator[int]:
        """Every place where a match that begins at `start` can end, the nearest first; counted from the text's end when
        the pattern runs backward."""
        reached, cost = 1, 1 + sum(len(token) for _, token in self.sets)
        if reached & self.goal:
            yield start
        for at in range(start, len(text)):
            if not at % CHARACTERS_A_STEP:
                self.budget.step(cost)
            char = text[~at] if self.backward else text[at]
            fits = self.any | self.literals.get(char, 0)
            for bit, token in self.sets:
                if reached & bit and _in_set(char, token):
                    fits |= bit
            reached = (reached & fits) << 1 | reached & self.stars
            if not reached:
                return
            if reached & self.goal:
                yield at + 1

    def end(self, text: str, longest: bool, start: int = 0) -> int | None:
        """Where the shortest or longest match ends; None when there is none."""
        found = None
        for end in self.ends(text, start):
            if not longest:
                return end
            found = end
        return found

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self.end(text, longest=True) == len(text)


def replaced(text: str, pattern: str, by: str, everywhere: bool, budget: Budget) -> str:
    """The text with the first longest match of a pattern, or every one, replaced."""
    if not pattern:
        return text
    if not wild(pattern):
        count = text.count(pattern) if everywhere else int(pattern in text)
        budget.characters(len(text) + count * max(0, len(by) - len(pattern)))
        budget.step(pieces(len(text), CHARACTERS_A_STEP * 100))
        return budget.text(text.replace(pattern, by, -1 if everywhere else 1))
    glob, kept, at, length = Glob(pattern, budget), [], 0, 0
    while at < len(text):
        end = glob.end(text, longest=True, start=at)
        budget.step()
        if end is None or end == at:
            kept.append(text[at])
            at += 1
            continue
        length += len(by)
        budget.characters(length)
        kept.append(by)
        at = end
        if not everywhere:
            break
    return budget.text("".join(kept) + text[at:])


def wild(pattern: str) -> bool:
    """Whether a pattern is more than plain text; a backslash makes what follows plain."""
    return bool(set(pattern) & set("*?[\\"))


def matches(text: str, pattern: str, budget: Budget) -> bool:
    """Whether the whole text matches a pattern."""
    return Glob(pattern, budget).matches(text) if wild(pattern) else text == pattern


def _tokens(pattern: str) -> Iterator[str]:
    """`*`, `?`, one character, also one after a backslash, or a set such as `[!a-z]` without its brackets but with a
    leading `!` or `=`."""
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\" and at + 1 < len(pattern):
            yield pattern[at + 1] if pattern[at + 1] not in "*?" else "=" + pattern[at + 1]
            at += 2
            continue
        end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] in ("!", "^"))) if pattern[at] == "[" else -1
        if end < 0:
            yield pattern[at]
            at += 1
            continue
        inner = pattern[at + 1 : end]
        yield "!" + inner[1:] if inner[0] in "!^" else "=" + inner
        at = end + 1


def _in_set(char: str, token: str) -> bool:
    """Whether a set holds a character: `=abc`, `=a-z`, `!0-9`."""
    inner, at, found = token[1:], 0, False
    while at < len(inner):
        if inner[at + 1 : at + 2] == "-" and at + 2 < len(inner):
            found |= inner[at] <= char <= inner[at + 2]
            at += 3
        else:
            found |= inner[at] == char
            at += 1
    return found == (token[0] == "=")
