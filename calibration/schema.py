"""The profile file, checked at the edge: every key known, every number finite and not negative, every source named.

A profile is YAML. `sources` says where numbers come from; every entry names one. Times are seconds, sizes bytes,
rates FLOP/s or bytes/s. `threads` 0 means any (a GPU); a CPU profile has entries for each thread count that was
measured. `kernels` of a kernel entry says under which `plan.kernels` it holds (`*`: under each): a GPU profile may
hold eager, compiled and fused operators side by side. `tables` turns the checked file into the frozen tables lookups
read. Raises program.errors.InputError naming every bad number by its path in the file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from program.errors import InputError
from program.nearest import did_you_mean, shown
from program.ops import OPERATORS

Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-18, le=1e24, allow_inf_nan=False)]  # what follows from two such is finite
Known = Annotated[float, Field(ge=0, le=1e24, allow_inf_nan=False)]
Sigma = Annotated[float, Field(ge=0, le=4, allow_inf_nan=False)]  # over 120 octaves e^x still is a number
Factor = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Some = Annotated[int, Field(ge=1, le=10**12)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceFile(_Part):
    """Where numbers come from. `rows`: ids of published rows; `parameters`: what was fitted on them; `residuals`: how
    well."""

    kind: Literal["measured", "published", "derived", "data sheet"]
    text: str
    rows: list[str] = []
    date: str = ""
    parameters: dict[str, Known] = {}
    residuals: dict[str, Known] = {}


class _Sourced(_Part):
    source: str
    sigma: Sigma = 0.0  # relative standard deviation of measured / predicted


class _Kernel(_Sourced):
    """`issue_s`: host seconds to issue one execution (None: `per_kernel_s` of the host)."""

    dtype: str = "*"
    threads: Count = 0
    kernels: Literal["*", "eager", "compiled", "triton"] = "*"
    issue_s: Time | None = None


class TileFile(_Part):
    m: Some
    n: Some
    share: Positive


class GemmFormFile(_Part):
    """`units` 0: additive roofline; else tiles in waves over that many multiprocessors."""

    launch_s: Time
    flops_per_s: Positive
    bytes_per_s: Positive
    units: Count = 0
    prologue_k: Time = 0.0
    tiles: list[TileFile] = []


class GemmFile(_Kernel):
    """Points are [batch, m, n, k, seconds]."""

    op: Literal["gemm", "bmm"] = "gemm"
    layout: str = "*"
    form: GemmFormFile
    points: list[tuple[Positive, Positive, Positive, Positive, Positive]] = []


class AttentionFormFile(_Part):
    launch_s: Time
    flops_per_s: Positive
    short_s: Time = 0.0
    narrow_d: Time = 0.0
    units: Count = 0
    block_rows: Some = 128


class AttentionFile(_Kernel):
    """Points are [b, heads, kv_heads, s, d, seconds]."""

    op: Literal["attention_forward", "attention_backward"]
    variant: str = "*"
    form: AttentionFormFile
    points: list[tuple[Positive, Positive, Positive, Positive, Positive, Positive]] = []


class MemoryFile(_Kernel):
    """launch_s + bytes / bytes_per_s; points are [bytes, seconds]. `op: "*"` is the fit of the whole class."""

    op: str
    variant: str = "*"
    launch_s: Time
    bytes_per_s: Positive
    points: list[tuple[Positive, Positive]] = []


class CollectiveFile(_Sourced):
    """Inside a node. Points are [bytes of the full tensor, seconds]; the line covers what they do not. `delay_s` and
    `delay_beside_s`: mean seconds beyond the points that a collective of threads waits for a core, when its ranks wait
    for it and while they compute (a CPU; 0 where a device runs its own queue)."""

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "exchange"]
    dtype: str = "*"
    ranks: Annotated[int, Field(ge=2, le=10**6)]
    step_latency_s: Time
    bus_bytes_per_s: Positive
    delay_s: Time = 0.0
    delay_beside_s: Time = 0.0
    points: list[tuple[Positive, Positive]] = []


class WiresFile(_Part):
    gpu_link_bytes_per_s: Positive
    nic_bytes_per_s: Positive
    nics: Some
    nic_latency_s: Time


class NetworkFile(_Sourced):
    efficiency: Positive
    step_latency_s: Time | None = None
    tree_latency_s: Time | None = None
    tree_pipeline: Time = 0.0
    pair_nics: Positive = 1.0
    reference: WiresFile


class WorkspaceFile(_Sourced):
    """Temporaries that an operator has alive at once, over its least bytes, of 16-bit calls."""

    op: str
    kernels: Literal["eager", "compiled", "triton"]
    ratio: Time


class CopyFile(_Sourced):
    kind: Literal["h2d", "d2h", "disk_read", "disk_write"]
    launch_s: Time
    bytes_per_s: Positive


class HostOptimizerFile(_Sourced):
    """AdamW on the CPUs of a node, all its ranks stepping at once: bytes the step must move over its time."""

    bytes_per_s: Positive


class HostFile(_Sourced):
    """Host time to issue one instruction: base + kernels x per_kernel. `kind: "*"` is the default; GRAPH is the launch
    of a captured step, per_kernel for each of its nodes."""

    kind: str
    base_s: Time
    per_kernel_s: Time = 0.0


class FrameworkHostFile(_Sourced):
    """Host time of a framework whose host is Python modules and an autograd graph: for each kernel that it launches
    (forward and backward alike, everything around them included), and for each call of a collective."""

    per_kernel_s: Time
    per_collective_s: Time


class ContentionFile(_Sourced):
    """`slow` runs `factor` times slower while `beside` runs. Stream classes: compute, comm, copy, or a stream's
    name."""

    slow: str
    beside: str
    factor: Factor


class CardsFile(_Sourced):
    """How much cards of one kind differ from the one that was measured, by `sigma` alone: made, cooled and powered
    otherwise."""


class SustainedFile(_Sourced):
    """How many times longer a GEMM takes in a long run than in the short ones its points are of: a device at its power
    limit clocks down."""

    gemm: Factor


class CoresFile(_Sourced):
    """How ranks share a CPU: cores of the node, the share of a core a rank's communicating thread takes while a
    transfer runs, and how much a class of kernels slows when every core computes."""

    cores: Some
    communication_demand: Time
    busy_slowdown: dict[str, Factor] = {}


class AllocatorFile(_Part):
    """How the caching allocator rounds; `source` says where `context_bytes` is from."""

    source: str = ""
    round_bytes: Some = 512
    small_limit_bytes: Count = 2**20
    small_segment_bytes: Count = 2 * 2**20
    large_segment_bytes: Count = 20 * 2**20
    segment_round_bytes: Some = 2 * 2**20
    context_bytes: Count = 0


class MemoryErrorFile(_Part):
    """How far memory of a real run may lie from the forecast: shares `below` and `above` of what the allocator holds,
    most bytes that the buffers of a communicator take outside of it, and the share `host_above` of what is offloaded
    to a node."""

    source: str
    below: Time
    above: Time
    communicator_bytes: Count
    host_above: Time


class ProfileFile(_Part):
    """One profile."""

    name: str
    device: Literal["cuda", "cpu"]
    date: str = ""
    versions: dict[str, str] = {}
    machine: dict[str, str | int | float] = {}
    probe: dict[str, Positive] = {}
    sources: dict[str, SourceFile]
    gemm: list[GemmFile] = []
    attention: list[AttentionFile] = []
    memory: list[MemoryFile] = []
    workspace: list[WorkspaceFile] = []
    collectives: list[CollectiveFile] = []
    network: NetworkFile | None = None
    copies: list[CopyFile] = []
    host: list[HostFile] = []
    framework_host: FrameworkHostFile | None = None
    host_optimizer: HostOptimizerFile | None = None
    contention: list[ContentionFile] = []
    sustained: SustainedFile | None = None
    cards: CardsFile | None = None
    cores: CoresFile | None = None
    allocator: AllocatorFile = AllocatorFile()
    memory_error: MemoryErrorFile | None = None

    @model_validator(mode="after")
    def _names(self) -> ProfileFile:
        parts: list[_Sourced | None] = [*self.gemm, *self.attention, *self.memory, *self.collectives, *self.copies]
        parts += [*self.host, *self.contention, self.network, self.sustained, self.cores, self.host_optimizer]
        parts += [*self.workspace, self.framework_host, self.cards]
        named = [part.source for part in [*parts, self.memory_error] if part is not None]
        for source in [*named, *([self.allocator.source] if self.allocator.source else [])]:
            if source not in self.sources:
                hint = did_you_mean(source, list(self.sources))
                raise ValueError(f"source {source!r} is not under `sources`; {hint}")
        for op in (*(entry.op for entry in self.memory), *(entry.op for entry in self.workspace)):
            if op != "*" and op not in OPERATORS:
                raise ValueError(f"unknown operator {op!r}; {did_you_mean(op, list(OPERATORS))}")
        return self


def check(data: Any, where: str) -> ProfileFile:
    """The checked file. `where` names it in messages."""
    if not isinstance(data, dict):
        keys = ", ".join(ProfileFile.model_fields)
        raise InputError(f"{where} is empty or not a mapping; a profile has the keys {keys}")
    try:
        return ProfileFile.model_validate(data)
    except ValidationError as error:
        raise InputError(_sentence(problem, where) for problem in error.errors()) from None


def _sentence(problem: Any, where: str) -> str:
    path = ""
    for step in problem["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"{where}: {path}: unknown key; {did_you_mean(str(problem['loc'][-1]), list(ProfileFile.model_fields))}"
    if kind == "missing":
        return f"{where}: {path}: the key is missing"
    if kind in ("finite_number", "greater_than_equal", "greater_than", "less_than_equal"):
        return (
            f"{where}: {path}: {shown(value)} is not a finite number {_bound(problem)}; measure again or drop the entry"
        )
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {path}: {message}" if path else f"{where}: {message}"


def _bound(problem: Any) -> str:
    limits = problem.get("ctx") or {}
    if "le" in limits:
        return f"of at most {limits['le']:g}"
    return f"above {limits['gt']:g}" if "gt" in limits else f"at least {limits.get('ge', 0):g}"
