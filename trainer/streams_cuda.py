"""CUDA streams of one rank: one `torch.cuda.Stream` for each stream of the program, events for waits.

Every instruction is issued by the host thread in host order, inside its stream (an optimizer step on the stream `cpu`
is done by the host thread there and then, once what it waits for has happened); collectives are asked to run in the
current stream (`asyncOp` off), so that events around them bracket them. An event is recorded only after an instruction
that another stream waits for (or, in a recorded step, around every one). Buffers belong to the compute stream's
allocator; the program frees one only where the compute stream is already ordered after every use, so no `record_stream`
is needed. Nothing here synchronises the device: the host waits for two events, before and after the instruction marked
`host_sync` (before, because what reads from the device would wait without a bound), and at the end of a recorded step.

On a fast device the host's time to issue is what limits a step of small instructions. So everything but the issuing is
done once, when a list of instructions is first seen: each becomes a `Row` with its stream, its events (the same ones
every step: between two steps the device is idle) and its status word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from trainer.status import Status
from trainer.streams import Op, Stamp, StreamError, Wait

Event = torch._C._CudaEventBase  # what torch.cuda.Event wraps: its methods are C, without a Python frame around them
NOTHING: Mapping[Wait, Any] = MappingProxyType({})
POLL_S = 0.00005
SPIN_S = 0.001  # first the host asks without a pause: with blocking launches it waits for kernels shorter than a sleep


class Row(NamedTuple):
    """An instruction with all that issuing it takes. `before`: events that the host itself waits for; `gate`: recorded
    and waited for by the host before an instruction that reads from the device, so that the wait is bounded; `start`:
    recorded in a recorded step alone; `ends`: recorded after it, when another stream waits for it or the step is
    recorded, the last of them keeping the time then."""

    op: Op
    words: memoryview
    word: int
    stream: torch.cuda.Stream
    waits: tuple[Any, ...]
    before: tuple[Any, ...]
    gate: Any
    start: Any
    ends: tuple[Any, ...]


class CudaStreams:
    """See the module. `names` are the program's streams on this rank."""

    def __init__(self, rank: int, names: list[str], status: Status, wait_s: float, device: torch.device) -> None:
        self.rank, self.status, self.wait_s, self.device = rank, status, wait_s, device
        high = -1  # communication first: it is short, and something waits for it
        self._streams = {name: torch.cuda.Stream(device, priority=0 if name == "compute" else high) for name in names}
        self._events: dict[tuple[Wait, bool, bool], Any] = {}
        self._ops: Sequence[Op] = ()
        self._rows: dict[bool, list[Row]] = {}
        self._recorded: list[tuple[Row, float]] = []
        self._origin: tuple[float, Any] | None = None
        self._home = self._current = torch.cuda.current_stream(device)
        self.recording = False
        torch.cuda.synchronize(device)  # weights were initialised on the default stream

    def begin(self, step: int, record: bool) -> None:
        self.status.begin(step)
        self.recording = record
        self._recorded = []
        if record:
            self._origin = self._anchor()

    def _anchor(self) -> tuple[float, Any]:
        """(host time, event) of the same moment, taken while the device is idle: event times become host times by
        it."""
        event = Event(enable_timing=True)
        stream = self._streams["compute"]
        stream.synchronize()
        event.record(stream)
        self._wait(event, "the clock's anchor")
        return time.perf_counter(), event

    def issue_all(self, ops: Sequence[Op]) -> None:
        """Issue `ops` in order; a list that was issued before is not looked through again."""
        if ops is not self._ops:
            self._ops, self._rows = ops, {}
        if self.recording not in self._rows:
            self._rows[self.recording] = self.rows(ops)
        self.issue_rows(self._rows[self.recording])

    def issue(self, op: Op) -> None:
        """Issue one instruction."""
        self.issue_rows(self.rows([op]))

    def rows(self, ops: Sequence[Op], captured: bool = False, replayed: Mapping[Wait, Any] = NOTHING) -> list[Row]:
        """`ops` made ready for a step such as this one, recorded or not. `captured`: to be issued into a graph, whose
        events are nodes of it; `replayed`: what a graph did before, which every stream is ordered after, with the event
        that tells the host."""
        return [self._row(op, captured, replayed) for op in ops]

    def _row(self, op: Op, captured: bool, replayed: Mapping[Wait, Any]) -> Row:
        waits = tuple(self._event(wait, captured) for wait in op.waits if wait not in replayed)
        before = (*waits, *dict.fromkeys(replayed[wait] for wait in op.waits if wait in replayed))
        timed = self.recording and captured
        ends = (self._event((op.stream, op.ordinal), captured),) if self._marked(op, captured) else ()
        return Row(
            op,
            *self.status.cell(op.stream),
            self._streams[op.stream],
            waits,
            before if op.stream == "cpu" else (),  # its work is the host thread's own
            Event() if op.host_sync else None,
            (_outside() if captured else Event(enable_timing=True)) if self.recording else None,
            (*ends, _outside()) if timed else ends,
        )

    def _marked(self, op: Op, captured: bool) -> bool:
        return op.waited or op.host_sync or (self.recording and not captured)

    def _event(self, wait: Wait, captured: bool) -> Any:
        """The event after an instruction. A recorded step has events of its own, which keep the time; those of a graph
        do not, for they are its inner order."""
        key = (wait, self.recording, captured)
        if key not in self._events:
            self._events[key] = Event(enable_timing=self.recording and not captured)
        return self._events[key]

    def issue_rows(self, rows: Sequence[Row]) -> None:
        """Issue what `rows` made ready."""
        recording, now = self.recording, time.perf_counter
        for row in rows:
            op, words, word, stream, waits, before, gate, start, ends = row
            if recording:
                self._recorded.append((row, now()))
            words[word] = op.id
            for event in waits:
                event.wait(stream)
            for event in before:
                self._wait(event, op.label)
            if stream is not self._current:
                self._enter(stream)
            if gate is not None:
                gate.record(stream)
                self._wait(gate, op.label)
            if recording:
                start.record(stream)
            op.run()
            for event in ends:
                event.record(stream)
            if op.host_sync:
                self._wait(ends[-1], op.label)

    def replayed(self, rows: Sequence[Row], issued_s: float) -> None:
        """A graph of `rows` was launched at `issued_s`: where the rank is, and what a recorded step will read."""
        self._recorded = [(row, issued_s) for row in rows] if self.recording else []
        for row in {row.op.stream: row for row in rows}.values():  # the last of each stream
            row.words[row.word] = row.op.id

    def event(self) -> Any:
        """A new event that keeps no time."""
        return Event()

    def fork(self, event: Any) -> None:
        """Every stream waits for what `compute` was given so far, which `event` then stands for."""
        home = self._streams["compute"]
        event.record(home)
        for stream in self._streams.values():
            if stream is not home:
                event.wait(stream)

    def join(self) -> None:
        """`compute` waits for what every stream was given so far."""
        home = self._streams["compute"]
        for stream in self._streams.values():
            if stream is not home:
                event = Event()
                event.record(stream)
                event.wait(home)

    def enter(self, name: str) -> None:
        """Make a stream of the program the current one."""
        self._enter(self._streams[name])

    def _enter(self, stream: torch.cuda.Stream) -> None:
        """Make `stream` the current one. `torch.cuda.stream` would look the device up and switch back each time, which
        costs the host more than most instructions' own work."""
        if stream is not self._current:
            torch._C._cuda_setStream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
            self._current = stream

    def _wait(self, event: Any, what: str) -> None:
        """Until `event` has happened, bounded."""
        begun = time.monotonic()
        while not event.query():
            waited = time.monotonic() - begun
            if waited > self.wait_s:
                raise StreamError(f"rank {self.rank}: waited {self.wait_s:g} s for the device to finish {what}")
            if waited > SPIN_S:
                time.sleep(POLL_S)

    def drain(self, counts: dict[str, int]) -> None:
        """The step's last instruction was waited for by the host and is ordered after every other."""
        self._enter(self._home)
        if self.recording:
            for row, _ in self._recorded:
                self._wait(row.ends[-1], "the recorded step")

    def finish(self) -> dict[int, Stamp]:
        """Stamps on the host clock. On a device an instruction is ready when its stream reaches it, which is when it
        starts."""
        if not self.recording or self._origin is None:
            return {}
        zero, anchor = self._origin
        stamps = {}
        for row, issued in self._recorded:
            begin = zero + anchor.elapsed_time(row.start) * 1e-3
            stamps[row.op.id] = Stamp(min(issued, begin), begin, begin, zero + anchor.elapsed_time(row.ends[-1]) * 1e-3)
        self._recorded = []
        return stamps

    def close(self) -> None:
        """Streams live with the process; a step that failed has left its own current."""
        self._enter(self._home)


def _outside() -> Any:
    """An event that keeps the time of a node of a graph and is read from outside it."""
    return Event(enable_timing=True, external=True)
