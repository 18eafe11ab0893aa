"""The words of a step program: streams, memory pools, phases, roles of groups, communications, element types, kernel
calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stream = Literal["compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd", "h2d", "d2h", "cpu", "disk"]
STREAMS: tuple[Stream, ...] = (
    "compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd", "h2d", "d2h", "cpu", "disk",
)  # fmt: skip
Pool = Literal["weight", "grad", "optim", "act", "stash", "gather", "comm", "work", "host", "nvme"]
OFF_DEVICE: tuple[Pool, ...] = ("host", "nvme")
Phase = Literal["F", "R", "B", "W", "step"]  # R: recompute
Role = Literal["tp", "dp", "pp_next", "pp_prev", "embed", "model", "world"]
CommOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "exchange"]

Reduce = Literal["", "sum", "max"]
Made = tuple[str, tuple[tuple[str, object], ...]]
"""The generator of a constant table, and the numbers it is given."""

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int32": 4, "uint8": 1}


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements of `shape`."""
    total = 1
    for extent in shape:
        total *= extent
    return total


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
