"""The interval around a step time: how wrong the prices of this very run may be, carried to first order into its step.

Procedure (nothing here is fitted, and no validation row is looked at):

1. Every kernel call, communication and host launch of the step is priced by one entry of the profile, and the profile
   says how far that entry may be off for that call (`Profile.kernel_error`, `comm_error`): inside measured points by
   the error of predicting a point from the others; outside by as much again for each octave; where another operator or
   dtype stands in, as the least certain entry of the class; of a fit by its residuals.
2. Errors of one kind from one source (GEMMs of one card, transfers over one network) go together: a bias does not
   average out over a thousand instructions. Their parts of the step are added up. Different kinds and sources are
   independent: their sums add in squares. Another card of the kind is one more: all its kernels are faster or slower
   together (`Profile.card_sigma`).
3. Parts of the step are those of its critical time. Waiting (bubble, skew) is other ranks' work and takes the mixture.
   Communication hidden behind compute counts through what it slows down (contention). Host time that is hidden counts
   as far as it would show at the upper end of its own error: a step is no shorter than its host needs.
4. Errors are relative, so the sum is a standard deviation of log(real / forecast): step x exp(± z sigma), with z for
   `LEVEL` of a normal error.

What a profile states no uncertainty for (another job on the network, kernels an implementation has and the program
does not) is not in it; `windtunnel validate` prints how often intervals held.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist

from calibration.collectives import Geometry
from program import KernelCall, block_uses
from simulator.costs import issue_s
from simulator.fold import SymmetryClass
from simulator.simulated import Simulated

LEVEL = 0.9  # share of real steps an interval is meant to hold
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
COMPUTE_PARTS = ("compute", "recompute", "optimizer")
KERNELS = ("gemm: ", "attention: ", "memory: ")  # what kernels' terms are called
PART_OF_ROLE = {"tp": "exposed_tensor", "pp_next": "exposed_pipeline", "pp_prev": "exposed_pipeline"}


@dataclass(frozen=True, slots=True)
class ErrorTerm:
    """Costs whose errors go together: their share of the step, and the relative standard deviation of their price."""

    what: str
    share: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of the step time in seconds that are meant to hold `level` of real steps, and what they are made of,
    largest part first."""

    low_s: float
    high_s: float
    level: float
    error_terms: tuple[ErrorTerm, ...]


def interval(simulation: Simulated) -> Interval:
    """The interval of a simulation."""
    found = error_terms(simulation)
    sigma = math.sqrt(sum((term.share * term.sigma) ** 2 for term in found))
    step = simulation.step_time_s
    high = max(step * math.exp(_Z * sigma), _host_bound_s(simulation))
    return Interval(step * math.exp(-_Z * sigma), high, LEVEL, found)


def error_terms(simulation: Simulated) -> tuple[ErrorTerm, ...]:
    """Groups of costs whose errors go together, over the whole step."""
    time = simulation.breakdown
    working = sum(time[part] for part in COMPUTE_PARTS)
    shares: dict[str, float] = {}
    weighted: dict[str, float] = {}

    def add(what: str, share: float, sigma: float) -> None:
        shares[what] = shares.get(what, 0.0) + share
        weighted[what] = weighted.get(what, 0.0) + share * sigma

    kernels_s = _kernel_seconds(simulation)
    whole = sum(kernels_s.values())
    for call, seconds in kernels_s.items():
        add(*_part(simulation.profile.kernel_error(call), working * seconds / whole if whole > 0 else 0.0))
    comms_s = _comm_seconds(simulation)
    for (part, what, sigma), seconds in comms_s.items():
        whole = sum(s for (other, _, _), s in comms_s.items() if other == part)
        add(what, time[part] * seconds / whole if whole > 0 else 0.0, sigma)
    residuals = simulation.profile.residuals
    add("offload", time["exposed_offload"], max(residuals.get("copy", 0.0), residuals.get("host_optimizer", 0.0)))
    add("host", time["host"], residuals.get("host", 0.0))
    busy = sum(shares.values())  # waiting takes the mixture of everything else
    scale = 1.0 / busy if busy > 0 else 0.0
    found = [ErrorTerm(what, share * scale, weighted[what] / share) for what, share in shares.items() if share > 0]
    found += _cards(found, simulation)
    hidden = _hidden_share(simulation, comms_s)
    if hidden > 0 and simulation.profile.contention_sigma > 0:
        found.append(ErrorTerm("computing beside communication", hidden, simulation.profile.contention_sigma))
    steady = (ErrorTerm(term.what, _steady(term.share), _steady(term.sigma)) for term in found)
    return tuple(sorted(steady, key=lambda term: (-term.share * term.sigma, term.what)))


def _steady(number: float) -> float:
    """Nine digits of a sum over ranks: as many as it has whether ranks are summed one by one or folded."""
    return float(f"{number:.9g}")


def _part(term: tuple[str, float], share: float) -> tuple[str, float, float]:
    return term[0], share, term[1]


def _cards(found: list[ErrorTerm], simulation: Simulated) -> list[ErrorTerm]:
    """All that the device computes, which a card other than the measured one does faster or slower."""
    share = sum(term.share for term in found if term.what.startswith(KERNELS))
    sigma = simulation.profile.card_sigma
    return [ErrorTerm("another card", share, sigma)] if share > 0 and sigma > 0 else []


def _kernel_seconds(simulation: Simulated) -> dict[KernelCall, float]:
    """Seconds of each kernel call in a step, over all ranks."""
    found: Counter[KernelCall] = Counter()
    ranks = Counter(dict.fromkeys(range(len(simulation.program.classes)), 0))
    for symmetry_class in simulation.symmetry_classes:
        ranks[symmetry_class.program] += len(symmetry_class.ranks)
    for number, stage in enumerate(simulation.program.classes):
        uses = block_uses(stage)
        for index, block in enumerate(stage.blocks):
            many = uses[index] * ranks[number]
            for instruction in block.instructions:
                for kernel in instruction.body if instruction.stream != "cpu" else ():
                    found[kernel] += many
    return {call: simulation.profile.kernel_s(call) * many for call, many in found.items()}


def _comm_seconds(simulation: Simulated) -> dict[tuple[str, str, float], float]:
    """Seconds of communication in a step by (part of the breakdown, what goes together, sigma), over all ranks."""
    found: dict[tuple[str, str, float], float] = {}
    for symmetry_class in simulation.symmetry_classes:
        stage = simulation.program.classes[symmetry_class.program]
        uses = block_uses(stage)
        for index, block in enumerate(stage.blocks):
            for instruction in block.instructions:
                comm = instruction.comm
                if comm is None:
                    continue
                geometry = _geometry(symmetry_class, comm.role)
                seconds = simulation.profile.collective(
                    comm.op, comm.bytes, comm.dtype, geometry, comm.algorithm
                ).seconds
                if seconds > 0:
                    what, sigma = simulation.profile.comm_error(comm.op, comm.dtype, geometry)
                    key = (PART_OF_ROLE.get(comm.role, "exposed_data"), what, sigma)
                    found[key] = found.get(key, 0.0) + seconds * uses[index] * len(symmetry_class.ranks)
    return found


def _geometry(symmetry_class: SymmetryClass, role: str) -> Geometry:
    group_instance = symmetry_class.group_instances.get(role)
    return Geometry(1) if group_instance is None else group_instance.geometry


def _hidden_share(simulation: Simulated, comms_s: dict[tuple[str, str, float], float]) -> float:
    """Share of the step in which a rank communicates behind its compute."""
    if simulation.step_time_s <= 0:
        return 0.0
    exposed = sum(simulation.breakdown[part] for part in sorted({part for part, _, _ in comms_s}))
    working = sum(simulation.breakdown[part] for part in COMPUTE_PARTS)
    share = sum(comms_s.values()) / simulation.program.world / simulation.step_time_s
    return min(working, max(0.0, share - exposed))


def _host_bound_s(simulation: Simulated) -> float:
    """What the busiest host needs to issue a step, at the upper end of its error. A synchronous device's host is its
    compute."""
    if simulation.cluster.device == "cpu":
        return 0.0
    profile = simulation.profile
    longest = 0.0
    for stage in simulation.program.classes:
        uses = block_uses(stage)
        issued = (
            uses[index] * issue_s(profile, instruction, simulation.program.execution.graph)
            for index, block in enumerate(stage.blocks)
            for instruction in block.instructions
        )
        longest = max(longest, sum(issued))
    return longest * math.exp(_Z * profile.residuals.get("host", 0.0))
