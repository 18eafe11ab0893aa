"""How the host waits for a device's event, without a device: it asks at once and again, sleeps only later, and not for
ever.
"""

import time

import pytest
import torch

from trainer.streams import StreamError
from trainer.streams_cuda import SPIN_S, CudaStreams


class _Event:
    """Happens `after_s` from the first time it is asked for."""

    def __init__(self, after_s: float) -> None:
        self.after_s, self.asked_s = after_s, 0.0

    def query(self) -> bool:
        self.asked_s = self.asked_s or time.monotonic()
        return time.monotonic() - self.asked_s >= self.after_s


def _waiting(after_s: float, bound_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps of a host that waits at most `bound_s` for such an event."""
    slept: list[float] = []
    rest = time.sleep
    monkeypatch.setattr("trainer.streams_cuda.time.sleep", lambda s: (slept.append(s), rest(s))[1])
    streams = CudaStreams.__new__(CudaStreams)
    streams.rank, streams.wait_s = 3, bound_s
    event: torch.cuda.Event = _Event(after_s)  # type: ignore[assignment]
    streams._wait(event, "B I0.1 head")
    return slept


def test_a_short_wait_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _waiting(SPIN_S / 20, 1.0, monkeypatch) == []


def test_a_long_wait_leaves_the_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(_waiting(20 * SPIN_S, 10.0, monkeypatch)) > 5


def test_a_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamError, match=r"rank 3: waited 0\.01 s for the device to finish B I0\.1 head"):
        _waiting(60.0, 0.01, monkeypatch)
