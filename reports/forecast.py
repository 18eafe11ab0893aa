"""The forecast of a run as one record: what `windtunnel forecast --json` prints, key by key.

A simulation says how long a step takes and where memory peaks; this file adds what follows by arithmetic: throughput,
MFU and HFU under a named FLOP convention, whether it fits, and what the whole job costs. It invents no number:
prices come from the run, peaks from the data sheet in the cluster preset, times and bytes from the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from reports.described import DESCRIBED


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of one pipeline stage at the moment of its peak, GiB; the parts sum to the peak."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    stage: int
    peak_gib: float
    """Bytes of live tensors at the peak, as the allocator rounds them."""
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    buffers_gib: float
    """Slots for gathered and communicated tensors."""
    workspace_gib: float
    """Kernel workspaces and temporaries alive at the peak."""
    framework_gib: float
    """What the allocator's rounding adds; the device context is apart, in `context_gib`."""
    peak_at: str
    """The instruction during which the peak stands."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory of the fullest rank, and what the hosts hold."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    peak_allocated_gib: float
    """Most bytes of live tensors at once."""
    peak_reserved_gib: float
    """Most bytes the caching allocator holds."""
    context_gib: float
    """Device context and libraries, outside the allocator; NCCL's buffers are not in it."""
    capacity_gib: float
    fits: bool
    """Reserved plus context is at most the capacity, and what is offloaded at most the host's."""
    borderline: bool
    """A capacity lies inside the interval of what a real run may hold: some such runs fit and some do not."""
    interval_gib: tuple[float, float]
    """What a real run may hold of the device, context and NCCL's buffers included."""
    per_stage: tuple[Stage, ...]
    host_gib: float
    """Memory of a node's host used by the job."""
    host_interval_gib: tuple[float, float]
    host_capacity_gib: float
    """What a node's host has for it (a cpu cluster: what its ranks leave)."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Where a step goes: exclusive critical time as fractions of the step, mean over ranks; they sum to 1."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    compute: float
    recompute: float
    optimizer: float
    bubble: float
    """Idle because the pipeline has nothing for the stage to do."""
    exposed_tensor: float
    """Tensor-parallel communication that nothing hides."""
    exposed_pipeline: float
    exposed_data: float
    exposed_offload: float
    skew: float
    """Waiting for a late member of a collective."""
    host: float
    """The device waits for its next instruction to be issued."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The whole job: the token budget if the run has one, else its steps."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    steps: int
    gpu_hours: float
    usd: float
    days: float


@dataclass(frozen=True, slots=True)
class PriceDoubt:
    """Costs of one kind from one source."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    what: str
    """Kind and source, as in the profile."""
    share: float
    """Of the step's critical time."""
    sigma: float
    """Relative standard deviation of their price."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the file leaves open, and how it was decided."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    subject: str
    value: str
    flag: str
    """What changes it, in the words of the user's file."""
    moves: str
    """What would be forecast otherwise."""


@dataclass(frozen=True, slots=True)
class Remedied:
    """A change of a run that does not fit, forecast as the changed run."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    change: str
    set: tuple[str, ...]
    """What to give `--set`."""
    words: str
    """The change in the words of an imported file; empty where it has none."""
    peak_gib: float
    """Reserved and context, of the fullest rank."""
    step_time_s: float
    fits: bool
    borderline: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would take."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    assumptions: tuple[Assumed, ...]
    step_time_s: float
    step_time_interval_s: tuple[float, float]
    """[low, high], first order: what the profile says of the error of this run's own prices, times their share."""
    step_time_interval_level: float
    """Share of real steps the interval is meant to hold; `windtunnel validate` says what share of published ones it
    did."""
    doubts: tuple[PriceDoubt, ...]
    """What the interval is made of, largest part first. Errors of one group go together, groups are independent."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    """FLOPs the mathematics needs, per second and GPU."""
    hardware_tflops_per_gpu: float
    """FLOPs executed, recompute included."""
    mfu: float | None
    """Model FLOPs over the data sheet's dense peak at the run's precision; null where no data sheet states one
    (cpu)."""
    hfu: float | None
    flop_convention: str
    """exact (causal attention at half) | megatron | palm."""
    peak_tflops_per_gpu: float | None
    """The data sheet's dense peak at the run's precision; on a CPU the best GEMM rate in the profile."""
    parameters: int
    gpus: int
    memory: Memory
    time: TimeShares
    cost: Cost
    warnings: tuple[str, ...]
    """What to look at: what the profile had to extrapolate or derive, and what an importer could not carry over."""
    notes: tuple[str, ...]
    """How an importer translated the file, and what the plan asked for that came out in whole pieces."""
    not_modelled: tuple[str, ...]
    """What the forecast leaves out."""
    remedies: tuple[Remedied, ...]
    """Changes of a run that does not fit, in the order a trainer tries them."""
    advice: tuple[str, ...]
    """What holds of all of them."""
    run: dict[str, Any]
    """As resolved: a run file that loads to the same run."""
    profile: str
    profile_hash: str
    program_hash: str


def utilisation(tflops: float, peak_tflops: float | None) -> float | None:
    """Share of the peak, or None where there is no peak to share."""
    return tflops / peak_tflops if peak_tflops else None


def cost_of(step_time_s: float, steps: int, gpus: int, price_per_gpu_hour: float) -> Cost:
    """GPU-hours, money and days of `steps` steps without a failure."""
    hours = step_time_s * steps / 3600
    return Cost(steps, hours * gpus, hours * gpus * price_per_gpu_hour, hours / 24)


def steps_of(tokens: float | None, tokens_per_step: int, steps: int) -> int:
    """Steps that train on `tokens`, rounded up; without a token budget the steps of the run."""
    return steps if tokens is None else -(-int(tokens) // tokens_per_step)


SEVERAL_NODES = (
    "stragglers and a fabric that others share: published weak-scaling runs lose 2 to 15 % from 2 to 32 nodes"
)
NOT_MODELLED: Sequence[str] = (
    "failures, restarts and checkpoints",
    "device memory of NCCL's buffers (0.9 to 1.8 GB a communicator in NVIDIA/nccl issue 864)",
    "evaluation, data loading and start-up",
    "clock and temperature changes beyond what the profile measured",
    "other jobs on the same machines or network",
)
