"""The learning rate of a step: linear warm-up, then constant, linear or cosine down to `min_lr` at `decay_steps`."""

from __future__ import annotations

import math

from plan.run import Optimizer


def learning_rate(optimizer: Optimizer, step: int) -> float:
    """Rate of 0-based step `step`. Warm-up reaches `lr` at the end of `warmup_steps` (step w − 1 has the full rate)."""
    schedule = optimizer.schedule
    if step < schedule.warmup_steps:
        return optimizer.lr * (step + 1) / schedule.warmup_steps
    if schedule.kind == "constant":
        return optimizer.lr
    span = max(1, schedule.decay_steps - schedule.warmup_steps)
    done = min(1.0, (step - schedule.warmup_steps) / span)
    left = 1.0 - done if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.min_lr + (optimizer.lr - schedule.min_lr) * left
