"""Streams of one rank: where compiled instructions run, in host issue order, with the waits the program declares.

An `Op` is an instruction made ready: a function without arguments, its stream, and its waits as (stream, ordinal)
pairs. Stream order is the subsequence of host order, so "instruction 7 of the tp stream has finished" is all a wait
needs to know. Two implementations:

* `CpuStreams` (here): compute runs on the host thread as it is issued; each communication stream is a thread of its own
  that runs its blocking collectives in order.
* `trainer.streams_cuda.CudaStreams`: one CUDA stream each, events for waits.

Every wait is bounded and, when it runs out, says who waited for what and how far each stream had come.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from trainer.status import Status

ThreadContext = Callable[[], AbstractContextManager[object]]
Wait = tuple[str, int]


class StreamError(RuntimeError):
    """A stream failed or a wait ran out; the message names the rank and the instruction."""


@dataclass(frozen=True, slots=True)
class Op:
    """An instruction made ready to run. `ordinal` counts on its stream; `waited` says whether another stream waits for
    it."""

    id: int
    stream: str
    ordinal: int
    label: str
    run: Callable[[], None]
    waits: tuple[Wait, ...]
    waited: bool
    host_sync: bool


@dataclass(slots=True)
class Stamp:
    """When an instruction was issued, ready (its waits over), started and ended; seconds of the rank's own clock."""

    issued_s: float
    ready_s: float
    start_s: float
    end_s: float


class Streams(Protocol):
    """What the executor needs of a set of streams."""

    def begin(self, step: int, record: bool) -> None:
        """Start a step with every stream empty."""

    def issue_all(self, ops: Sequence[Op]) -> None:
        """Hand instructions to their streams, in order."""

    def issue(self, op: Op) -> None:
        """Hand an instruction to its stream."""

    def drain(self, counts: dict[str, int]) -> None:
        """Wait until each stream has finished its `counts` instructions of the step."""

    def finish(self) -> dict[int, Stamp]:
        """The stamps of a recorded step by instruction id."""

    def close(self) -> None:
        """Stop threads and release what the streams hold."""


class _Thread:
    """One communication stream on a CPU: a thread that runs its ops in order."""

    def __init__(self, name: str, owner: CpuStreams) -> None:
        self.name, self.owner = name, owner
        self.done = 0
        self.current = ""
        self.changed = threading.Condition()
        self._inbox: queue.SimpleQueue[tuple[Op, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def put(self, op: Op, issued_s: float) -> None:
        self._inbox.put((op, issued_s))

    def stop(self) -> None:
        self._inbox.put(None)
        self._thread.join(self.owner.wait_s)

    def _work(self) -> None:
        try:
            with self.owner.thread_context():
                while (item := self._inbox.get()) is not None:
                    self._run(*item)
        except BaseException as error:  # handed to the host, which raises it
            self.owner.fail(self, error)

    def _run(self, op: Op, issued_s: float) -> None:
        owner = self.owner
        self.current = op.label
        owner.status.set(self.name, op.id)
        owner.wait_for(op)
        ready = time.perf_counter()
        op.run()
        if owner.recording:
            end = time.perf_counter()
            owner.stamps[op.id] = Stamp(issued_s, ready, ready, end)
        with self.changed:
            self.done += 1
            self.changed.notify_all()

    def wait(self, ordinal: int, who: str) -> None:
        """Until op `ordinal` of this stream has finished."""
        if self.done > ordinal:
            return
        deadline = time.monotonic() + self.owner.wait_s
        with self.changed:
            while self.done <= ordinal and self.owner.error is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    break
        if self.done <= ordinal:
            self.owner.raise_stuck(who, self.name, ordinal)


class CpuStreams:
    """Compute on the host thread, communication streams on threads."""

    def __init__(
        self, rank: int, names: list[str], status: Status, wait_s: float, thread_context: ThreadContext = nullcontext
    ) -> None:
        self.rank, self.status, self.wait_s, self.thread_context = rank, status, wait_s, thread_context
        self.error: BaseException | None = None
        self.recording = False
        self.stamps: dict[int, Stamp] = {}
        self._failed = ""
        self._threads = {name: _Thread(name, self) for name in names if name != "compute"}

    def begin(self, step: int, record: bool) -> None:
        self.recording, self.stamps = record, {}
        self.status.begin(step)
        for thread in self._threads.values():
            thread.done = 0

    def issue_all(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.issue(op)

    def issue(self, op: Op) -> None:
        issued = time.perf_counter()
        if op.stream != "compute":
            self._threads[op.stream].put(op, issued)
            if op.host_sync:
                self._threads[op.stream].wait(op.ordinal, "the host")
            return
        self.status.set("compute", op.id)
        if op.waits:
            self.wait_for(op)
        ready = time.perf_counter()
        op.run()
        if self.recording:
            self.stamps[op.id] = Stamp(issued, ready, ready, time.perf_counter())

    def wait_for(self, op: Op) -> None:
        """Until everything `op` waits for has finished. What runs on `compute` had finished before later instructions
        were issued."""
        for stream, ordinal in op.waits:
            if stream != "compute":
                self._threads[stream].wait(ordinal, op.label)

    def finish(self) -> dict[int, Stamp]:
        return self.stamps

    def drain(self, counts: dict[str, int]) -> None:
        """Until each stream has finished its `counts` ops of the step."""
        for name, thread in self._threads.items():
            if counts.get(name):
                thread.wait(counts[name] - 1, "the end of the step")

    def fail(self, thread: _Thread, error: BaseException) -> None:
        """A stream's thread died: remember why and wake every waiter."""
        self._failed, self.error = f"{thread.name} stream at {thread.current}", error
        for other in self._threads.values():
            with other.changed:
                other.changed.notify_all()

    def raise_stuck(self, who: str, stream: str, ordinal: int) -> None:
        """The error of a wait that cannot end."""
        if self.error is not None:
            raise StreamError(f"rank {self.rank}: {self._failed} failed: {self.error}") from self.error
        at = "; ".join(
            f"{t.name} finished {t.done}, last began {t.current or 'nothing'}" for t in self._threads.values()
        )
        raise StreamError(
            f"rank {self.rank}: {who} waited {self.wait_s:g} s for instruction {ordinal} of stream {stream} ({at})"
        )

    def close(self) -> None:
        for thread in self._threads.values():
            thread.stop()
