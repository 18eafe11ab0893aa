"""Launch shapes of the norms by width, tuned on an H200 by `python -m kernels.tune norm-forward norm-backward`."""

from __future__ import annotations

from typing import NamedTuple

PERSISTENT_WIDTH = 16384
"""Widest row held in registers (half of it where a bias gradient is, too).

Wider ones are looped over and read again.
"""
WIDE_BLOCK = 4096
"""Lanes of the looped backward."""


class ForwardConfig(NamedTuple):
    rows: int  # rows a tile
    warps: int
    per_processor: int = 0  # programs a multiprocessor, each striding over row tiles; 0: one program a tile
    stages: int = 1  # row tiles in flight
    reload: bool = True  # weight read after the statistics (again for each tile), not held from the start
    loop: int = 0  # lanes of the looped kernel; 0: the row is held in registers


class BackwardConfig(NamedTuple):
    rows: int
    warps: int
    per_processor: int  # programs a multiprocessor
    stages: int  # loads in flight, in rows
    reload: bool  # weight read again for each row


_NARROW = [
    (256, ForwardConfig(8, 4)),
    (512, ForwardConfig(4, 4)),
    (1024, ForwardConfig(2, 2, 8, 3, False)),
    (2048, ForwardConfig(1, 4)),
]
_LOOPED = [
    (4096, ForwardConfig(1, 8, loop=2048)),
    (8192, ForwardConfig(1, 16, loop=4096)),
    (PERSISTENT_WIDTH + 1, ForwardConfig(1, 16, loop=8192)),
]
FORWARD_TABLE: list[tuple[int, ForwardConfig]] = [*_NARROW, *_LOOPED]
"""A row read twice, the second time from the caches, beats one held in registers from width 4096 on."""
LAYER_FORWARD_TABLE: list[tuple[int, ForwardConfig]] = [
    *_NARROW,
    (4096, ForwardConfig(1, 4)),
    (8192, ForwardConfig(1, 8)),
    (PERSISTENT_WIDTH, ForwardConfig(1, 16)),
    (PERSISTENT_WIDTH + 1, ForwardConfig(1, 8, loop=4096)),
]
"""LayerNorm, which would read a looped row three times."""
BACKWARD_TABLE: list[tuple[int, BackwardConfig]] = [
    (256, BackwardConfig(8, 4, 8, 1, False)),
    (512, BackwardConfig(4, 4, 8, 1, False)),
    (1024, BackwardConfig(1, 2, 8, 3, False)),
    (2048, BackwardConfig(1, 4, 3, 3, False)),
    (4096, BackwardConfig(1, 8, 2, 3, False)),
    (8192, BackwardConfig(1, 16, 1, 3, False)),
    (PERSISTENT_WIDTH, BackwardConfig(1, 16, 1, 3, True)),
]
SHARED_BYTES = 220_000
"""Shared memory that the rows in flight of one multiprocessor may take; more, and they are loaded one at a time."""
