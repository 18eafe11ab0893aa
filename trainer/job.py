"""What a rank is told beside its program: for how long, from which seed, at which learning rates it trains, and what it
writes about the run. Nothing here says what a step does; that is the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from program.cluster import Cluster
from trainer.loss_scale import Scaling
from trainer.schedule_lr import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as its ranks see it. `cluster` says which devices they use and with how many threads; `records(step)` says
    whether a 0-based step is recorded; `scaling` how the loss scale goes, where there is one; `nonfinite` what a loss
    or norm that is not finite does. What a log says of it: the model's `name` and `parameters`, FLOPs and tokens of a
    step over all ranks, and the job's dense peak in FLOP/s (None where no data sheet states one). `run` is the header
    of its timelines, plain values; ranks compare it. `marks`: instructions and recorded steps are marked for a profiler
    (`trainer.marks`)."""

    cluster: Cluster
    steps: int
    seed: int
    rate: Rate
    scaling: Scaling | None
    nonfinite: Literal["stop", "skip", "continue"]
    records: Callable[[int], bool]
    name: str
    parameters: int
    flops_per_step: float
    tokens_per_step: int
    peak_flops: float | None
    run: Mapping[str, Any] = field(repr=False)
    marks: bool = False
