"""A step whose loss or gradient norm is not finite (`train.nonfinite`): where it came from.

STEP is conditional on the device: where the reduced norm or loss is not finite, weights and optimizer state stay bit
for bit what they were. So when the host reads the two at the end of the step, as it does anyway, the step can be run
again from the same state, with a look at every tensor an instruction writes (`explain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from program import Buffer, Placed, expand
from program.errors import WindtunnelError
from trainer.storage import share_of

if TYPE_CHECKING:
    from trainer.executor import Executor, StepResult
    from trainer.streams import Op

Tensor = torch.Tensor


class NotFinite(WindtunnelError):
    """A loss or gradient norm was not finite and `train.nonfinite` is stop."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rank's first tensor that is not finite: its place in the rank's host order (−1: a weight, before the step), and
    whether it came from another rank."""

    rank: int
    order: int
    received: bool
    text: str


def explain(executor: Executor, step: int, result: StepResult) -> str:
    """Why a step's loss or norm is not finite, after running it again with checks. Collective over the default group;
    the same on every rank."""
    mine = first_of_rank(executor, step)
    found: list[Finding | None] = [mine]
    if dist.is_initialized():
        found *= dist.get_world_size()
        dist.all_gather_object(found, mine)
    what = f"step {step}: the loss is {result.loss:g} and the gradient norm {result.grad_norm:g}"
    first = first_of_all(f for f in found if f is not None)
    if first is None:
        return f"{what}; run again, the step made no such tensor, so the fault is not in the numbers: suspect a device"
    return f"{what}; the first tensor that is not finite is on rank {first.rank}: {first.text}"


def first_of_all(found: Iterable[Finding]) -> Finding | None:
    """The earliest finding of those that a rank made itself, else the earliest of all."""
    return min(found, key=lambda f: (f.order >= 0, f.received, f.order, f.rank), default=None)


def first_of_rank(executor: Executor, step: int) -> Finding | None:
    """Run a step again on this rank, all ranks together, without its optimizer, and look at everything it writes."""
    if (weight := _bad_weight(executor)) is not None:
        return Finding(executor.rank, -1, False, f"{weight}, a weight, before the step")
    seen: list[tuple[int, Placed, Buffer, Tensor, Tensor]] = []
    placed = {p.id: p for p in expand(executor.mine)}
    executor.repeat(
        step, [_watched(executor, op, order, placed[op.id], seen.append) for order, op in enumerate(executor.ops)]
    )
    if executor.device.type == "cuda":
        torch.cuda.synchronize(executor.device)
    for order, at, buffer, low, high in sorted(seen, key=lambda row: row[0]):
        if not _finite(low, high):
            text = f"{buffer.what} {buffer.shape} {buffer.dtype}, written by {executor.ops[order].label}"
            return Finding(executor.rank, order, at.instruction.comm is not None, text)
    return None


def _bad_weight(executor: Executor) -> str | None:
    """The name of a parameter of which this rank holds an element that is not finite."""
    for bucket in executor.mine.buckets:
        held = executor.storage.tensor(bucket.weight_buffer)
        if _finite(*torch.aminmax(held)):
            continue
        first = share_of(bucket, executor.context.coords.dp).start if bucket.weights_sharded else 0
        at = first + int((~torch.isfinite(held)).nonzero()[0, 0])
        inside = (p for p in executor.mine.params if p.bucket == bucket.index and p.offset <= at)
        return max(inside, key=lambda p: p.offset).name
    return None


def _finite(*ends: Tensor) -> bool:
    return all(bool(torch.isfinite(end)) for end in ends)


def _watched(
    executor: Executor,
    op: Op,
    order: int,
    placed: Placed,
    see: Callable[[tuple[int, Placed, Buffer, Tensor, Tensor]], None],
) -> Op:
    """`op`, after which the least and the greatest element of each tensor it wrote are taken, in its stream: what they
    are is asked when the step is over, so nothing waits and nothing can get stuck that did not before."""
    storage, program, instruction = executor.storage, executor.mine, placed.instruction
    if instruction.kind == "STEP":
        return replace(op, run=lambda: None)
    declared = program.blocks[program.calls[placed.call].block].buffers
    places = [
        (storage.place(placed.call, ref), declared[ref] if ref >= 0 else program.buffers[-1 - ref])
        for ref in instruction.writes
    ]

    def run() -> None:
        op.run()
        for place, buffer in places:
            tensor = storage.table[place]
            if tensor is not None and tensor.is_floating_point() and tensor.numel():
                see((order, placed, buffer, *torch.aminmax(tensor)))

    return replace(op, run=run)
