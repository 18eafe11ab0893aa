"""What `--json` prints for the commands that are not a report: their keys, described. `windtunnel.publish` makes
JSON schemas of these and of the records in `reports/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from reports.described import DESCRIBED
from reports.forecast import Assumed


@dataclass(frozen=True, slots=True)
class Problems:
    """What was wrong with the input, all of it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Error:
    """Printed by any command that ends in exit 2 (wrong input) or 3 (a fault of Windtunnel)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    error: Problems


@dataclass(frozen=True, slots=True)
class Trained:
    """`windtunnel train`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    run_dir: str
    steps: int
    first_loss: float | None
    last_loss: float | None
    step_time_s: float
    """Median over the steps after warm-up."""
    step_time_quartiles_s: tuple[float, float]
    tokens_per_s: float
    program_hash: str


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`windtunnel calibrate`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    path: str
    """The profile file that was written."""
    profile: str
    profile_hash: str
    """SHA-256 of the file."""
    seconds: float
    residuals: dict[str, float]
    """Relative standard deviation of measured / fitted, by class."""


@dataclass(frozen=True, slots=True)
class KernelCallResult:
    """An operator on a shape."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    op: str
    shape: tuple[int, ...]
    dtype: str
    variant: str
    count: int


@dataclass(frozen=True, slots=True)
class CommResult:
    """A communication; members meet by (role, channel, seq)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    op: str
    role: str
    bytes: int
    """Of the full logical tensor."""
    dtype: str
    channel: str
    reduce: str
    algorithm: str
    seq: int


@dataclass(frozen=True, slots=True)
class InstructionResult:
    """One instruction of a rank's step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    id: int
    label: str
    phase: str
    kind: str
    micro: int
    unit: int
    piece: str
    stream: str
    waits: tuple[int, ...]
    """Instructions of other streams that must have finished."""
    body: tuple[KernelCallResult, ...]
    comm: CommResult | None
    transient_bytes: int
    """Workspace while it runs."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Instructions compiled once."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    instructions: int
    net_bytes: int
    """What a call leaves allocated."""
    peak_bytes: int
    """The highest it adds on the way."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """`windtunnel program`: the step program of one rank."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    program_hash: str
    rank: int
    world: int
    stage: int
    degrees: dict[str, int]
    rules: dict[str, str]
    """What the implementation chose, in words."""
    groups: dict[str, tuple[int, ...]]
    """The ranks this rank communicates with, by role."""
    resident_bytes: int
    """Weights, gradients, optimizer state and fixed slots."""
    blocks: tuple[BlockResult, ...]
    instructions: tuple[InstructionResult, ...]
    """In host issue order."""


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """`windtunnel program --csv`: the pipeline schedule of all stages."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    program_hash: str
    schedule: tuple[tuple[str, ...], ...]
    """One list a pipeline rank, cells `<stage><F|B|I|W><micro-batch>`."""


@dataclass(frozen=True, slots=True)
class Imported:
    """`windtunnel import`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    run: dict[str, Any]
    """As resolved: a run file that loads to the same run."""
    assumptions: tuple[Assumed, ...]
    notes: tuple[str, ...]
    """How the importer translated the file."""
    warnings: tuple[str, ...]
    """What it could not carry over, and what to look at."""
    written: str | None


@dataclass(frozen=True, slots=True)
class Exported:
    """`windtunnel export`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    framework: str
    script: str
    written: str | None


@dataclass(frozen=True, slots=True)
class Residual:
    """An operation class of a compared run."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    predicted_s: float
    measured_s: float
    error: float | None


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the demo: forecast, trained and compared."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    run_dir: str
    steps: int
    """Measured steps after warm-up."""
    predicted_s: float
    measured_s: float
    measured_quartiles_s: tuple[float, float]
    error: float
    """(predicted − measured) / measured."""
    worst: tuple[Residual, ...]
    """The operation classes with the largest differences."""


@dataclass(frozen=True, slots=True)
class Demo:
    """`windtunnel demo`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    folder: str
    profile: str
    profile_hash_before: str
    """SHA-256 of the profile before the second run was forecast."""
    profile_hash_after: str
    """The same after everything: the second run was forecast from an unchanged profile."""
    seconds: float
    load_average: float
    """Before the demo began: above about 0.5, other work shared the cores and the measured times include it."""
    runs: tuple[DemoRun, ...]
