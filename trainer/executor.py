"""The executor: runs a rank's step program on torch, instruction by instruction, in host order.

At construction every instruction of the step becomes an `Op`: its function (its linked body, or a collective on its
communicator) bound to the places of its arguments and results, its stream, and its waits as (stream, ordinal). A step
then issues these ops one after another. Nothing is created, dropped or reordered, and nothing is decided: strategies
are in the program.

    executor = Executor(program, job, rank, communicators, data)
    result = executor.step(0)          # StepResult(loss, grad_norm)
    executor.parameters()["layers.0.attn.qkv.weight"]
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from program import Call, Instruction, RankProgram, StepProgram, expand, label, resolve_wait
from trainer.bodies import Action, Bodies
from trainer.collectives import check_known, communication
from trainer.context import RankContext, StepState
from trainer.feed import Batches
from trainer.graphs_cuda import StepGraphs, capturable
from trainer.groups import members
from trainer.init import initialise
from trainer.job import Job
from trainer.loss_scale import LossScaling
from trainer.marks import captured, marked
from trainer.schedule_lr import learning_rate
from trainer.startup import StartUp
from trainer.status import Status
from trainer.storage import Storage, share_of
from trainer.streams import CpuStreams, Op, Stamp, Streams, ThreadContext
from trainer.streams_cuda import CudaStreams

Tensor = torch.Tensor
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step: mean loss over the global batch, gradient norm before clipping, wall time, stamps of a
    recorded step, and how many steps so far the optimizer left out because one of the two was not finite.
    `loss_scale`: what the step's gradients were multiplied by, where they were; `overflow`: they were too large for
    that, and the next step has less."""

    loss: float
    grad_norm: float
    time_s: float
    stamps: Mapping[int, Stamp]
    skipped: int = 0
    loss_scale: float | None = None
    overflow: bool = False

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are: the same on every rank, since both are sums over all that share them."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Executor:
    """One rank's trainer. `communicators` maps (role, channel) to a process group
    (`trainer.groups.Communicators.join`)."""

    def __init__(
        self,
        program: StepProgram,
        job: Job,
        rank: int,
        communicators: Mapping[tuple[str, str], Any],
        data: Batches,
        device: torch.device | str = "cpu",
        thread_context: ThreadContext = nullcontext,
        *,
        status: Status | None = None,
        wait_s: float = WAIT_S,
        start: StartUp | None = None,
    ) -> None:
        start = start or StartUp(shows=False)
        start.phase("memory")
        self.program, self.job, self.rank = program, job, rank
        self.device = torch.device(device)
        self.mine: RankProgram = program.classes[program.class_of[rank]]
        self.storage = Storage(self.mine, self.device)
        self.context = self._make_context(data)
        self.bodies = Bodies(self.context, self.storage)
        self.thread_context = thread_context
        self._communicators, self._wait_s = communicators, wait_s
        start.phase("weights")
        initialise(self.storage, self.context, start.part)
        start.phase("instructions")
        self.scaling = None if job.scaling is None else LossScaling(job.scaling)
        self._counts: dict[str, int] = {}
        self._steps = 0
        self.ops = [marked(op) for op in self._ready()] if job.marks else self._ready()
        self.streams = self._make_streams(status or Status(), thread_context)
        self.graphs = self._make_graphs() if program.execution.graph else None

    def step(self, step: int, record: bool = False) -> StepResult:
        """Run step `step` (0-based). Raises StreamError when a stream fails or a wait runs out."""
        state = self._begin(step)
        if self._steps == 1 and self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)  # a compiler tries candidates in the first step
        self._steps += 1
        kept = captured(self.device, step) if record and self.job.marks else nullcontext()
        with self.thread_context(), torch.no_grad(), kept:
            if self.graphs is not None:
                self.graphs.prepare()
            began = time.perf_counter()
            self.streams.begin(step, record)
            if self.graphs is None:
                self.streams.issue_all(self.ops)
            else:
                self.graphs.issue()
            self.streams.drain(self._counts)
        stamps, time_s = self.streams.finish(), time.perf_counter() - began
        return self._judged(StepResult(state.loss, state.sum_of_squares**0.5, time_s, stamps, state.skipped))

    def _judged(self, result: StepResult) -> StepResult:
        """The result with what became of a step that is not finite."""
        state, scaling = self.context.state, self.scaling
        if scaling is not None:
            scale, handled = scaling.scale, scaling.update(result.finite)
            result = replace(result, loss_scale=scale, overflow=handled and not result.finite)
        if not result.finite and (scaling is not None or self.job.nonfinite != "continue"):
            state.skipped += 1
            result = replace(result, skipped=state.skipped)
        return result

    def repeat(self, step: int, ops: Sequence[Op]) -> None:
        """Run a step's instructions again as `ops`, one by one. Raises StreamError as `step` does."""
        self._begin(step)
        with self.thread_context(), torch.no_grad():
            self.streams.begin(step, record=False)
            self.streams.issue_all(ops)
            self.streams.drain(self._counts)
        self.streams.finish()

    def _begin(self, step: int) -> StepState:
        scale = 1.0 if self.scaling is None else self.scaling.scale
        return self.context.begin(step, learning_rate(self.job.rate, step), scale)

    def parameters(self) -> dict[str, Tensor]:
        """This rank's parameters by name, as it holds them (a tensor-parallel rank its share), views of the live
        weights.

        Under ZeRO a step ends with each rank's own share updated and the next one opens by gathering (ZeRO-3: gathers
        unit by unit); here the shares are gathered at once, so every rank of the data-parallel group must call. What
        ZeRO-3 shards comes as copies.
        """
        flats = {}
        for bucket in self.mine.buckets:
            if bucket.shard_numel < bucket.numel:
                held = self.storage.tensor(bucket.weight_buffer)
                share = held if bucket.weights_sharded else held[share_of(bucket, self.context.coords.dp)].clone()
                share = share.to(self.device)
                flat = flats[bucket.index] = share.new_empty(bucket.numel) if bucket.weights_sharded else held
                shares = [*flat.chunk(self.program.degrees["dp"])]
                dist.all_gather(shares, share, group=self._communicators["dp", "dp"])
        return self.storage.parameters(flats)

    def peak_bytes(self) -> int:
        """Most bytes alive so far: the storage's own count on a CPU; on CUDA the device's allocator's, since the first
        step."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self.storage.peak_bytes

    def close(self) -> None:
        """Stop the stream threads, let captured graphs go."""
        self.streams.close()
        if self.graphs is not None:
            self.graphs.close()

    # --- making ready -------------------------------------------------------------------------------------------------

    def _make_context(self, data: Batches) -> RankContext:
        return RankContext(self.program, self.job, self.rank, data, self.device)

    def _make_streams(self, status: Status, thread_context: ThreadContext) -> Streams:
        names = sorted(self._counts)
        if self.device.type == "cuda":
            return CudaStreams(self.rank, names, status, self._wait_s, self.device)
        return CpuStreams(self.rank, names, status, self._wait_s, thread_context)

    def _make_graphs(self) -> StepGraphs:
        assert isinstance(self.streams, CudaStreams), "a graph on no GPU is refused elsewhere"
        count = capturable([placed.instruction for placed in expand(self.mine)])
        return StepGraphs(self.streams, self.ops, count, self.storage, self.context)

    def _ready(self) -> list[Op]:
        """Every instruction of the step as an Op, in host order."""
        found: list[Op] = []
        where: dict[int, tuple[str, int]] = {}
        waited: set[int] = set()
        rows = []
        for index, call in enumerate(self.mine.calls):
            for local, instruction in enumerate(self.mine.blocks[call.block].instructions):
                number = call.base + local
                ordinal = self._counts.get(instruction.stream, 0)
                self._counts[instruction.stream] = ordinal + 1
                where[number] = (instruction.stream, ordinal)
                ids = [i for i in (resolve_wait(self.mine, call, w) for w in instruction.waits) if i >= 0]
                waited.update(ids)
                rows.append((number, index, call, instruction, ids))
        for number, index, call, instruction, ids in rows:
            stream, ordinal = where[number]
            text = label(instruction.phase, instruction.kind, call.micro, instruction.unit, instruction.piece)
            waits = tuple(where[i] for i in ids)
            action = self._action(index, call, instruction)
            found.append(Op(number, stream, ordinal, text, action, waits, number in waited, instruction.host_sync))
        return found

    def _action(self, call_index: int, call: Call, instruction: Instruction) -> Action:
        storage = self.storage
        reads = [storage.place(call_index, ref) for ref in instruction.reads]
        writes = [storage.place(call_index, ref) for ref in instruction.writes]
        if instruction.comm is not None:
            return self._communication(instruction, reads, writes)
        frees = [storage.place(call_index, f) for f in instruction.frees if self._bound(call_index, f)]
        return self.bodies.action(call, instruction, reads, writes, frees)

    def _bound(self, call_index: int, ref: int) -> bool:
        """Whether a freed buffer is there: the port of a send that never happened (first use of a ring) has nothing
        behind it."""
        try:
            return self.storage.is_allocated(call_index, ref)
        except KeyError:
            return False

    def _communication(self, instruction: Instruction, reads: list[int], writes: list[int]) -> Action:
        comm, rank = instruction.comm, self.rank
        assert comm is not None
        check_known(instruction)
        ranks = members(self.program, comm.role, rank)
        assert ranks is not None
        group = self._communicators["pp_next" if comm.role == "pp_prev" else comm.role, comm.channel]
        return communication(self.storage, comm, group, ranks, rank, (*reads, -1)[0], (*writes, -1)[0])
