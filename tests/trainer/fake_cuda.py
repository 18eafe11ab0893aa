"""CUDA streams and events without a device: they keep, for each stream, what it is ordered after.

`install` puts them where `trainer.streams_cuda` finds torch's. Running something on a stream gives it the stream's
knowledge: how many things of every stream have surely finished before. An event carries that from one stream to
another, as on a device; what the host waits for, everything issued later knows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer import streams_cuda

Knowledge = dict[int, int]  # stream id -> how many things of it have finished


class Device:
    """The current stream, every stream by id, and counts of what the host asked for."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.events: list[Event] = []
        self.asked: dict[str, int] = {}
        self.current = Stream(self)

    def count(self, what: str) -> None:
        self.asked[what] = self.asked.get(what, 0) + 1

    def make_current(self, stream_id: int, **_: int) -> None:
        self.count("switch")
        self.current = self.streams[stream_id]

    def run(self) -> Knowledge:
        """Something runs on the current stream; what was finished before it."""
        before = dict(self.current.knows)
        self.current.knows[self.current.stream_id] = before.get(self.current.stream_id, 0) + 1
        return before


class Stream:
    """In the place of torch.cuda.Stream."""

    def __init__(self, device: Device) -> None:
        self.device, self.stream_id, self.device_index, self.device_type = device, len(device.streams), 0, 1
        self.knows: Knowledge = {}
        device.streams.append(self)

    def synchronize(self) -> None:
        self.device.count("synchronize")


class Event:
    """In the place of a CUDA event. Recording one keeps the time, as a number of things that happened."""

    def __init__(self, device: Device, enable_timing: bool) -> None:
        self.device, self.timing, self.knows, self.at = device, enable_timing, {}, -1.0
        device.events.append(self)

    def record(self, stream: Stream) -> None:
        self.device.count("record")
        self.knows, self.at = dict(stream.knows), float(sum(self.device.asked.values()))

    def wait(self, stream: Stream) -> None:
        self.device.count("wait")
        assert self.at >= 0, "nobody recorded this event"
        join(stream.knows, self.knows)

    def query(self) -> bool:
        assert self.at >= 0, "nobody recorded this event"
        for stream in self.device.streams:
            join(stream.knows, self.knows)
        return True

    def elapsed_time(self, other: Event) -> float:
        assert self.timing
        assert other.timing
        return other.at - self.at


def join(mine: Knowledge, other: Knowledge) -> None:
    """`mine` learns what `other` knows."""
    for stream, count in other.items():
        mine[stream] = max(mine.get(stream, 0), count)


def install(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that the CUDA streams of the trainer use from now on."""
    device = Device()

    def stream(_: Any = None, priority: int = 0) -> Stream:
        return Stream(device)

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: device.current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _=None: device.count("synchronize"))
    monkeypatch.setattr(torch._C, "_cuda_setStream", device.make_current, raising=False)
    monkeypatch.setattr(streams_cuda, "Event", lambda enable_timing=False: Event(device, enable_timing))
    return device
