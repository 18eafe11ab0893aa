"""The learning rate of a step: linear warm-up, then constant, linear or cosine down to `min_lr` at `decay_steps`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rates of a run: `lr` at its highest, `min_lr` from `decay_steps` on, unless it is constant."""

    lr: float
    kind: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    decay_steps: int
    min_lr: float


def learning_rate(rate: Rate, step: int) -> float:
    """Rate of 0-based step `step`. Warm-up reaches `lr` at the end of `warmup_steps` (step w − 1 has the full rate)."""
    if step < rate.warmup_steps:
        return rate.lr * (step + 1) / rate.warmup_steps
    if rate.kind == "constant":
        return rate.lr
    span = max(1, rate.decay_steps - rate.warmup_steps)
    done = min(1.0, (step - rate.warmup_steps) / span)
    left = 1.0 - done if rate.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return rate.min_lr + (rate.lr - rate.min_lr) * left
