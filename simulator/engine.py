"""The event engine: ranks, streams and meetings, driven by callbacks on one clock.

Each simulated rank (one for a symmetry class, see `simulator.fold`) has a host that issues its program's instructions
in order, and streams on which they run in order. What is in flight is a node: an instruction (`simulator.nodes`) or a
merged segment (`simulator.segments`). Ends are passed on as values, so nothing is ever polled, and each node's end is
one event.

On a CUDA device the host runs ahead until a host synchronisation. On a CPU device (`synchronous`) compute occupies the
host, issuing takes a core, and everything active on a node shares its cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from program import STREAMS, RankProgram
from program.errors import WindtunnelError
from program.text import label_of
from simulator.breakdown import CLASSES, HOST, Trail
from simulator.clock import Clock
from simulator.coarsen import Cut, Segment
from simulator.costs import COMPUTE_STREAM, Row
from simulator.nodes import Channel, InStepCheck, Op, Source
from simulator.segments import Merged
from simulator.sharing import HOST as HOST_STREAM
from simulator.sharing import Activity, Contention, Device, Node, Site, Window, millicores

HOST_MILLICORES = millicores(1)  # an issuing thread runs on one core


@dataclass(slots=True)
class Lane:
    """A rank's side of a channel: how often it has issued on it."""

    channel: Channel
    issued: int = 0


class RankSimulation:
    """One simulated rank: its host, its streams' tails, its clockwork of calls for a number of periods."""

    __slots__ = (
        "account",
        "agreed",
        "boundary",
        "call",
        "cuts",
        "device",
        "engine",
        "front",
        "handles",
        "held",
        "history",
        "host",
        "in_step_checks",
        "lanes",
        "many",
        "marks",
        "name",
        "node_ops",
        "periods",
        "program",
        "running",
        "segment",
        "spent",
        "tails",
        "until",
        "windows",
    )

    def __init__(
        self,
        engine: Engine,
        name: str,
        program: RankProgram,
        cuts: Sequence[Cut],
        boundary: tuple[int, int],
        device: Device,
        many: int,
    ) -> None:
        self.engine = engine
        self.name = name
        self.program = program
        self.cuts = cuts
        self.boundary = boundary
        self.device = device
        self.many = many
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.in_step_checks: dict[tuple[str, ...], InStepCheck] = {}
        self.agreed: dict[tuple[str, ...], int] = {}
        self.tails: list[Source | None] = [None] * len(STREAMS)
        self.handles: list[list[Op | Merged]] = []
        self.host = self.call = self.segment = self.front = self.periods = 0
        self.node_ops: list[Op | Merged] = []
        self.history: list[list[list[Op | Merged]]] = []  # of each period, where the engine keeps them
        self.spent: dict[tuple[int, int], tuple[int, ...]] = {}  # (period, call) → account behind its compute
        self.account = [0] * len(CLASSES)
        self.marks: list[tuple[int, list[int]]] = []
        self.running: Op | Merged | None = None
        self.until = 0
        self.windows: list[Window] = []
        self.held: Trail | None = None  # what issuing was late for: the communication that blocked the host last

    def mark(self, end: int) -> None:
        """The step's last STEP has ended: close the period's account."""
        self.marks.append((end, self.account))
        self.account = [0] * len(CLASSES)

    def computed(self, call: int) -> None:
        """Compute of a call is accounted for."""
        if self.engine.kept:
            self.spent[len(self.marks), call] = tuple(self.account)

    def agree(self, roles: tuple[str, ...], simulated: tuple[int, object]) -> None:
        """A merged segment that relies on the groups of `roles` being in step was simulated like this."""
        number = self.agreed.get(roles, 0)
        self.agreed[roles] = number + 1
        self.in_step_checks[roles].agree(number, simulated)

    def notify(self) -> None:
        """What the host was blocked on has ended."""
        blocker = self.node_ops[-1]
        end = blocker.outs[0]
        assert end is not None
        self.host = max(self.host, end)
        trail = blocker.trail(0)
        self.held = None if trail is None else (end, HOST, end, HOST, trail)
        self.walk()

    def prune(self, start: int) -> None:
        """Forget windows that closed before compute that starts at `start` or later."""
        if self.windows:
            self.windows = [window for window in self.windows if window[1] > start]

    def open_window(self, stream: int, begin: int, end: int) -> None:
        """A communication will run in [begin, end): compute beside it is slowed."""
        factor = self.engine.contention.compute[stream]
        if factor == 1.0:
            return
        self.windows.append((begin, end, factor))
        if self.running is not None and begin < self.until:
            self.running.revise()

    def walk(self) -> None:
        """Issue instructions in host order until the host blocks or the periods are over."""
        calls, engine = self.program.calls, self.engine
        while self.periods < engine.periods:
            while self.call < len(calls):
                segments = self.cuts[self.call].segments
                if not self.segment:
                    self.node_ops = []
                    self.handles.append(self.node_ops)
                while self.segment < len(segments):
                    segment = segments[self.segment]
                    self.segment += 1
                    if self._issue(segment):
                        return
                self.call += 1
                self.segment = 0
            if engine.kept:
                self.history.append(self.handles)
            self.periods += 1
            self.call = 0
            if self.periods < engine.periods:
                self.handles = []

    def _issue(self, segment: Segment) -> bool:
        """Issue a segment; True when the host must wait."""
        if segment.merge is not None:
            self._merged(segment)
            return False
        if self.engine.synchronous:
            return self._issue_synchronous(segment.rows[0])
        row = segment.rows[0]
        self.host += row.issue_ps
        op = self._single(row)
        if not row.sync:
            return False
        op.call_back(0, self)
        return True

    def _issue_synchronous(self, row: Row) -> bool:
        """A CPU's host: issuing takes its core, and compute holds it until the end."""
        if row.issue_ps:
            site = Site(self.device, HOST_STREAM, HOST_MILLICORES, self.many)
            Activity(self.engine.clock, (site,), row.issue_ps, lambda: self._issued(row)).begin()
            return True
        return self._after_issue(row)

    def _issued(self, row: Row) -> None:
        if not self._after_issue(row):
            self.walk()

    def _after_issue(self, row: Row) -> bool:
        self.host = self.engine.clock.now
        op = self._single(row)
        if row.stream != COMPUTE_STREAM and not row.sync:
            return False
        op.call_back(0, self)
        return True

    def _single(self, row: Row) -> Op:
        tail = self.tails[row.stream]
        sources = [] if tail is None else [tail]
        for wait in row.waits:
            if (source := self._source(wait)) is not None:
                sources.append(source)  # noqa: PERF401
        op = Op(self, row, self.call, self.host, sources)
        self.tails[row.stream] = (op, 0)
        self.node_ops.append(op)
        if row.channel is not None:
            lane = self.lanes[row.channel]
            op.channel, op.seq = lane.channel, lane.issued
            lane.issued += 1
        if not op.pending:
            op.begin()
        return op

    def _merged(self, segment: Segment) -> None:
        tails = self.tails
        sources = [tails[stream] for stream in segment.streams]
        sources += [self._source(wait) for wait in segment.external]
        node = Merged(self, segment, self.call, self.host, sources)
        self.host += segment.issue_ps
        for output, stream in enumerate(segment.streams):
            tails[stream] = (node, output)
        self.node_ops.append(node)
        if not node.pending:
            node.begin()

    def _source(self, wait: int) -> Source | None:
        """The node and output behind a wait; None behind an unbound port."""
        if wait >= 0:
            segment, output = self.cuts[self.call].where[wait]
            return self.node_ops[segment], output
        call, port = self.program.calls[self.call].bindings[-1 - wait]
        if call < 0:
            return None
        segment, output = self.cuts[call].ports[port]
        return self.handles[call][segment], output

    def site(self, row: Row) -> Site:
        """Where an instruction of this rank runs."""
        return Site(self.device, row.stream, row.own_millicores, self.many, row.busy)

    @property
    def finished(self) -> bool:
        """Whether every period was simulated to its end."""
        return len(self.marks) >= self.engine.periods

    def stuck(self) -> str:
        """What the rank waits for, in words."""
        node = next((node for nodes in self.handles for node in nodes if None in node.outs), None)
        if node is None:
            return f"{self.name} has no unfinished instruction but did not reach the end of the step"
        while node.pending:  # what it waits for is stuck first
            node = next(
                source[0] for source in node.sources if source is not None and source[0].outs[source[1]] is None
            )
        local = node.row.local if isinstance(node, Op) else node.segment.rows[0].local
        call = self.program.calls[node.call]
        i = self.program.blocks[call.block].instructions[local]
        where = label_of(i, -1 if i.phase == "step" else call.micro)
        return f"{self.name} is stuck at {where} on {i.stream}"


class Engine:
    """Simulates ranks together. `shared`: work slows other work; `synchronous`: compute occupies the host, and a host
    that was blocked by a communication needs `wake_ps` to come back from the communicating thread. `kept`: the nodes
    and accounts of all periods stay (`simulator.steady`), otherwise the nodes of the last."""

    def __init__(
        self,
        contention: Contention,
        synchronous: bool,
        cores: int | None,
        wake_ps: int = 0,
        periods: int = 2,
        kept: bool = False,
    ) -> None:
        self.clock = Clock()
        self.contention = contention
        self.synchronous = synchronous
        self.cores = cores
        self.wake_ps = wake_ps
        self.shared = (contention.active and not contention.one_way) or cores is not None
        self.windowed = contention.one_way and not self.shared
        self.checks_all = False
        self.periods = periods
        self.kept = kept
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

    def simulate(self) -> None:
        """Run to the end. Raises WindtunnelError naming the stuck instructions when the program cannot finish."""
        for rank in self.ranks:
            rank.walk()
        self.clock.run()
        stuck = [rank.stuck() for rank in self.ranks if not rank.finished]
        if stuck:
            raise WindtunnelError("the step program does not finish: " + "; ".join(stuck[:4]))
