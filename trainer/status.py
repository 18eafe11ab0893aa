"""Where a rank is: 64 bytes of a memory-mapped file, eight numbers that another process can read at any moment.

Word 0 is the step, word 1 the instruction the host issued last, the rest the instruction each communication stream
began last (−1: none yet). Writing one costs a fraction of a microsecond, so it is done for every instruction; the
launcher reads it when a rank dies or hangs.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

BYTES = 64
STREAMS = ("compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd")
_WORD = {name: 1 + i for i, name in enumerate(STREAMS)}


class Status:
    """A rank's own status; without a path it is kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._map: mmap.mmap = mmap.mmap(-1, BYTES)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")  # renamed when whole: a reader never sees a file without its words
            fresh.write_bytes(struct.pack("8q", *(-1,) * 8))
            with fresh.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), BYTES)
            fresh.replace(path)
        self._words = memoryview(self._map).cast("q")
        self._unread = memoryview(bytearray(8)).cast("q")
        self.begin(-1)

    def begin(self, step: int) -> None:
        """A new step: no instruction of it has begun."""
        struct.pack_into("8q", self._map, 0, step, *(-1,) * 7)

    def set(self, stream: str, instruction: int) -> None:
        """`stream` begins an instruction."""
        words, word = self.cell(stream)
        words[word] = instruction

    def cell(self, stream: str) -> tuple[memoryview, int]:
        """Where `set` writes: the words and the stream's place in them (streams that nobody reads share one elsewhere).
        Who writes often asks once."""
        word = _WORD.get(stream)
        return (self._unread, 0) if word is None else (self._words, word)


def read(path: Path) -> tuple[int, dict[str, int]]:
    """(step, last instruction begun on each stream that has begun one) of a rank's status file; step −1 before the
    first."""
    step, *ids = struct.unpack("8q", path.read_bytes()[:BYTES])
    return step, {name: i for name, i in zip(STREAMS, ids, strict=True) if i >= 0}
