"""One simulated rank: a host that issues the calls of its script in order, and streams on which instructions run.

On a CUDA device the host runs ahead until a host synchronisation, or to the end of what its script has written down
(`simulator.call_script`). On a CPU device (`synchronous`) compute occupies the host and issuing takes a core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from program import STREAMS, RankProgram
from program.text import label_of
from simulator.breakdown import CLASSES, HOST, Trail
from simulator.call_script import NotRepeating, Script
from simulator.coarsen import Segment
from simulator.costs import COMPUTE_STREAM, Row
from simulator.nodes import Channel, InStepCheck, Op, Source
from simulator.segments import Merged
from simulator.sharing import HOST as HOST_STREAM
from simulator.sharing import Activity, Device, Site, Window, millicores

if TYPE_CHECKING:
    from simulator.engine import Engine

HOST_MILLICORES = millicores(1)  # an issuing thread runs on one core


@dataclass(slots=True)
class Lane:
    """A rank's side of a channel: how often it has issued on it."""

    channel: Channel
    issued: int = 0


class RankSimulation:
    """One simulated rank: its host, its streams' tails, its script of calls for a number of periods."""

    __slots__ = (
        "account",
        "agreed",
        "call",
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
        "resumed",
        "running",
        "script",
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
        script: Script,
        device: Device,
        many: int,
    ) -> None:
        self.engine = engine
        self.name = name
        self.program = program
        self.script = script
        self.device = device
        self.many = many
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.in_step_checks: dict[tuple[str, ...], InStepCheck] = {}
        self.agreed: dict[tuple[str, ...], int] = {}
        self.tails: list[Source | None] = [None] * len(STREAMS)
        self.handles: list[list[Op | Merged]] = []
        self.host = self.call = self.segment = self.front = self.periods = 0
        self.node_ops: list[Op | Merged] = []
        self.history: list[list[list[Op | Merged]]] = []  # of each period, where the script repeats
        self.spent: dict[tuple[int, int], tuple[int, ...]] = {}  # (period, repetition) → account behind its compute
        self.account = [0] * len(CLASSES)
        self.marks: list[tuple[int, list[int]]] = []
        self.running: Op | Merged | None = None
        self.until = 0
        self.resumed = False  # issuing what had to be written down first
        self.windows: list[Window] = []
        self.held: Trail | None = None  # what issuing was late for: the communication that blocked the host last

    def mark(self, end: int) -> None:
        """The step's last STEP has ended: close the period's account."""
        self.marks.append((end, self.account))
        self.account = [0] * len(CLASSES)

    def computed(self, stretch: int) -> None:
        """Compute of a stretch of the script is accounted for."""
        place = self.script.places.get(stretch)
        if place is not None:
            if place not in self.spent:
                self.script.reached(place, self.front)
            self.spent[place] = tuple(self.account)

    def opened(self) -> None:
        """The last repetition that is written down begins: the next can be."""
        self.script.opened()
        if self.script.paused:
            self.script.paused, self.resumed = False, True
            self.walk()
            self.resumed = False

    def forget(self) -> None:
        """Drop all nodes and calls: what follows from them has been found."""
        self.script = Script((), (), (-1, -1))
        self.history, self.handles, self.node_ops, self.spent = [], [], [], {}
        self.tails = [None] * len(STREAMS)

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
        """Issue instructions in host order until the host blocks, the script pauses or the periods are over."""
        script, engine = self.script, self.engine
        while self.periods < engine.periods:
            while self.call < len(script.calls) or script.more():
                segments = script.cuts[self.call].segments
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
            if script.paused:
                return
            if script.places:
                self.history.append(self.handles)
            self.periods += 1
            self.call = 0
            if self.periods < engine.periods:
                self.handles = []
                script.start()

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
        op.closes = self.script.boundary == (self.call, row.local)
        if not op.pending:
            op.begin()
            self._in_time(op.start)
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
            self._in_time(node.first)

    def _in_time(self, start: int) -> None:
        """Raises NotRepeating for a node that would have begun had its call been written down earlier: what it slows
        may be over."""
        if self.resumed and self.engine.windowed and start < self.engine.clock.now:
            raise NotRepeating

    def _source(self, wait: int) -> Source | None:
        """The node and output behind a wait; None behind an unbound port."""
        if wait >= 0:
            segment, output = self.script.cuts[self.call].where[wait]
            return self.node_ops[segment], output
        call, port = self.script.calls[self.call].bindings[-1 - wait]
        if call < 0:
            return None
        segment, output = self.script.cuts[call].ports[port]
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
        call = self.script.calls[node.call]
        i = self.program.blocks[call.block].instructions[local]
        where = label_of(i, -1 if i.phase == "step" else call.micro)
        return f"{self.name} is stuck at {where} on {i.stream}"
