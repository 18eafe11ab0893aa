"""A kernel call: one operator on one shape, the only thing that is costed on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One operator of `program.ops` on one shape: the only thing that is costed on a device.

    `variant` picks among layouts or fusions, ("gemm", (m, n, k), "bf16", "tn+acc32"); `count` repeats it.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    variant: str = ""
    count: int = 1
