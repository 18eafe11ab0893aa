"""What an instruction does, bound once: a function without arguments over the rank's table of tensors.

A step repeats the same instructions on the same places of the table, so everything but the tensors is settled before
the first step: the piece function and its context, and which places it reads, fills and empties. What is left is one
look into the table, one call, and the results put back. On a device, whose allocator counts for itself, that is all; on
a CPU results pass through `Storage.put`, which counts bytes. Communications are bound in `trainer.collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from trainer.context import PieceContext
from trainer.pieces import PieceFunction
from trainer.storage import Storage

Body = Callable[[], None]


def computation(
    storage: Storage,
    function: PieceFunction,
    context: PieceContext,
    reads: Sequence[int],
    results: Sequence[int],
    frees: Sequence[int],
) -> Body:
    """`function` on the tensors at `reads`; what it returns goes to `results`, and `frees` are emptied afterwards."""
    table, put, drop, arguments = storage.table, storage.put, storage.drop, _taken(reads)

    def counted() -> None:
        for place, tensor in zip(results, function(context, *arguments(table)), strict=True):
            put(place, tensor)
        for place in frees:
            drop(place)

    def compute() -> None:
        for place, tensor in zip(results, function(context, *arguments(table)), strict=True):
            table[place] = tensor
        for place in frees:
            table[place] = None

    held = any(table[place] is not None for place in results)  # for the whole run: `put` copies into it
    return counted if storage.counts or held else compute


def _taken(places: Sequence[int]) -> Callable[[list[torch.Tensor | None]], Sequence[Any]]:
    """What takes the tensors at `places` out of a table, as a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    few = slice(first, first + len(places))
    return lambda table: table[few]
