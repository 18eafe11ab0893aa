"""What issuing work costs the host, by kind of instruction; and the host of another project's framework.

Ours issues instructions: a base for each, and something for each kernel. A framework's host walks modules and an
autograd graph: each kernel and each collective has one price that holds all of it, and an instruction has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration import schema

COMMUNICATES = ("AG", "RS", "AR", "SEND", "RECV", "XCHG")
COPIES = ("H2D", "D2H", "GATHER")
GRAPH = "GRAPH"


@dataclass(frozen=True, slots=True)
class HostCosts:
    """`kinds[kind]` = (seconds an instruction, seconds a kernel) by instruction kind, class (compute, comm, copy), or
    `*`. `framework`: whether it is a framework's host, whose launch takes `factor` times ours."""

    kinds: Mapping[str, tuple[float, float]]
    framework: bool = False
    factor: float = 1.0

    @staticmethod
    def of(file: schema.ProfileFile) -> HostCosts:
        """Our own host."""
        return HostCosts({part.kind: (part.base_s, part.per_kernel_s) for part in file.host})

    def of_a_framework(self, part: schema.FrameworkHostFile) -> HostCosts:
        """A framework's."""
        ours = self.per_kernel_s
        kinds = {"comm": (part.per_collective_s, 0.0), "copy": (part.per_kernel_s, 0.0), "*": (0.0, part.per_kernel_s)}
        return HostCosts(kinds, True, part.per_kernel_s / ours if ours > 0 else 1.0)

    def instruction(self, kind: str) -> tuple[float, float]:
        """(seconds an instruction, seconds a kernel) of an instruction kind, or of a class by its name."""
        found = self.kinds.get(kind) or self.kinds.get(_class(kind)) or self.kinds.get("*")
        return found or (0.0, 0.0)

    @property
    def per_node_s(self) -> float | None:
        """Seconds a node of launching a captured step (`plan.cuda_graph`); None where it was not measured."""
        return self.kinds[GRAPH][1] if GRAPH in self.kinds else None

    @property
    def per_kernel_s(self) -> float:
        """Seconds a kernel of a compute instruction."""
        return self.instruction("compute")[1]


def _class(kind: str) -> str:
    if kind in COMMUNICATES:
        return "comm"
    return "copy" if kind in COPIES else "compute"
