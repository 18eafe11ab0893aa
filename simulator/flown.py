"""What a flight leaves behind: how long each colour of ranks took, and what its time went to.

What is worked out of it (`simulator.interval`, `simulator.timeline`) reads this; `simulator.flight` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from calibration.profile import Profile
from program import StepProgram
from program.cluster import Cluster
from simulator.breakdown import CLASSES, fractions
from simulator.clock import seconds
from simulator.engine import RankFlight
from simulator.fold import Colour


@dataclass(frozen=True)
class Flown:
    """What a program did. Times in seconds; `periods_ps` and `accounts` are those of each colour, in picoseconds."""

    program: StepProgram
    cluster: Cluster
    profile: Profile
    colours: tuple[Colour, ...]
    periods_ps: tuple[int, ...]
    accounts: tuple[tuple[int, ...], ...]
    events: int
    ranks: tuple[RankFlight, ...] = field(repr=False, compare=False)

    @property
    def step_time_s(self) -> float:
        """The longest period of any rank."""
        return seconds(max(self.periods_ps))

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """The ten `time` fractions: mean over ranks of exclusive critical time; they sum to 1."""
        totals = [0] * len(CLASSES)
        for colour, account in zip(self.colours, self.accounts, strict=True):
            for index, time in enumerate(account):
                totals[index] += time * len(colour.ranks)
        return fractions(totals)
