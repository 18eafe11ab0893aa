"""Marks for a profiler: every instruction is an NVTX range named by its id and label, and recording of a step starts
and stops the CUDA profiler, so that it sees the program and no more:

    nsys profile -t cuda,nvtx --capture-range=cudaProfilerApi windtunnel train RUN --profile nvtx
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from trainer.streams import Op

VARIABLE = "WINDTUNNEL_PROFILE"
"""How the command tells the ranks that it starts: `nvtx`."""


def marked(op: Op) -> Op:
    """The instruction inside a range of its own."""
    push, pop, run = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop, op.run
    name = f"{op.id} {op.label}"

    def ranged() -> None:
        push(name)
        try:
            run()
        finally:
            pop()

    return replace(op, run=ranged)


@contextmanager
def captured(device: torch.device, step: int) -> Iterator[None]:
    """A step that the profiler keeps. The device is idle on both sides of it."""
    cuda: Callable[[], object] = torch.cuda.synchronize
    cuda()
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push(f"step {step} on {device}")
    try:
        yield
    finally:
        cuda()
        torch.cuda.nvtx.range_pop()
        torch.cuda.profiler.stop()
