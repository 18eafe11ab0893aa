"""What a simulation leaves behind: how long each symmetry class of ranks took, and what its time went to.

What is worked out of it (`simulator.interval`, `simulator.timeline`) reads this; `simulator.simulation` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from calibration.profile import Profile
from program import StepProgram
from program.cluster import Cluster
from simulator.breakdown import CLASSES, fractions
from simulator.clock import seconds
from simulator.fold import SymmetryClass
from simulator.rank_simulation import RankSimulation


@dataclass(frozen=True)
class Simulated:
    """What a program did. Times in seconds; `periods_ps` and `accounts` are those of each symmetry class, in
    picoseconds."""

    program: StepProgram
    cluster: Cluster
    profile: Profile
    symmetry_classes: tuple[SymmetryClass, ...]
    periods_ps: tuple[int, ...]
    accounts: tuple[tuple[int, ...], ...]
    events: int
    ranks: tuple[RankSimulation, ...] = field(repr=False, compare=False)

    @property
    def step_time_s(self) -> float:
        """The longest period of any rank."""
        return seconds(max(self.periods_ps))

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """The ten `time` fractions: mean over ranks of exclusive critical time; they sum to 1."""
        totals = [0] * len(CLASSES)
        for symmetry_class, account in zip(self.symmetry_classes, self.accounts, strict=True):
            for index, time in enumerate(account):
                totals[index] += time * len(symmetry_class.ranks)
        return fractions(totals)
