"""CUDA streams of one rank: one `torch.cuda.Stream` for each stream of the program, events for waits.

Every instruction is issued by the host thread in host order, inside its stream (an optimizer step on the stream `cpu`
is done by the host thread there and then, once what it waits for has happened); collectives are asked to run in the
current stream (`asyncOp` off), so that events around them bracket them. An event is recorded only after an instruction
that another stream waits for (or, in a recorded step, around every one). Buffers belong to the compute stream's
allocator; the program frees one only where the compute stream is already ordered after every use, so no `record_stream`
is needed. Nothing here synchronises the device: the host waits for one event, at the instruction marked `host_sync`,
and at the end of a recorded step.
"""

from __future__ import annotations

import time

import torch

from trainer.status import Status
from trainer.streams import Op, Stamp, StreamError

POLL_S = 0.0002
SPIN_S = 0.001  # first the host asks without a pause: with blocking launches it waits for kernels shorter than a sleep


class CudaStreams:
    """See the module. `names` are the program's streams on this rank."""

    def __init__(self, rank: int, names: list[str], status: Status, wait_s: float, device: torch.device) -> None:
        self.rank, self.status, self.wait_s, self.device = rank, status, wait_s, device
        high = -1  # communication first: it is short, and something waits for it
        self._streams = {name: torch.cuda.Stream(device, priority=0 if name == "compute" else high) for name in names}
        self._done: dict[tuple[str, int], torch.cuda.Event] = {}
        self._pool: list[torch.cuda.Event] = []
        self._recorded: list[tuple[Op, float, torch.cuda.Event, torch.cuda.Event]] = []
        self._origin: tuple[float, torch.cuda.Event] | None = None
        self._home = self._current = torch.cuda.current_stream(device)
        self.recording = False
        torch.cuda.synchronize(device)  # weights were initialised on the default stream

    def begin(self, step: int, record: bool) -> None:
        self.status.begin(step)
        self.recording = record
        self._pool += self._done.values()
        self._done = {}
        self._recorded = []
        if record:
            self._origin = self._anchor()

    def _anchor(self) -> tuple[float, torch.cuda.Event]:
        """(host time, event) of the same moment, taken while the device is idle: event times become host times by
        it."""
        event = torch.cuda.Event(enable_timing=True)
        stream = self._streams["compute"]
        stream.synchronize()
        event.record(stream)
        self._wait(event, "the clock's anchor")
        return time.perf_counter(), event

    def issue(self, op: Op) -> None:
        issued = time.perf_counter()
        self.status.set(op.stream, op.id)
        stream = self._streams[op.stream]
        for wait in op.waits:
            stream.wait_event(self._done[wait])
            if op.stream == "cpu":  # its work is the host thread's own
                self._wait(self._done[wait], op.label)
        self._enter(stream)
        start = self._mark(stream) if self.recording else None
        op.run()
        end = self._mark(stream) if self.recording else None
        if start is not None and end is not None:
            self._recorded.append((op, issued, start, end))
        if op.waited or op.host_sync:
            event = self._pool.pop() if self._pool else torch.cuda.Event()
            event.record(stream)
            self._done[op.stream, op.ordinal] = event
            if op.host_sync:
                self._wait(event, op.label)

    def _enter(self, stream: torch.cuda.Stream) -> None:
        """Make `stream` the current one. `torch.cuda.stream` would look the device up and switch back each time, which
        costs the host more than most instructions' own work."""
        if stream is not self._current:
            torch._C._cuda_setStream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
            self._current = stream

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _wait(self, event: torch.cuda.Event, what: str) -> None:
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
            for _, _, _, end in self._recorded:
                self._wait(end, "the recorded step")

    def finish(self) -> dict[int, Stamp]:
        """Stamps on the host clock. On a device an instruction is ready when its stream reaches it, which is when it
        starts."""
        if not self.recording or self._origin is None:
            return {}
        zero, anchor = self._origin
        stamps = {}
        for op, issued, start, end in self._recorded:
            begin = zero + anchor.elapsed_time(start) * 1e-3
            stamps[op.id] = Stamp(min(issued, begin), begin, begin, zero + anchor.elapsed_time(end) * 1e-3)
        self._recorded = []
        return stamps

    def close(self) -> None:
        """Streams live with the process; a step that failed has left its own current."""
        self._enter(self._home)
