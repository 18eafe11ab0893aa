"""A profile made of simple rules, so that tests know every time by heart; and hand-made one-rank programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from calibration.collectives import CommCost, Geometry, steps, wire_factor
from calibration.profile import Allocator, CoreSharing
from calibration.workspace import NOTHING, Workspace
from program import KernelCall
from program.ops import OPERATORS, bytes_of, flops_of

ALLOCATOR = Allocator(512, 2**20, 2 * 2**20, 20 * 2**20, 2 * 2**20, 300 * 2**20)


@dataclass(frozen=True)
class Covered:
    """Everything is inside the tables."""

    inside: bool = True


@dataclass
class FakeProfile:
    """FLOPs at `flops_per_s`, bytes at `bytes_per_s`, alpha-beta rings; every number may be set."""

    name: str = "fake"
    flops_per_s: float = 2e14
    bytes_per_s: float = 1.5e12
    launch_s: float = 2e-6
    issue_s: float = 5e-6
    wake_s: float = 0.0
    replayed_s: float = 0.0
    alpha_s: float = 3e-6
    bus_bytes_per_s: float = 2e11
    nic_bytes_per_s: float = 2e10
    copy_bytes_per_s: float = 2e10
    host_bytes_per_s: float = 5e10
    delay_s: float = 0.0
    delay_beside_s: float = 0.0
    factors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cores: CoreSharing | None = None
    allocator: Allocator = ALLOCATOR
    residuals: Mapping[str, float] = field(default_factory=lambda: {"gemm": 0.03, "collective": 0.1, "host": 0.2})
    factor: float = 1.0
    card_sigma: float = 0.0

    def kernel_s(self, call: KernelCall) -> float:
        one = self.launch_s * call.count + flops_of(call) / self.flops_per_s + bytes_of(call) / self.bytes_per_s
        return one * self.factor

    def host_issue_s(self, kind: str, body: Sequence[KernelCall] = ()) -> float:
        launches = 1 + sum(call.count for call in body)
        return (self.wake_s if kind == "wake" else self.issue_s * launches) * self.factor

    def replay_s(self, body: Sequence[KernelCall] = ()) -> float:
        return self.replayed_s * max(1, sum(call.count for call in body)) * self.factor

    def collective(self, op: str, bytes_: int, dtype: str, geometry: Geometry, algorithm: str = "auto") -> CommCost:
        n = geometry.ranks
        if n < 2:
            return CommCost(0.0, 0.0, 0.0)
        rate = self.bus_bytes_per_s if geometry.nodes == 1 else 8 * self.nic_bytes_per_s / geometry.links
        moved = wire_factor(op, n) * bytes_
        alpha_s = steps(op, n) * self.alpha_s
        return CommCost(alpha_s, moved / rate, moved, self.delay_s, self.delay_beside_s).scaled(self.factor)

    def copy_s(self, kind: str, bytes_: int, link_bytes_per_s: float = float("inf")) -> float:
        return bytes_ / min(self.copy_bytes_per_s, link_bytes_per_s) * self.factor

    def host_step_s(self, call: KernelCall, ranks: int) -> float:
        return bytes_of(call) * ranks / self.host_bytes_per_s * self.factor

    def contention(self, stream: str, beside: str) -> float:
        return self.factors.get((stream, beside), 1.0)

    def covers(self, call: KernelCall) -> Covered:
        return Covered()

    def kernel_error(self, call: KernelCall) -> tuple[str, float]:
        return f"{OPERATORS[call.op].kind}: fake", self.residuals.get(OPERATORS[call.op].kind, 0.0)

    def comm_error(self, op: str, dtype: str, geometry: Geometry) -> tuple[str, float]:
        return "links: fake", self.residuals.get("collective", 0.0)

    @property
    def contention_sigma(self) -> float:
        return 0.0

    def for_kernels(self, kernels: str) -> FakeProfile:
        return self

    def workspace(self, kernels: str) -> Workspace:
        """Kernels hold nothing here."""
        return NOTHING

    def of_a_framework(self) -> FakeProfile:
        """Every host costs the same here."""
        return self

    def for_threads(self, threads: int) -> FakeProfile:
        return self

    def scaled(self, factor: float) -> FakeProfile:
        from dataclasses import replace

        return replace(self, factor=self.factor * factor)
