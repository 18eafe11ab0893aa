"""What a run file leaves open: keys whose default moves a forecast, each with the override that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan.ledger import Assumption
from plan.run import Run

MEMORY, TIME, BOTH = "memory", "step time", "memory and step time"
# key of `plan:`, what it decides, another value to ask about, what it moves
OPEN = (
    ("precision", "precision", "fp16", BOTH),
    ("attention", "attention", "unfused", BOTH),
    ("recompute", "recompute", "full", BOTH),
    ("global_batch_size", "global batch", "N", "step time, accumulation"),
    ("micro_batch_size", "micro-batch", "N", BOTH),
    ("zero_stage", "ZeRO stage", "N", BOTH),
    ("kernels", "kernels", "eager", BOTH),
)


def left_open(raw: Mapping[str, Any], run: Run) -> list[Assumption]:
    """The assumptions of a run file `raw`, which was resolved to `run`."""
    given = raw.get("plan") or {}
    resolved = run.to_dict()["plan"]
    found = []
    for key, subject, other, moves in OPEN:
        if given.get(key, "auto") == "auto":
            value = str(resolved[key])
            flag = f"--set plan.{key}={other if other != value else 'N'}"
            found.append(Assumption(subject, value, flag, moves))
    return found
