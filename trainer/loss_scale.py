"""The loss scale of a run in fp16: halved when gradients overflow, doubled after a while without.

    scaling = LossScaling(Scaling(65536.0, window=1000, hysteresis=2, floor=1.0))
    scaling.update(finite)       # after each step; False where the scale can go no lower
    scaling.scale                # of the next step

As Megatron-LM's DynamicGradScaler and DeepSpeed's DynamicLossScaler do it: the first `hysteresis` − 1 overflows are
forgiven, each further one halves the scale down to `floor`; `window` steps without one double it and forgive again.
Every rank sees the same norm, which is reduced over all, so every rank has the same scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scaling:
    """A scale to begin with, and how it changes by a `factor`; with `window` 0 it does not."""

    initial: float
    window: int
    hysteresis: int
    floor: float
    factor: float = 2.0


@dataclass(slots=True)
class LossScaling:
    """The scale as it is now."""

    given: Scaling
    scale: float = field(init=False)
    _fine: int = 0  # steps since the last overflow, or the last doubling
    _forgiven: int = 0

    def __post_init__(self) -> None:
        self.scale = self.given.initial

    def update(self, finite: bool) -> bool:
        """A step's gradients were `finite`, or overflowed. False where that is no matter of the scale: it is at its
        floor."""
        if finite:
            self._fine += 1
            if self._fine == self.given.window:
                self.scale, self._fine, self._forgiven = self.scale * self.given.factor, 0, 0
            return True
        self._fine = 0
        if self.given.window == 0 or self.scale <= self.given.floor:
            return False
        self._forgiven += 1
        if self._forgiven >= self.given.hysteresis:
            self.scale = max(self.scale / self.given.factor, self.given.floor)
        return True
