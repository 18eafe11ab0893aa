"""Token ids of a rank's micro-batches, on the host and on their way to its device.

    feed.ids(step, micro, 0)     # (T,) int64: the tokens of a micro-batch
    feed.ids(step, micro, 1)     # the token after each of them

A micro-batch is read once for both. For a device, ids lie in pinned buffers that stay, since copies from them are
asynchronous (the host waits for the end of each step before it fills them again), and a replayed graph copies from
where the captured step did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Tensor = torch.Tensor


class Batches(Protocol):
    """Where token ids come from."""

    def batch(self, step: int, samples: tuple[int, ...]) -> Tensor:
        """(samples, seq + 1) int64: each sequence and the token after it."""
        ...


class Feed:
    """Reads `data`; `samples(micro)` are the indices in the global batch of a micro-batch's sequences of `seq` tokens.
    `keeps`: ids stay in one buffer for each micro-batch and shift, `pinned` or not."""

    def __init__(
        self, data: Batches, samples: Callable[[int], tuple[int, ...]], seq: int, *, keeps: bool, pinned: bool
    ) -> None:
        self.data, self.samples, self.seq, self.keeps, self.pinned = data, samples, seq, keeps, pinned
        self._read: dict[int, tuple[int, Tensor]] = {}
        self._kept: dict[tuple[int, int], Tensor] = {}

    def ids(self, step: int, micro: int, shift: int) -> Tensor:
        """(T,) int64 in (position, sample) order: the ids of a micro-batch, `shift` tokens on."""
        # a copy even of one sequence, which is contiguous already: what is given away owns its bytes and no others
        ids = self._grid(step, micro)[:, shift : shift + self.seq].t().clone(memory_format=torch.contiguous_format)
        ids = ids.view(-1)
        if not self.keeps:
            return ids
        if (micro, shift) not in self._kept:
            self._kept[micro, shift] = torch.empty_like(ids, pin_memory=self.pinned)
        return self._kept[micro, shift].copy_(ids)

    def refill(self, step: int) -> None:
        """Put a step's ids where earlier steps' are kept."""
        for micro, shift in self._kept:
            self.ids(step, micro, shift)

    def read_ahead(self, step: int) -> None:
        """Read a step's micro-batches before they are asked for; those of other steps are forgotten."""
        for micro in self._read:
            self._grid(step, micro)

    def _grid(self, step: int, micro: int) -> Tensor:
        known = self._read.get(micro)
        if known is None or known[0] != step:
            known = self._read[micro] = (step, self.data.batch(step, self.samples(micro)))
        return known[1]
