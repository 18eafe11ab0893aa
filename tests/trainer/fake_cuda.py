"""CUDA streams, events and graphs without a device.

`install` puts them where the trainer finds torch's. A stream keeps what it is ordered after: for every stream, how many
things of it have surely finished. Running something on a stream adds to that, an event carries it from one stream to
another, and what the host waits for, everything issued later knows. A graph is a tape of torch's operators: replaying
it calls them again on the very tensors they were given and writes into the very tensors they returned, as a device
would. The rules of capturing are kept: what is captured and what is not cannot wait for each other, a stream joins a
capture by waiting for an event in it, and all have joined again when it ends.

`OnStreams` is the trainer's executor with CPU tensors on such streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from trainer import streams_cuda
from trainer.context import RankContext
from trainer.executor import Executor
from trainer.link import Host
from trainer.status import Status
from trainer.streams_cuda import CudaStreams

Knowledge = dict[int, int]  # stream id -> how many things of it have finished


class Device:
    """The current stream, all streams by id, all events, and how often the host asked for what. `host`: what the host
    has seen finish; `replayed`: what the last replay brought every stream to."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.events: list[Event] = []
        self.asked: dict[str, int] = {}
        self.capturing: Graph | None = None
        self.replayed: Knowledge = {}
        self.host: Knowledge = {}
        self.current = Stream(self)

    def count(self, what: str) -> None:
        self.asked[what] = self.asked.get(what, 0) + 1

    def make_current(self, stream_id: int, **_: int) -> None:
        self.count("switch")
        self.current = self.streams[stream_id]

    def run(self) -> Knowledge:
        """Something runs on the current stream; what had finished before it."""
        stream, before = self.current, dict(self.current.knows)
        if self.capturing is not None:
            assert stream.stream_id in self.capturing.joined, "not a stream of the capture"
        stream.ran += 1
        stream.knows[stream.stream_id] = stream.ran
        return before


class Stream:
    """In the place of torch.cuda.Stream."""

    def __init__(self, device: Device) -> None:
        self.device, self.stream_id, self.device_index, self.device_type = device, len(device.streams), 0, 1
        self.ran, self.knows = 0, Knowledge()
        device.streams.append(self)

    def synchronize(self) -> None:
        self.device.count("synchronize")


class Event:
    """In the place of a CUDA event; the time it keeps is a number of things that were asked for."""

    def __init__(self, device: Device, enable_timing: bool, external: bool) -> None:
        self.device, self.timing, self.external, self.knows, self.at = device, enable_timing, external, Knowledge(), -1
        self.captured = False
        device.events.append(self)

    def record(self, stream: Stream) -> None:
        self.device.count("record")
        graph = self.device.capturing
        if graph is not None:
            assert stream.stream_id in graph.joined, "not a stream of the capture"
        assert not self.external or graph is not None
        self.captured = graph is not None and not self.external
        self.knows, self.at = dict(stream.knows), sum(self.device.asked.values())

    def wait(self, stream: Stream) -> None:
        self.device.count("wait")
        graph = self.device.capturing
        assert self.at >= 0, "nobody recorded this event"
        assert not self.external, "it is no dependency inside a graph"
        assert self.captured == (graph is not None), "a wait from inside a capture to outside, or the other way round"
        if graph is not None:
            graph.joined.add(stream.stream_id)
        join(stream.knows, self.knows)

    def query(self) -> bool:
        assert self.at >= 0, "nobody recorded this event"
        assert not self.captured
        join(self.device.host, self.knows)
        for stream in self.device.streams:
            join(stream.knows, self.knows)
        return True

    def elapsed_time(self, other: Event) -> float:
        assert self.timing
        assert other.timing
        return float(other.at - self.at)


class Graph:
    """In the place of torch.cuda.CUDAGraph."""

    def __init__(self, device: Device) -> None:
        self.device, self.joined, self.tape, self.ran = device, set[int](), _Tape(), Knowledge()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local"
        self.joined, self.device.capturing = {self.device.current.stream_id}, self
        self.ran = {stream.stream_id: stream.ran for stream in self.device.streams}
        self.tape.__enter__()

    def capture_end(self) -> None:
        self.tape.__exit__(None, None, None)
        streams, home, self.device.capturing = self.device.streams, self.device.current, None
        self.ran = {stream.stream_id: stream.ran - self.ran[stream.stream_id] for stream in streams}
        for stream in streams:
            assert not self.ran[stream.stream_id] or home.knows.get(stream.stream_id) == stream.ran, "unjoined work"

    def replay(self) -> None:
        self.device.count("replay")
        home = self.device.current
        for stream in self.device.streams:
            assert home.knows.get(stream.stream_id, 0) == stream.ran, "the last step is not over"
            stream.ran += self.ran.get(stream.stream_id, 0)
            home.knows[stream.stream_id] = stream.ran
        self.device.replayed = dict(home.knows)
        self.tape.play()

    def reset(self) -> None:
        self.device.count("reset")

    def pool(self) -> tuple[int, int]:
        return (0, 1)


class _Tape(TorchDispatchMode):
    """Every operator that torch was asked for, with what it was given and returned. Played, a collective is waited for
    where it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, made))
        return made

    def play(self) -> None:
        for function, args, kwargs, made in self.calls:
            for old, new in zip(tree_leaves(made), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(new, torch.ScriptObject):
                    dist.Work.unbox(new).wait()
                elif isinstance(new, torch.Tensor) and old.data_ptr() != new.data_ptr():  # neither in place nor a view
                    old.copy_(new)


class OnStreams(Executor):
    """The executor with CPU tensors on streams of `trainer.streams_cuda`; `install` comes first. What loading tokens
    does on the host is on no tape; their copy to the device is none."""

    def _make_context(self, data: Any) -> RankContext:
        made = super()._make_context(data)
        return _Untaped(**{name: getattr(made, name) for name in ("program", "job", "rank", "data", "device")})

    def _make_streams(self, status: Status, *_: Any) -> Any:
        self.storage.counts, self.context.feed.keeps = False, True
        return CudaStreams(self.rank, sorted(self._counts), status, self._wait_s, self.device)


class _Untaped(RankContext):
    def host(self, what: Host, micro: int) -> Callable[..., object]:
        """Loading is on no tape."""
        function = super().host(what, micro)
        return _untaped(function) if what.op == "load" else function


def _untaped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return call


def join(mine: Knowledge, other: Knowledge) -> None:
    """`mine` learns what `other` knows."""
    for stream, count in other.items():
        mine[stream] = max(mine.get(stream, 0), count)


def install(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that the trainer's CUDA streams use from now on."""
    device = Device()

    def event(enable_timing: bool = False, external: bool = False) -> Event:
        return Event(device, enable_timing, external)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _=None, priority=0: Stream(device))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: device.current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _=None: device.count("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: device.count("empty_cache"))
    monkeypatch.setattr(torch._C, "_cuda_setStream", device.make_current, raising=False)
    monkeypatch.setattr(streams_cuda, "Event", event)
    monkeypatch.setattr(dist.Work, "wait", _untaped(dist.Work.wait))  # gloo may copy a result there
    return device
