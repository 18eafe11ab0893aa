"""A profile: what every operation costs on one kind of device. The simulator has no other source of time.

    profile = load_profile("h100")
    profile.kernel_s(KernelCall("gemm", (8192, 8192, 8192), "bf16", "nt"))

Shipped profiles stand in `calibration/profiles/`; `cpu` is measured by `windtunnel calibrate` and kept per machine in
the cache folder. Nothing here imports torch. Every returned time is multiplied by `time_factor`, so `scaled(3)` makes
all of them exactly three times as long and `scaled(0)` makes them zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from calibration import schema, tables
from calibration.collectives import CommCost, Fabric, Geometry
from calibration.frameworks import FRAMEWORKS, Framework
from calibration.host import HostCosts
from calibration.kernel_times import Coverage, KernelTimes, of_framework
from calibration.lookup import Line
from calibration.profile_paths import profile_path
from calibration.workspace import Workspace
from program import KernelCall
from program.errors import InputError
from program.files import parse_yaml, text_of
from program.ops import OPERATORS, bytes_of

STREAM_CLASS = {
    "compute": "compute", "tp": "comm", "dp": "comm", "send_fwd": "comm", "recv_fwd": "comm", "send_bwd": "comm",
    "recv_bwd": "comm", "h2d": "copy", "d2h": "copy", "cpu": "cpu", "disk": "disk",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoreSharing:
    """A synchronous CPU device: `cores` of the node shared by the ranks' compute threads (`threads_per_rank` each)
    and by communicating threads, each taking `communication_demand` of a core while its transfer runs.
    `busy_slowdown[class]` is how much longer a kernel takes while every other core computes too (memory, caches,
    clock), beyond losing cores."""

    cores: int
    threads_per_rank: int
    communication_demand: float
    busy_slowdown: dict[str, float]


@dataclass(frozen=True, slots=True)
class Allocator:
    """How the device's caching allocator rounds, and what the framework holds before the first tensor."""

    round_bytes: int
    small_limit_bytes: int
    small_segment_bytes: int
    large_segment_bytes: int
    segment_round_bytes: int
    context_bytes: int


@dataclass(frozen=True)
class Profile:
    """Costs of a device. All times in seconds, on a device that does nothing else; `contention` says what else
    costs. `priced_as`: the kind of kernels (`plan.kernels`) these prices are of; empty where the device has but one.
    `framework`: whose kernels they are instead."""

    name: str
    device: str
    file: schema.ProfileFile = field(repr=False)
    kernels: KernelTimes = field(repr=False, compare=False)
    fabric: Fabric = field(repr=False, compare=False)
    copies: dict[str, Line] = field(repr=False, compare=False)
    host: HostCosts = field(repr=False, compare=False)
    slowdowns: dict[tuple[str, str], float] = field(repr=False, compare=False)
    residuals: dict[str, float] = field(repr=False, compare=False)
    cores: CoreSharing | None
    allocator: Allocator
    threads: int = 0
    thread_counts: tuple[int, ...] = (0,)
    priced_as: str = ""
    framework: str = ""
    time_factor: float = 1.0
    _kernel_s: dict[KernelCall, float] = field(default_factory=dict, repr=False, compare=False)
    _issue_s: dict[KernelCall, float] = field(default_factory=dict, repr=False, compare=False)
    _comm: dict[tuple[str, int, str, Geometry, str], CommCost] = field(default_factory=dict, repr=False, compare=False)

    def kernel_s(self, call: KernelCall) -> float:
        """Time of `call.count` executions, each with its launch on the device. Raises InputError when the profile
        knows nothing of the call's class (GEMM, attention, memory)."""
        known = self._kernel_s.get(call)
        if known is None:
            try:
                known = self.kernels.seconds(call) * call.count * self.time_factor * self._sustained(call)
            except KeyError as error:
                raise InputError(f"profile {self.name}: {error.args[0]}") from None
            self._kernel_s[call] = known
        return known

    def _sustained(self, call: KernelCall) -> float:
        part = self.file.sustained
        return part.gemm if part is not None and kernel_class(call) == "gemm" else 1.0

    def covers(self, call: KernelCall) -> Coverage:
        """Whether the call is inside what was measured: for a forecast's warnings."""
        return self.kernels.covers(call)

    def host_issue_s(self, kind: str, body: Sequence[KernelCall] = ()) -> float:
        """Host time to issue one instruction of `kind` (an instruction kind such as F or AR, or compute, comm, copy)
        with the kernel calls of `body`."""
        base, per_kernel = self.host.instruction(kind)
        return (base + sum(self._call_issue_s(call, per_kernel) for call in body)) * self.time_factor

    def replay_s(self, body: Sequence[KernelCall] = ()) -> float:
        """Host time that an instruction adds to the launch of a graph it is captured in; 0 where none was measured
        (`prices_graphs`)."""
        nodes = max(1, sum(call.count for call in body))
        return (self.host.per_node_s or 0.0) * nodes * self.time_factor

    @property
    def prices_graphs(self) -> bool:
        """Whether the host's launch of a graph was measured."""
        return self.host.per_node_s is not None

    def _call_issue_s(self, call: KernelCall, per_kernel_s: float) -> float:
        """Host seconds to issue a call: what its entry says of an execution, else the host's time for a kernel. On a
        framework's host a fused operator is one launch, and an eager one as many as ours."""
        known = self._issue_s.get(call)
        if known is None:
            stated = self.kernels.find(call)[0].issue_s
            if self.host.framework and not self.framework:
                stated = stated * self.host.factor if stated is not None and self.priced_as == "eager" else None
            known = self._issue_s[call] = (per_kernel_s if stated is None else stated) * call.count
        return known

    def collective(self, op: str, bytes_: int, dtype: str, geometry: Geometry, algorithm: str = "auto") -> CommCost:
        """Cost of one collective (or send, recv, exchange) of `bytes_` of the full logical tensor, alone on its
        links."""
        key = (op, bytes_, dtype, geometry, algorithm)
        known = self._comm.get(key)
        if known is None:
            cost = self.fabric.cost(op, bytes_, dtype, geometry, algorithm)
            known = cost.scaled(self.time_factor)
            self._comm[key] = known
        return known

    def transfer(self, bytes_: int, same_node: bool, links: int = 1, geometry: Geometry | None = None) -> CommCost:
        """Cost of one point-to-point payload; `links` transfers share the node's NICs."""
        where = geometry or Geometry(2, 1 if same_node else 2, 0, links)
        return self.collective("send", bytes_, "*", where)

    def copy_s(self, kind: str, bytes_: int, link_bytes_per_s: float = math.inf) -> float:
        """Time of a copy h2d, d2h, disk_read or disk_write over a link that gives at most `link_bytes_per_s`. A CPU's
        device memory is its host's: there it is a `copy`. Raises InputError when the profile has none."""
        line = self.copies.get(kind)
        if line is None and self.device == "cpu":
            return self.kernel_s(KernelCall("copy", (-(-bytes_ // 4),), "fp32"))
        if line is None:
            raise InputError(f"profile {self.name} has no {kind} copies; it knows {', '.join(self.copies) or 'none'}")
        return max(line.seconds(bytes_), bytes_ / link_bytes_per_s) * self.time_factor

    def host_step_s(self, call: KernelCall, ranks: int) -> float:
        """Time of an optimizer's kernel call on the CPUs of a node while `ranks` of its ranks do the same; on a CPU
        device the kernel itself (the node shares its cores out). Raises InputError when nothing is known of it."""
        if self.device == "cpu":
            return self.kernel_s(call)
        if self.file.host_optimizer is None:
            raise InputError(
                f"profile {self.name} has no host_optimizer, the rate of AdamW on a node's CPUs; add the section, or "
                "set plan.offload.optimizer: none"
            )
        return bytes_of(call) * ranks / self.file.host_optimizer.bytes_per_s * self.time_factor

    def contention(self, stream: str, beside: str) -> float:
        """Slow-down (1 or more) of work on `stream` while `beside` is busy; 1 where nothing was measured."""
        for a in (stream, STREAM_CLASS.get(stream, stream)):
            for b in (beside, STREAM_CLASS.get(beside, beside)):
                if (a, b) in self.slowdowns:
                    return self.slowdowns[a, b]
        return 1.0

    def workspace(self, kernels: str) -> Workspace:
        """What operators hold while they run, under `plan.kernels`, and what a framework holds beside that."""
        return FRAMEWORKS[kernels].workspace if kernels in FRAMEWORKS else Workspace.of(self.file, kernels)

    def sigma(self, call: KernelCall) -> float:
        """Relative standard deviation of the price of `call`: see `KernelTimes.error_term`."""
        return self.kernels.error_term(call)[1]

    def kernel_error(self, call: KernelCall) -> tuple[str, float]:
        """(what its error goes together with, `sigma`) of a kernel call: calls of one class priced from one source are
        wrong together."""
        source, sigma = self.kernels.error_term(call)
        part = self.file.sustained
        if part is not None and kernel_class(call) == "gemm":
            sigma = math.hypot(sigma, part.sigma)
        return f"{kernel_class(call)}: {source}", sigma

    def comm_error(self, op: str, dtype: str, geometry: Geometry) -> tuple[str, float]:
        """The same of a communication."""
        source, sigma = self.fabric.error_term(op, dtype, geometry)
        return f"{'network' if geometry.nodes > 1 and self.fabric.network else 'links'}: {source}", sigma

    @property
    def card_sigma(self) -> float:
        """Relative standard deviation of one card's speed from the measured one's; 0 where nothing is said."""
        return self.file.cards.sigma if self.file.cards is not None else 0.0

    @property
    def contention_sigma(self) -> float:
        """Relative standard deviation of the slow-downs of work beside other work."""
        return max((part.sigma for part in self.file.contention), default=0.0)

    def for_threads(self, threads: int) -> Profile:
        """The same profile for ranks computing with `threads` threads: the nearest measured count. `threads` then
        says which."""
        if self.thread_counts == (0,):
            return self
        nearest = min(self.thread_counts, key=lambda count: (abs(count - threads), count))
        if nearest == self.threads:
            return self
        return replace(_build(self.file, nearest, self.priced_as), time_factor=self.time_factor)

    def for_kernels(self, kernels: str) -> Profile:
        """The same profile for a run whose `plan.kernels` is `kernels`; `priced_as` says which kind answers: the same
        same where it was measured, else the first of compiled, triton, eager that was. A framework's name gives its
        kernels (`framework` then says so)."""
        if kernels == self.framework:
            return self
        kinds = tables.kernel_kinds(self.file)
        kind = kernels if kernels in kinds else kinds[0] if kinds else self.priced_as
        ours = self
        if kind != self.priced_as or self.framework:
            ours = replace(_build(self.file, self.threads, kind), time_factor=self.time_factor)
        return ours._with_kernels_of(FRAMEWORKS[kernels]) if kernels in FRAMEWORKS else ours

    def of_a_framework(self) -> Profile:
        """The same profile for a run of another project's framework: its host launches kernels and collectives at the
        profile's `framework_host`. Itself where the profile says nothing of one."""
        part = self.file.framework_host
        if part is None or self.host.framework:
            return self
        residuals = self.residuals | {"host": part.sigma}
        return replace(self, host=self.host.of_a_framework(part), residuals=residuals, _issue_s={})

    def _with_kernels_of(self, framework: Framework) -> Profile:
        """The same profile with a framework's operators priced by its own launches and traffic, launched by its host;
        products stay, and attention unless it calls another."""
        theirs = self.of_a_framework()
        entries = tables.entries(self.file, self.threads, self.priced_as)
        eager = KernelTimes(tables.entries(self.file, self.threads, "eager"))
        one_pass = eager.find(KernelCall("add", (1,), "bf16"))[0]
        kernels = KernelTimes(of_framework(entries, one_pass, framework, theirs.host.per_kernel_s))
        return replace(theirs, kernels=kernels, framework=framework.name, _kernel_s={}, _comm={}, _issue_s={})

    @property
    def kernel_kinds(self) -> tuple[str, ...]:
        """The values of `plan.kernels` this profile prices apart; () when it does not tell them apart."""
        return tables.kernel_kinds(self.file)

    def scaled(self, factor: float) -> Profile:
        """The same device with every time multiplied by `factor`."""
        return replace(self, time_factor=self.time_factor * factor, _kernel_s={}, _comm={}, _issue_s={})

    @property
    def provenance(self) -> dict[str, schema.SourceFile]:
        """Where the numbers come from, by source name."""
        return self.file.sources

    @property
    def free_parameters(self) -> int:
        """Fitted numbers in the profile (measured points are data, not parameters)."""
        return sum(len(source.parameters) for source in self.file.sources.values())


def load_profile(name: str | Path, threads: int | None = None) -> Profile:
    """A shipped profile by name, `cpu` from this machine's cache, or a YAML file by path.

    `threads`: threads per rank of a CPU profile (the smallest measured count by default). Raises InputError.
    """
    path = profile_path(str(name))
    file = schema.check(parse_yaml(text_of(path), str(path)), str(name))
    counts, kinds = tables.thread_counts(file), tables.kernel_kinds(file)
    profile = _build(file, counts[0], kinds[0] if kinds else "")
    return profile if threads is None else profile.for_threads(threads)


def _build(file: schema.ProfileFile, threads: int, kernels: str) -> Profile:
    cores = None
    if file.cores is not None:
        part = file.cores
        cores = CoreSharing(part.cores, max(threads, 1), part.communication_demand, dict(part.busy_slowdown))
    return Profile(
        name=file.name,
        device=file.device,
        file=file,
        kernels=KernelTimes(tables.entries(file, threads, kernels)),
        fabric=tables.fabric(file),
        copies={part.kind: Line(part.launch_s, 1.0 / part.bytes_per_s) for part in file.copies},
        host=HostCosts.of(file),
        slowdowns={(part.slow, part.beside): part.factor for part in file.contention},
        residuals=_residuals(file, threads),
        cores=cores,
        allocator=Allocator(**file.allocator.model_dump(exclude={"source"})),
        threads=threads,
        thread_counts=tables.thread_counts(file),
        priced_as=kernels,
    )


def _residuals(file: schema.ProfileFile, threads: int) -> dict[str, float]:
    """Relative sigma by class: the median over the entries that hold for `threads`. Products priced from a data sheet
    speak of dtypes nobody measured and do not widen what is said of the others."""
    measured = [part for part in file.gemm if file.sources[part.source].kind != "data sheet"]
    groups: dict[str, list[float]] = {
        "gemm": [part.sigma for part in measured or file.gemm if part.threads in (0, threads)],
        "attention": [part.sigma for part in file.attention if part.threads in (0, threads)],
        "memory": [part.sigma for part in file.memory if part.threads in (0, threads)],
        "collective": [part.sigma for part in file.collectives if part.op != "send"],
        "transfer": [part.sigma for part in file.collectives if part.op == "send"],
        "network": [file.network.sigma] if file.network else [],
        "copy": [part.sigma for part in file.copies],
        "host_optimizer": [file.host_optimizer.sigma] if file.host_optimizer else [],
        "host": [part.sigma for part in file.host],
    }
    return {name: statistics.median(found) for name, found in groups.items() if found}


def kernel_class(call: KernelCall) -> str:
    """The residual class of a kernel call: gemm, attention or memory."""
    return OPERATORS[call.op].kind
