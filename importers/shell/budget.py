"""What the evaluation of one script may use: steps, bytes, nesting and processor time, all of it together.

Every loop, expansion and file read asks the script's one `Budget`, so that no construct can hang or grow. Steps and
bytes are counted and never given back: the same script ends at the same place on every machine. The clock stands
behind them, for a machine on which the steps take too long.
"""

import math
import sys
import time
from dataclasses import dataclass, field

from program.errors import InputError

MOST_STEPS = 100_000
"""A command, a word, a variable, a few characters of a pattern: some microseconds each."""
MOST_BYTES = 20_000_000
MOST_CHARACTERS = 1_000_000
"""Of one value."""
MOST_NESTING = 40
"""Functions, nested scripts, sourced files and substitutions inside each other."""
MOST_SECONDS = 1.0
LOOK_EVERY = 64


@dataclass(slots=True)
class Budget:
    """What was used so far. `line` is the script's line that is evaluated; `clocked` whether time counts too."""

    steps: int = 0
    bytes: int = 0
    depth: int = 0
    line: int = 1
    started: float = field(default_factory=time.thread_time)
    clocked: bool = True
    next_look: int = LOOK_EVERY

    def step(self, count: int = 1) -> None:
        """`count` more steps. Raises `InputError` when there are none left, or no time."""
        self.steps += count
        if self.steps > MOST_STEPS:
            raise self.out(f"takes {self.steps:,} steps", f"{MOST_STEPS:,}")
        if self.clocked and self.steps >= self.next_look:
            self.next_look = self.steps + LOOK_EVERY
            used = time.thread_time() - self.started
            if used > MOST_SECONDS:
                raise self.out(f"takes {used:.2f} s of processor time", f"{MOST_SECONDS:g} s")

    def take(self, size: int) -> None:
        """`size` more bytes of memory. Ask before they are made."""
        self.bytes += size
        if self.bytes > MOST_BYTES:
            raise self.out(f"makes {self.bytes:,} bytes of text", f"{MOST_BYTES:,}")

    def characters(self, count: int) -> None:
        """One value is about to have `count` characters."""
        if count > MOST_CHARACTERS:
            raise self.out(f"makes a value of {count:,} characters", f"{MOST_CHARACTERS:,}")

    def text(self, text: str) -> str:
        """The text, counted by the bytes that it takes."""
        self.characters(len(text))
        self.take(sys.getsizeof(text))
        return text

    def deeper(self, what: str) -> None:
        """One level of nesting more; the caller takes it off `depth` again."""
        self.depth += 1
        if self.depth > MOST_NESTING:
            raise self.out(f"nests {self.depth} deep ({what})", f"{MOST_NESTING}")

    def out(self, what: str, most: str) -> InputError:
        """What ran out, with both numbers and the line."""
        return InputError(f"line {self.line}: the script {what}, more than the {most} allowed; keep the part to import")

    def stop_clock(self) -> None:
        """The script is evaluated: what is made of it takes steps and bytes, but other work's time does not count."""
        self.clocked, self.next_look = False, sys.maxsize


def pieces(length: int, each: int) -> int:
    """Steps for a length, one for `each` characters or items."""
    return math.ceil(length / each)
