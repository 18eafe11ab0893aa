"""The event engine: ranks, streams and meetings, driven by callbacks on one clock.

Each flown rank (one for a colour, see `simulator.fold`) has a host that issues its program's instructions in order, and streams on which
they run in order. A *node* is a flown instruction (`Op`) or merged segment (`Merged`): it begins when its sources have ended
(the one before it on its stream, and its waits) and it was issued. A communication with other colours also needs its partners:
it starts when the last of them has arrived. Ends are passed on as values, so nothing is ever polled.

On a CUDA device the host runs ahead until a host synchronisation. On a CPU device (`synchronous`) compute occupies the host, issuing
takes a core, and everything active on a node shares its cores.

Every node's end is one event. Where work shares a device or node, it is an `Activity` whose end may be moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan.errors import WindtunnelError
from plan.program import STREAMS, RankProgram
from plan.text import label_of
from simulator.breakdown import CLASSES, HOST, Trail, blame
from simulator.clock import FLOOR, Clock
from simulator.coarsen import Cut, Segment
from simulator.costs import COMPUTE_STREAM, Row
from simulator.merged import Merge, Outcome
from simulator.sharing import HOST as HOST_STREAM
from simulator.sharing import Activity, Contention, Device, Node, Site, Window, slowed_end

HOST_MILLICORES = 1000  # an issuing thread runs on one core
Source = tuple["Op | Merged", int]
_NOTHING: dict[int, tuple[int, Trail]] = {}


class Channel:
    """One communicator's channel: members of `expected` colours meet in the order in which each issues on it."""

    __slots__ = ("expected", "open")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.open: dict[int, list[Op]] = {}

    def arrive(self, op: Op) -> None:
        """An op is ready (at `op.start`); when it is the last of its meeting, all of them move together."""
        waiting = self.open.get(op.seq)
        if waiting is None:
            self.open[op.seq] = [op]
            return
        waiting.append(op)
        if len(waiting) == self.expected:
            del self.open[op.seq]
            Transfer(waiting, max([member.start for member in waiting])).launch()


class Transfer:
    """What moves once all members of a communication (or the only one) are ready at `last`."""

    __slots__ = ("last", "members")

    def __init__(self, members: list[Op], last: int) -> None:
        self.members = members
        self.last = last

    def launch(self) -> None:
        """Schedule the end; where work shares a device, start an activity at `last`."""
        work, engine = 0, self.members[0].rank.engine
        for member in self.members:
            member.last = self.last
            if member.row.work_ps > work:
                work = member.row.work_ps
        if not engine.shared:
            end = self.last + work
            if engine.windowed and work:
                for member in self.members:
                    member.rank.open_window(member.row.stream, self.last, end)
            engine.clock.at(end, self._ended, end)
        elif self.last > engine.clock.now:
            engine.clock.at(self.last, self._begin, work)
        else:
            self._activity(work)

    def _begin(self, event: object) -> None:
        self._activity(event.value)  # type: ignore[attr-defined]

    def _activity(self, work: int) -> None:
        sites = tuple(member.rank.site(member.row) for member in self.members)
        Activity(self.members[0].rank.engine.clock, sites, work, self._finished).begin()

    def _finished(self) -> None:
        now = self.members[0].rank.engine.clock.now
        for member in self.members:
            member.finish(now)

    def _ended(self, event: object) -> None:
        for member in self.members:
            member.finish(event.value)  # type: ignore[attr-defined]


class Op:
    """One instruction in flight. `start`: own start; `last`: the last member's; `outs` is set when it has ended."""

    __slots__ = ("before", "call", "issued", "last", "outs", "pending", "rank", "row", "seq", "sources", "start", "version", "waiters")

    def __init__(self, rank: RankFlight, row: Row, call: int, issued: int, sources: list[Source]) -> None:
        self.rank = rank
        self.row = row
        self.call = call
        self.issued = issued
        self.sources: Sequence[Source] = sources
        self.waiters: list[Op | Merged | RankFlight] = []
        self.outs: list[int | None] = [None]
        self.pending = 0
        self.seq = -1
        self.start = self.last = FLOOR
        self.version = 0
        self.before: Trail | None = None
        for node, k in sources:
            if node.outs[k] is None:
                node.call_back(k, self)
                self.pending += 1

    def call_back(self, _: int, waiter: Op | Merged | RankFlight) -> None:
        """Notify `waiter` at the end."""
        self.waiters.append(waiter)

    def notify(self) -> None:
        """A source has ended."""
        self.pending -= 1
        if not self.pending:
            self.begin()

    def begin(self) -> None:
        """All sources have ended: take the latest, and move (or wait for partners)."""
        latest, cause, output = FLOOR, None, 0
        for node, k in self.sources:
            time = node.outs[k]
            if time > latest:  # type: ignore[operator]
                latest, cause, output = time, node, k  # type: ignore[assignment]
        self.sources = ()
        if self.issued > latest:
            latest, cause = self.issued, None
        self.start = latest
        if self.row.stream == COMPUTE_STREAM:
            rank = self.rank
            if latest > rank.front:
                blame(rank.account, rank.front, latest, None if cause is None else cause.trail(output))
        elif cause is not None and latest > self.rank.front:  # no gap reaches further back than the front
            self.before = cause.trail(output)
        channel = self.row.channel
        if channel is not None:
            self.rank.channels[channel].arrive(self)
        elif self.rank.engine.shared or self.row.stream != COMPUTE_STREAM:
            Transfer([self], latest).launch()
        else:
            self.last = latest
            self.rank.running = self
            self.rank.prune(latest)
            self.revise()

    def revise(self) -> None:
        """Find the end of compute among the windows known now, and schedule it."""
        end = slowed_end(self.start, self.row.work_ps, self.rank.windows) if self.rank.windows else self.start + self.row.work_ps
        self.version += 1
        self.rank.until = end
        self.rank.engine.clock.at(end, self._ended, (self.version, end))

    def _ended(self, event: object) -> None:
        version, end = event.value  # type: ignore[attr-defined]
        if version == self.version:
            self.finish(end)

    def finish(self, end: int) -> None:
        """The end: account for it and tell whoever waits."""
        self.outs[0] = end
        if self.row.stream == COMPUTE_STREAM:
            rank = self.rank
            rank.account[self.row.work] += end - self.start
            rank.front = end
            rank.running = None
            if rank.boundary == (self.call, self.row.local):
                rank.mark(end)
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.notify()

    def trail(self, _: int) -> Trail | None:
        """What a gap that ends with this instruction's end is charged to."""
        row = self.row
        return None if row.stream == COMPUTE_STREAM else (self.last, row.work, self.start, row.wait, self.before)


class Merged:
    """A merged segment in flight. `outs`: end of every stream, then the watched members'; known one by one."""

    __slots__ = (
        "before", "call", "first", "host", "inputs", "outcome", "outs", "pending", "rank", "segment", "sources", "version", "waiters",
    )  # fmt: skip

    def __init__(self, rank: RankFlight, segment: Segment, call: int, host: int, sources: list[Source | None]) -> None:
        assert segment.merge is not None
        self.rank = rank
        self.segment = segment
        self.call = call
        self.host = host
        self.sources: Sequence[Source | None] = sources
        self.waiters: list[tuple[int, Op | Merged | RankFlight]] = []
        self.outs: list[int | None] = [None] * len(segment.merge.outputs)
        self.inputs: list[int] = []
        self.first = self.version = self.pending = 0
        self.before: dict[int, tuple[int, Trail]] = _NOTHING
        self.outcome: Outcome | None = None
        for source in sources:
            if source is not None and source[0].outs[source[1]] is None:
                source[0].call_back(source[1], self)
                self.pending += 1

    def call_back(self, output: int, waiter: Op | Merged | RankFlight) -> None:
        """Notify `waiter` when an output is known."""
        self.waiters.append((output, waiter))
        if self.outcome is not None and self.rank.engine.windowed and self._urgent(waiter):
            self._tell_in_time(output)

    def notify(self) -> None:
        """A source has ended."""
        self.pending -= 1
        if not self.pending:
            self.begin()

    def begin(self) -> None:
        """All inputs are known: so is the whole segment, but for windows that may still open."""
        rank, merge = self.rank, self.segment.merge
        assert merge is not None
        inputs = self.inputs = [FLOOR if s is None else s[0].outs[s[1]] for s in self.sources]  # type: ignore[misc]
        if not rank.engine.windowed:
            self.first, self.outcome = merge.fly(self.host, inputs)
            outs = [self.first + out for out in self.outcome.outs]
            rank.engine.clock.at(min(outs), self._ended, outs)
            self._close(merge, self.outcome, outs[0])
            return
        rank.running = self
        rank.prune(max(inputs[index] for index in merge.entry))
        self.revise()

    def _ended(self, event: object) -> None:
        """Without windows nothing can change any more: all outputs are told at once, as values."""
        self.outs = event.value  # type: ignore[attr-defined]
        waiters, self.waiters = self.waiters, []
        for _, waiter in waiters:
            waiter.notify()

    def revise(self) -> None:
        """Fly with the windows known now, and schedule the telling of every output that has not been told.

        When compute has ended nothing can change any more, and everything is told at once. Only what a communication that
        slows compute waits for is told at its own time, so that its window opens in time.
        """
        merge, rank = self.segment.merge, self.rank
        assert merge is not None
        first, outcome = merge.fly(self.host, self.inputs, rank.windows)
        if outcome is self.outcome:
            return
        self.first, self.outcome = first, outcome
        self.version += 1
        rank.until = first + outcome.outs[0]
        for output in {k for k, waiter in self.waiters if self._urgent(waiter)}:
            self._tell_in_time(output)
        rank.engine.clock.at(rank.until, self._computed, self.version)

    def _urgent(self, waiter: Op | Merged | RankFlight) -> bool:
        return isinstance(waiter, Op) and self.rank.engine.contention.compute[waiter.row.stream] != 1.0

    def _tell_in_time(self, output: int) -> None:
        assert self.outcome is not None
        moment = self.first + self.outcome.outs[output]
        if self.outs[output] is None and moment < self.rank.until:
            self.rank.engine.clock.at(moment, self._reached, (self.version, moment, output))

    def _reached(self, event: object) -> None:
        version, moment, output = event.value  # type: ignore[attr-defined]
        if version == self.version and self.outs[output] is None:
            self.outs[output] = moment
            waiting, self.waiters = self.waiters, []
            self.waiters = [(k, waiter) for k, waiter in waiting if k != output]
            for k, waiter in waiting:
                if k == output:
                    waiter.notify()

    def _computed(self, event: object) -> None:
        """Compute has ended: account for it and tell all outputs, those still to come as values."""
        if event.value != self.version:  # type: ignore[attr-defined]
            return
        rank, first, outcome, merge = self.rank, self.first, self.outcome, self.segment.merge
        assert outcome is not None
        assert merge is not None
        self.outs = [first + out for out in outcome.outs]
        rank.running = None
        self._close(merge, outcome, rank.until)
        if outcome.tails:
            rank.windows += [(first + begin, first + end, factor) for begin, end, factor in outcome.tails]
        waiters, self.waiters = self.waiters, []
        for _, waiter in waiters:
            waiter.notify()

    def _close(self, merge: Merge, outcome: Outcome, end: int) -> None:
        """Compute of the segment is settled: account for it."""
        rank, first, inputs = self.rank, self.first, self.inputs
        if first > rank.front:
            self._blame_entry(merge, first, inputs)
        account = rank.account
        for kind, time in outcome.account:
            account[kind] += time
        for index, begin, until in outcome.gaps:
            source = self.sources[index]
            blame(account, first + begin, first + until, None if source is None else source[0].trail(source[1]))
        for index in merge.others:
            if inputs[index] > rank.front:  # no gap reaches further back than the front
                source = self.sources[index]
                if source is not None and (trail := source[0].trail(source[1])) is not None:
                    self.before = {**self.before, index: (inputs[index], trail)}
        self.sources = ()
        rank.front = end

    def _blame_entry(self, merge: Merge, first: int, inputs: list[int]) -> None:
        latest, cause = FLOOR, None
        for index in merge.entry:
            if inputs[index] > latest:
                latest, cause = inputs[index], self.sources[index]
        if self.host + merge.issued[0] > latest or cause is None:
            self.rank.account[HOST] += first - self.rank.front
        else:
            blame(self.rank.account, self.rank.front, first, cause[0].trail(cause[1]))

    def trail(self, output: int) -> Trail | None:
        """What a gap that ends with one of this segment's outputs is charged to."""
        assert self.segment.merge is not None
        assert self.outcome is not None
        member = self.segment.merge.outputs[output]
        if self.segment.rows[member].stream == COMPUTE_STREAM:
            return None
        return self._trail(self.segment.merge, self.outcome, member)

    def _trail(self, merge: Merge, outcome: Outcome, member: int) -> Trail:
        """The communications that ran one after another up to a member: inside this segment, and before it on their streams."""
        start, row = outcome.starts[member], self.segment.rows[member]
        before: Trail | None = None
        for source in merge.sources[member]:
            if source < 0:
                time, trail = self.before.get(-1 - source, (FLOOR, None))
                before = trail if time == self.first + start else None
            elif outcome.ends[source] == start and self.segment.rows[source].stream != COMPUTE_STREAM:
                before = self._trail(merge, outcome, source)
            if before is not None:
                break
        return self.first + start, row.work, self.first + start, row.wait, before


class RankFlight:
    """One flown rank: its host, its streams' tails, its clockwork of calls for a number of periods."""

    __slots__ = (
        "account", "boundary", "call", "channels", "counts", "cuts", "device", "engine", "front", "handles", "host", "many", "marks", "name",
        "node_ops", "periods", "program", "running", "segment", "tails", "until", "windows",
    )  # fmt: skip

    def __init__(
        self, engine: Engine, name: str, program: RankProgram, cuts: Sequence[Cut], boundary: tuple[int, int], device: Device, many: int
    ) -> None:
        self.engine = engine
        self.name = name
        self.program = program
        self.cuts = cuts
        self.boundary = boundary
        self.device = device
        self.many = many
        self.channels: dict[tuple[object, str], Channel] = {}
        self.counts: dict[tuple[object, str], int] = {}
        self.tails: list[Source | None] = [None] * len(STREAMS)
        self.handles: list[list[Op | Merged]] = []
        self.host = self.call = self.segment = self.front = self.periods = 0
        self.node_ops: list[Op | Merged] = []
        self.account = [0] * len(CLASSES)
        self.marks: list[tuple[int, list[int]]] = []
        self.running: Op | Merged | None = None
        self.until = 0
        self.windows: list[Window] = []

    def mark(self, end: int) -> None:
        """The step's last STEP has ended: close the period's account."""
        self.marks.append((end, self.account))
        self.account = [0] * len(CLASSES)

    def notify(self) -> None:
        """What the host was blocked on has ended."""
        end = self.node_ops[-1].outs[0]
        assert end is not None
        self.host = max(self.host, end)
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
            self.periods += 1
            self.call = 0
            if self.periods < engine.periods:
                self.handles = []

    def _issue(self, segment: Segment) -> bool:
        """Issue a segment; True when the host must wait."""
        if self.engine.synchronous:
            return self._issue_synchronous(segment.rows[0])
        if segment.merge is not None:
            self._merged(segment)
            return False
        row = segment.rows[0]
        self.host += row.issue_ps
        op = self._single(row)
        if not row.sync:
            return False
        op.waiters.append(self)
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
        op.waiters.append(self)
        return True

    def _single(self, row: Row) -> Op:
        sources = [] if (tail := self.tails[row.stream]) is None else [tail]
        for wait in row.waits:
            source = self._source(wait)
            if source is not None:
                sources.append(source)
        op = Op(self, row, self.call, self.host, sources)
        self.tails[row.stream] = (op, 0)
        self.node_ops.append(op)
        if row.channel is not None:
            op.seq = self.counts.get(row.channel, 0)
            self.counts[row.channel] = op.seq + 1
        if not op.pending:
            op.begin()
        return op

    def _merged(self, segment: Segment) -> None:
        tails = self.tails
        sources = [tails[stream] for stream in segment.streams]
        for wait in segment.external:
            sources.append(self._source(wait))
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
        """Whether every period was flown to its end."""
        return len(self.marks) >= self.engine.periods

    def stuck(self) -> str:
        """What the rank waits for, in words."""
        node = next((node for nodes in self.handles for node in nodes if None in node.outs), None)
        if node is None:
            return f"{self.name} has no unfinished instruction but did not reach the end of the step"
        while node.pending:  # what it waits for is stuck first
            node = next(source[0] for source in node.sources if source is not None and source[0].outs[source[1]] is None)
        local = node.row.local if isinstance(node, Op) else node.segment.rows[0].local
        call = self.program.calls[node.call]
        i = self.program.blocks[call.block].instructions[local]
        where = label_of(i, -1 if i.phase == "step" else call.micro)
        return f"{self.name} is stuck at {where} on {i.stream}"


class Engine:
    """Flies ranks together. `shared`: work slows other work; `synchronous`: compute occupies the host."""

    def __init__(self, contention: Contention, synchronous: bool, cores: int | None, periods: int = 2) -> None:
        self.clock = Clock()
        self.contention = contention
        self.synchronous = synchronous
        self.cores = cores
        self.shared = (contention.active and not contention.one_way) or cores is not None
        self.windowed = contention.one_way and not self.shared
        self.periods = periods
        self.ranks: list[RankFlight] = []
        self.channels: dict[tuple[object, str], Channel] = {}
        self.nodes: dict[int, Node] = {}

    def device(self, node: int) -> Device:
        """A new device on a node."""
        if self.cores is None:
            return Device(self.contention)
        return Device(self.contention, self.nodes.setdefault(node, Node(self.cores)))

    def channel(self, key: tuple[object, str], members: int) -> Channel:
        """The channel that every member colour meets on."""
        return self.channels.setdefault(key, Channel(members))

    def fly(self) -> None:
        """Run to the end. Raises WindtunnelError naming the stuck instructions when the program cannot finish."""
        for rank in self.ranks:
            rank.walk()
        self.clock.run()
        stuck = [rank.stuck() for rank in self.ranks if not rank.finished]
        if stuck:
            raise WindtunnelError("the step program does not finish: " + "; ".join(stuck[:4]))
