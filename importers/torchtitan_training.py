"""Optimizer, schedule, steps and checkpoints of a torchtitan configuration."""

from collections.abc import Mapping
from typing import Any

from importers.torchtitan_values import on, whole
from plan.ledger import Ledger


def training_sections(keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The sections that say how long and at which rate; torchtitan's defaults where a key is not given."""
    name = str(keys.get("optimizer.name", "AdamW"))
    if name.lower() not in ("adamw", "adam"):
        ledger.not_yet(f"the optimizer {name}", "AdamW")
    rate = ledger.number(keys.get("optimizer.lr", 8e-4), "optimizer.lr")
    steps = whole(keys, "training.steps", ledger) or 10000
    warmup = whole(keys, "lr_scheduler.warmup_steps", ledger)
    factor = ledger.number(keys.get("lr_scheduler.min_lr_factor", 0.0), "lr_scheduler.min_lr_factor")
    decay = str(keys.get("lr_scheduler.decay_type", "linear"))
    if decay == "sqrt":
        ledger.warn("lr_scheduler.decay_type sqrt changes the loss, not the step time; a constant rate is taken")
    schedule = {
        "kind": decay if decay in ("linear", "cosine") else "constant",
        "warmup_steps": min(200 if warmup is None else warmup, steps - 1),
        "decay_steps": steps,
        "min_lr": (rate or 0) * (factor or 0),
    }
    betas = [
        ledger.number(keys.get(f"optimizer.beta{i}", value), f"optimizer.beta{i}") for i, value in ((1, 0.9), (2, 0.95))
    ]
    optimizer = {
        "name": "adamw",
        "lr": rate,
        "betas": betas,
        "eps": ledger.number(keys.get("optimizer.eps", 1e-8), "optimizer.eps"),
        "weight_decay": ledger.number(keys.get("optimizer.weight_decay", 0.1), "optimizer.weight_decay"),
        "clip_norm": ledger.number(keys.get("training.max_norm", 1.0), "training.max_norm"),
        "schedule": schedule,
    }
    run: dict[str, Any] = {"optimizer": optimizer, "train": {"steps": steps}}
    seed = keys.get("debug.seed", keys.get("training.seed"))
    if seed is not None:
        run["train"]["seed"] = ledger.integer(seed, "seed")
    if on(keys, "checkpoint.enable", ledger) and "checkpoint.interval" in keys:
        run["checkpoint"] = {"every": ledger.integer(keys["checkpoint.interval"], "checkpoint.interval")}
    return run
