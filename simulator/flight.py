"""Flying a program: from a step program, a run and a profile to a `Flight`.

    flight = fly(compile_run(run), run, load_profile("h100"))
    flight.step_time_s, flight.breakdown["bubble"], flight.memory[0].peak_bytes

Two periods are flown and the second is reported: the time between two STEPs on a rank, in the steady state of a long
job. The flight keeps what each colour of ranks did; instruction rows are expanded only when a timeline is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from calibration.profile import Profile
from plan import implementations
from plan.cluster import Cluster
from plan.program import Block, KernelCall, RankProgram, StepProgram
from plan.run import Run
from plan.timeline import Timeline
from plan.uncollected import uncollected
from simulator.clock import picoseconds
from simulator.coarsen import Cut, cut, fine_calls, waited_ports
from simulator.costs import Pricer
from simulator.engine import Engine, Lane, RankFlight
from simulator.flown import Flown
from simulator.fold import Colour, fold
from simulator.interval import Interval, interval
from simulator.memory import StageMemory, fly_memory
from simulator.nodes import NotInStep
from simulator.sharing import Contention
from simulator.timeline import predicted_timeline

PERIODS = 2


@dataclass(frozen=True)
class Flight(Flown):
    """What a program did, and what follows from it: memory, an interval, a timeline."""

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Memory of each class (pipeline stage)."""
        with uncollected():
            workspace = self.profile.workspace(self.run.plan.kernels)
            return tuple(fly_memory(stage, self.profile.allocator, workspace) for stage in self.program.classes)

    @cached_property
    def interval(self) -> Interval:
        """First-order interval of the step time."""
        return interval(self)

    def timeline(self, ranks: Sequence[int] | None = None) -> Timeline:
        """The predicted timeline of the second period: one rank of every colour, or of those that hold `ranks`."""
        return predicted_timeline(self, ranks)


def fly(program: StepProgram, run: Run, profile: Profile, *, unfold: bool = False, coarse: bool = True) -> Flight:
    """Fly two periods of a program. `unfold` flies every rank; `coarse` merges instructions where that is exact."""
    with uncollected():
        try:
            return _fly(program, run, profile, unfold, coarse)
        except NotInStep:
            return _fly(program, run, profile, unfold, False)


def _fly(program: StepProgram, run: Run, profile: Profile, unfold: bool, coarse: bool) -> Flight:
    synchronous = run.cluster.device == "cpu"
    profile = profile.for_kernels(run.plan.kernels)
    if not implementations.engine(run.plan).own_host_code:
        profile = profile.of_a_framework()
    if synchronous:
        profile = profile.for_threads(run.cluster.threads_per_rank)
    colours = fold(program, run.cluster, unfold, synchronous)
    contention = Contention.of(profile)
    cores = profile.cores.cores if synchronous and profile.cores is not None else None
    wake_ps = picoseconds(profile.host_issue_s("wake")) if synchronous else 0
    engine = Engine(contention, synchronous, cores, wake_ps, PERIODS)
    plans = _Cutter(program, run.cluster, profile, contention, coarse and not synchronous, run.plan.cuda_graph)
    engine.ranks = [_rank(engine, colours, colour, plans) for colour in colours]
    engine.punctual = plans.punctual
    engine.fly()
    return Flight(
        program=program,
        run=run,
        profile=profile,
        colours=colours,
        periods_ps=tuple(rank.marks[-1][0] - (rank.marks[-2][0] if PERIODS > 1 else 0) for rank in engine.ranks),
        accounts=tuple(tuple(rank.marks[-1][1]) for rank in engine.ranks),
        events=engine.clock.events,
        ranks=tuple(engine.ranks),
    )


def _rank(engine: Engine, colours: Sequence[Colour], colour: Colour, plans: _Cutter) -> RankFlight:
    """A colour's rank with its cuts, and its ends of every channel and cohort."""
    stage = plans.program.classes[colour.program]
    plan = plans.plan(colour)
    device, many = engine.device(colour.node), colour.beside[colour.index]
    rank = RankFlight(engine, f"rank {colour.rank}", stage, plan.cuts, plan.boundary, device, many)
    for role, name in plans.channels(colour.program):
        meeting = colour.meetings.get(role)
        if meeting is not None and meeting.crowded:
            rank.lanes[role, name] = Lane(engine.channel((meeting.name, name), len(meeting.members)))
    for roles in plan.roles:
        members = _in_step(colours, colour, roles)
        rank.cohorts[roles] = engine.cohort((roles, members), len(members))
    return rank


def _in_step(colours: Sequence[Colour], colour: Colour, roles: Sequence[str]) -> tuple[int, ...]:
    """Everybody reached from a colour through the groups of `roles`."""
    found, new = {colour.index}, [colour.index]
    while new:
        index = new.pop()
        reached = {member for role in roles for member in colours[index].meetings[role].members} - found
        found |= reached
        new += reached
    return tuple(sorted(found))


def step_boundary(stage: RankProgram) -> tuple[int, int]:
    """(call, local id) whose end closes a period: the last STEP on the device; in a program without one (the host
    steps) the last compute instruction."""
    compute: tuple[int, int] | None = None
    for index in range(len(stage.calls) - 1, -1, -1):
        instructions = stage.blocks[stage.calls[index].block].instructions
        for local in range(len(instructions) - 1, -1, -1):
            if instructions[local].kind == "STEP" and instructions[local].stream == "compute":
                return index, local
            if compute is None and instructions[local].stream == "compute":
                compute = index, local
    assert compute is not None, "a step computes something"
    return compute


@dataclass(frozen=True, slots=True)
class _ColourPlan:
    """How a colour's program is flown: the cut of each call, the instruction that closes the period, and the groups of
    roles that merged segments take to be in step."""

    cuts: tuple[Cut, ...]
    boundary: tuple[int, int]
    roles: tuple[tuple[str, ...], ...]


class _Cutter:
    """Prices and cuts the blocks of each colour; colours alike in program and geometry share the result."""

    def __init__(
        self,
        program: StepProgram,
        cluster: Cluster,
        profile: Profile,
        contention: Contention,
        coarse: bool,
        graph: bool = False,
    ) -> None:
        self.program = program
        self.cluster = cluster
        self.profile = profile
        self.contention = contention
        self.coarse = coarse
        self.graph = graph
        self.pipelined = program.degrees.get("pp", 1) > 1
        self.punctual = False  # whether some single slows compute and may follow from a transfer (see `segments`)
        self._kernels: dict[KernelCall, float] = {}
        self._channels: dict[int, tuple[tuple[str, str], ...]] = {}
        self._known: dict[object, _ColourPlan] = {}

    def channels(self, number: int) -> tuple[tuple[str, str], ...]:
        """(role, channel) of every communicator a class uses."""
        known = self._channels.get(number)
        if known is None:
            comms = (i.comm for block in self.program.classes[number].blocks for i in block.instructions)
            names = dict.fromkeys((comm.role, comm.channel) for comm in comms if comm is not None)
            known = self._channels[number] = tuple(names)
        return known

    def plan(self, colour: Colour) -> _ColourPlan:
        """How a colour's program is flown."""
        kinds = ((role, m.geometry, m.crowded, m.in_step) for role, m in colour.meetings.items())
        key = (colour.program, *kinds)
        if key not in self._known:
            self._known[key] = self._cut(colour)
        return self._known[key]

    def _cut(self, colour: Colour) -> _ColourPlan:
        """The block that closes the period stays uncut, so that its STEP is seen."""
        stage = self.program.classes[colour.program]
        boundary = step_boundary(stage)
        pricer = Pricer(self.profile, colour, stage, self.cluster, self.pipelined, self._kernels, self.graph)
        rows = [pricer.block(block) for block in stage.blocks]
        closing = stage.calls[boundary[0]].block
        merge = [self.coarse and index != closing for index in range(len(stage.blocks))]
        ports = waited_ports(stage)
        cuts = [cut(block, rows[i], merge[i], self.contention, ports[i]) for i, block in enumerate(stage.blocks)]
        chosen = [cuts[call.block] for call in stage.calls]
        self.punctual = self.punctual or any(map(self._has_slowing_single, stage.blocks, cuts))
        fine: dict[int, Cut] = {}
        for index in fine_calls(stage, cuts, self.contention) if self.coarse else ():
            block = stage.calls[index].block
            if block not in fine:
                fine[block] = cut(stage.blocks[block], rows[block], False, self.contention, ports[block])
            chosen[index] = fine[block]
        roles = dict.fromkeys(
            segment.roles for cut_ in (*cuts, *fine.values()) for segment in cut_.segments if segment.roles
        )
        return _ColourPlan(tuple(chosen), boundary, tuple(roles))

    def _has_slowing_single(self, block: Block, cut_: Cut) -> bool:
        """Communications of the step's end and beginning follow from no transfer."""
        singles = (segment.rows[0] for segment in cut_.segments if segment.merge is None)
        factors = self.contention.compute
        return any(factors[row.stream] != 1.0 and block.instructions[row.local].phase != "step" for row in singles)
