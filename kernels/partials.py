"""Sums of partial gradients: a kernel that adds up over rows leaves one fp32 row a program, and a second launch adds
these in a fixed order, so that the gradient is the same bits on every run."""

from __future__ import annotations

import torch

from kernels.direct import Launch
from kernels.launch import cdiv
from kernels.norms_kernels import sum_partials_kernel
from kernels.written import written

BLOCK = 32
"""Columns of a program."""


class PartialSum:
    """Σ over the rows of fp32 (partials, width), into a new tensor or added into a given one."""

    __slots__ = ("elements", "launch", "width")

    def __init__(self, partials: int, width: int, into: torch.Tensor | None) -> None:
        """into: a tensor of (width,) as those of the calls will be; None: they give none."""
        constants = {"ACCUMULATE": into is not None, "ROWS": 64, "BLOCK": BLOCK, "num_warps": 4}
        self.launch = Launch(sum_partials_kernel, (cdiv(width, BLOCK),), (partials, width), constants)
        self.elements, self.width = partials * width, width

    def partials(self, like: torch.Tensor) -> torch.Tensor:
        """An uninitialised place for the partial rows, flat, on `like`'s device."""
        return like.new_empty(self.elements, dtype=torch.float32)

    def __call__(self, partial: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        """The sum; `into` when that is given."""
        out = partial.new_empty(self.width) if into is None else into
        self.launch((partial, out))
        if into is not None:
            written(into)
        return out
