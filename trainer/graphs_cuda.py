"""A step captured as a CUDA graph and replayed (`plan.cuda_graph`): the host issues one launch instead of thousands.

What is captured is the step up to the first instruction that takes something from the host which changes from step to
step: the optimizer's (learning rate, step number), the host's own, and the reading of the loss. The rest is issued
after it, one by one. Tokens are no obstacle: their copies start from pinned buffers that stay and are filled anew
before each replay (`trainer.feed`).

Capturing runs every instruction's function once while the device does nothing: kernels, events and collectives become
nodes of the graph, with the order that streams and waits give them. All streams fork from the compute stream and join
it again at the end. Tensors made meanwhile live in a pool of the graph's; which of them the rest of the step finds in
the table is remembered and put back at each replay. A recorded step is a graph of its own, with timing events as nodes
around each instruction. The first steps are issued one by one, for whatever is compiled, connected or allocated once.

Nothing is created, dropped or reordered; only who issues an instruction differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from program import Instruction
from trainer.context import RankContext
from trainer.storage import Storage
from trainer.streams import Op, StreamError, Wait
from trainer.streams_cuda import CudaStreams, Row

WARM_STEPS = 2
FIRST_PART = 8
"""The first of two graphs holds one instruction in so many."""


def capturable(instructions: Sequence[Instruction]) -> int:
    """How many of a step's first instructions can be captured."""
    return next((index for index, instruction in enumerate(instructions) if instruction.needs_host), len(instructions))


@dataclass(frozen=True, slots=True)
class _Captured:
    """Graphs to be launched one after another, the event after them, their instructions, those issued after them, and
    the table of tensors they leave behind."""

    graphs: list[Any]
    done: Any
    rows: list[Row]
    rest: list[Row]
    table: list[torch.Tensor | None]


class StepGraphs:
    """Issues steps of `ops`, the first `count` of them by graphs. Raises StreamError where a capture fails."""

    def __init__(
        self, streams: CudaStreams, ops: Sequence[Op], count: int, storage: Storage, context: RankContext
    ) -> None:
        self.streams, self.ops, self.count, self.storage, self.context = streams, ops, count, storage, context
        self._made: dict[bool, _Captured] = {}
        self._warm = 0
        self._pool: Any = None

    def prepare(self) -> None:
        """Capture, once the first steps are over: between two steps, so that no step is the longer for it."""
        if self._warm == WARM_STEPS and not self._made:
            torch.cuda.empty_cache()  # what the first steps used, for the graphs' own pool
            for recording in (False, True):
                self.streams.recording = recording
                self._made[recording] = self._captured()

    def issue(self) -> None:
        """Issue one step, between the streams' `begin` and `drain`."""
        if self._made:
            self._replay(self._made[self.streams.recording])
        else:
            self._warm += 1
            self.streams.issue_all(self.ops)

    def close(self) -> None:
        """Let the graphs go: NCCL destroys no communicator that one of them uses."""
        for captured in self._made.values():
            for graph in captured.graphs:
                graph.reset()
        self._made = {}
        self._warm = 0

    def _parts(self) -> list[Sequence[Op]]:
        """What is captured, as one graph, or as a short one and the rest: the device begins with the one while the host
        launches the other. Between them all streams join, which transfers of a pipeline, received ahead, must not."""
        ops = self.ops[: self.count]
        short = 0 if any(op.stream.startswith(("send", "recv")) for op in ops) else self.count // FIRST_PART
        return [part for part in (ops[:short], ops[short:]) if part]

    def _captured(self) -> _Captured:
        streams = self.streams
        graphs, rows, done, replayed = [], [], streams.event(), dict[Wait, Any]()
        for part in self._parts():
            ready = streams.rows(part, captured=True, replayed=replayed)
            graphs.append(self._graph(ready))
            rows += ready
            replayed |= dict.fromkeys(((op.stream, op.ordinal) for op in part), done)
        rest = streams.rows(self.ops[self.count :], replayed=replayed)
        return _Captured(graphs, done, rows, rest, list(self.storage.table))

    def _graph(self, rows: Sequence[Row]) -> Any:
        streams, graph = self.streams, torch.cuda.CUDAGraph()
        streams.enter("compute")
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")  # NCCL's threads ask about events
        try:
            streams.fork(streams.event())
            streams.issue_rows(rows)
            streams.join()
            streams.enter("compute")
            graph.capture_end()
        except RuntimeError as error:
            raise StreamError(
                f"rank {streams.rank}: the step could not be captured as a CUDA graph ({error}); set plan.cuda_graph: "
                "false"
            ) from error
        self._pool = graph.pool()
        return graph

    def _replay(self, captured: _Captured) -> None:
        streams, feed, step = self.streams, self.context.feed, self.context.state.step
        feed.refill(step)
        streams.enter("compute")
        issued = time.perf_counter()
        for graph in captured.graphs:
            graph.replay()
        streams.fork(captured.done)
        streams.replayed(captured.rows, issued)
        self.storage.table[:] = captured.table
        if step + 1 < self.context.job.steps:
            feed.read_ahead(step + 1)
        streams.issue_rows(captured.rest)
