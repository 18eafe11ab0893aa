"""One of the two runs that the gate judges: its comparison with its forecast, and what it measured in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from program.timeline import Header
from reports.check_spread import Floats
from reports.compare import Comparison
from reports.measured import warm_up_steps


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does in a step: its ranks, its tokens, and the time one device would take according to the twin."""

    world: int
    tokens: int
    one_device_s: float | None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: held against its forecast, with what it measured in order."""

    comparison: Comparison
    work: Work
    times_s: Sequence[float]
    """Every step, warm-up included."""
    class_s: Mapping[str, Floats]
    """Seconds of each operation class, [instructions, recorded steps] (reports.check_classes)."""
    header: Header

    @property
    def kept_s(self) -> Sequence[float]:
        """The steps after warm-up."""
        return self.times_s[warm_up_steps(len(self.times_s)) :]

    def recorded(self, name: str) -> int:
        """Steps in which a class was recorded."""
        return self.class_s[name].shape[1] if name in self.class_s else 0
