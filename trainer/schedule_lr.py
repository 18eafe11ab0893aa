"""The learning rate of a step: linear warm-up, then the way down to `min_lr`, as Megatron-LM's
optimizer_param_scheduler.py has it: linear, cosine, with the root of the step, or in the last steps alone (warm-up,
stable, decay)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

LEFT: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "exponential": lambda done: 2.0 * 0.5**done - 1.0,
    "minus-sqrt": lambda done: 1.0 - math.sqrt(done),
}
"""How much of the way is left where a share of the steps is done."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rates of a run: `lr` at its highest, `min_lr` from `decay_steps` on, unless it is constant. `wsd`
    goes down as `anneal` says in the last `anneal_steps` before `decay_steps`."""

    lr: float
    kind: Literal["constant", "linear", "cosine", "inverse-sqrt", "wsd"]
    warmup_steps: int
    decay_steps: int
    min_lr: float
    anneal_steps: int = 0
    anneal: str = "exponential"


def learning_rate(rate: Rate, step: int) -> float:
    """Rate of 0-based step `step`. Warm-up reaches `lr` at the end of `warmup_steps` (step w − 1 has the full rate)."""
    if step < rate.warmup_steps:
        return rate.lr * (step + 1) / rate.warmup_steps
    if rate.kind == "constant":
        return rate.lr
    if rate.kind == "inverse-sqrt":
        return max(rate.min_lr, rate.lr * math.sqrt(max(1, rate.warmup_steps) / (step + 1)))
    first = rate.decay_steps - rate.anneal_steps if rate.kind == "wsd" else rate.warmup_steps
    done = min(1.0, max(0.0, (step - first) / max(1, rate.decay_steps - first)))
    return rate.min_lr + (rate.lr - rate.min_lr) * LEFT[rate.anneal if rate.kind == "wsd" else rate.kind](done)
