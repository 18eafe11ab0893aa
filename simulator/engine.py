"""The event engine: ranks, streams and meetings, driven by callbacks on one clock.

Each simulated rank (`simulator.rank_simulation`, one for a symmetry class of `simulator.fold`) issues its program's
instructions in order. What is in flight is a node: an instruction (`simulator.nodes`) or a merged segment
(`simulator.segments`). Ends are passed on as values, so nothing is ever polled, and each node's end is one event.
"""

from __future__ import annotations

from program.errors import WindtunnelError
from simulator.clock import Clock
from simulator.costs import COMPUTE_STREAM
from simulator.nodes import Channel, InStepCheck
from simulator.rank_simulation import RankSimulation
from simulator.sharing import Contention, Device, Node


class Engine:
    """Simulates ranks together. `shared`: work slows other work; `synchronous`: compute occupies the host, everything
    active on a node shares its cores, and a host that was blocked by a communication needs `wake_ps` to come back from
    the communicating thread."""

    def __init__(
        self,
        contention: Contention,
        synchronous: bool,
        cores: int | None,
        wake_ps: int = 0,
        periods: int = 2,
    ) -> None:
        self.clock = Clock()
        self.contention = contention
        self.synchronous = synchronous
        self.cores = cores
        self.wake_ps = wake_ps
        self.shared = (contention.active and not contention.one_way) or cores is not None
        self.windowed = contention.one_way and not self.shared
        self.urgent: frozenset[int] = frozenset()  # streams of whose starts compute must hear in time
        self.periods = periods
        self.ranks: list[RankSimulation] = []
        self.channels: dict[object, Channel] = {}
        self.in_step_checks: dict[object, InStepCheck] = {}
        self.nodes: dict[int, Node] = {}

    def device(self, node: int) -> Device:
        """A new device on a node."""
        if self.cores is None:
            return Device(self.contention)
        return Device(self.contention, self.nodes.setdefault(node, Node(self.cores)))

    def channel(self, key: object, members: int) -> Channel:
        """The channel that every member meets on."""
        return self.channels.setdefault(key, Channel(members))

    def in_step_check(self, key: object, members: int) -> InStepCheck:
        """The in-step check of ranks in step that every member reports to."""
        return self.in_step_checks.setdefault(key, InStepCheck(members))

    def hears_of(self, every_stream: bool) -> None:
        """Compute must hear in time of what slows it: of communications that do so, and of those that they follow."""
        if self.windowed:
            factors = enumerate(self.contention.compute)
            self.urgent = frozenset(s for s, f in factors if s != COMPUTE_STREAM and (every_stream or f != 1.0))

    def simulate(self) -> None:
        """Run to the end. Raises WindtunnelError naming the stuck instructions when the program cannot finish."""
        for rank in self.ranks:
            rank.walk()
        self.clock.run()
        stuck = [rank.stuck() for rank in self.ranks if not rank.finished]
        if stuck:
            raise WindtunnelError("the step program does not finish: " + "; ".join(stuck[:4]))
