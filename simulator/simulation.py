"""Simulating a program: from a step program, a cluster and a profile to a `Simulation`.

    simulation = simulate(compile_run(run), run.cluster, load_profile("h100"))
    simulation.step_time_s, simulation.breakdown["bubble"], simulation.memory[0].peak_bytes

Two periods are simulated and the second is reported: the time between two STEPs on a rank, in the steady state of a
long job. Of thousands of micro-batches as many are simulated as it takes until they repeat (`simulator.steady`). The
simulation keeps what each symmetry class of ranks did; instruction rows are expanded only when a timeline is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from calibration.profile import Profile
from program import (
    Block,
    KernelCall,
    RankProgram,
    StepProgram,
    repetitions,
    with_repetitions,
    written_out,
)
from program.cluster import Cluster
from program.gc_paused import gc_paused
from program.timeline import Timeline
from simulator.clock import picoseconds
from simulator.coarsen import Cut, cut, fine_calls, waited_ports
from simulator.costs import Pricer
from simulator.engine import Engine, Lane, RankSimulation
from simulator.fold import SymmetryClass, fold
from simulator.interval import Interval, interval
from simulator.memory import StageMemory, simulate_memory
from simulator.nodes import NotInStep
from simulator.sharing import Contention
from simulator.simulated import Simulated
from simulator.steady import Shift, reach_of, shift_of
from simulator.timeline import predicted_timeline

PERIODS = 2
FEWEST = 4  # repetitions of a steady state that are simulated at least


@dataclass(frozen=True)
class Simulation(Simulated):
    """What a program did, and what follows from it: memory, an interval, a timeline. `whole` simulates what was
    skipped, if anything was; `events` are those simulated."""

    whole: Callable[[], Simulation] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Memory of each class (pipeline stage)."""
        with gc_paused():
            workspace = self.profile.workspace(self.program.execution.kernels)
            return tuple(simulate_memory(stage, self.profile.allocator, workspace) for stage in self.program.classes)

    @cached_property
    def interval(self) -> Interval:
        """First-order interval of the step time."""
        return interval(self)

    def timeline(self, ranks: Sequence[int] | None = None, run: Mapping[str, object] | None = None) -> Timeline:
        """The predicted timeline of the second period: one rank of every symmetry class, or of those that hold `ranks`.
        `run` is what its header says of the run, as plain values."""
        return predicted_timeline(self._all, ranks, run or {})

    @cached_property
    def _all(self) -> Simulation:
        """The simulation in which every instruction has its times."""
        if self.whole is None:
            return self
        with gc_paused():
            return self.whole()


def simulate(
    program: StepProgram,
    cluster: Cluster,
    profile: Profile,
    *,
    unfold: bool = False,
    coarse: bool = True,
    skip: bool = True,
) -> Simulation:
    """Simulate two periods of a program. `unfold` simulates every rank; `coarse` merges instructions and `skip` leaves
    out repetitions of a steady state, both where that is exact."""
    with gc_paused():
        try:
            return _job(program, cluster, profile, unfold, coarse).simulation(skip)
        except NotInStep:
            return _job(program, cluster, profile, unfold, False).simulation(skip)


def _job(program: StepProgram, cluster: Cluster, profile: Profile, unfold: bool, coarse: bool) -> _Job:
    synchronous = cluster.device == "cpu"
    profile = profile.for_kernels(program.execution.kernels)
    if not program.execution.own_host_code:
        profile = profile.of_a_framework()
    if synchronous:
        profile = profile.for_threads(cluster.threads_per_rank)
    return _Job(program, cluster, profile, fold(program, cluster, unfold, synchronous), coarse)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is simulated, and with what."""

    program: StepProgram
    cluster: Cluster
    profile: Profile
    symmetry_classes: tuple[SymmetryClass, ...]
    coarse: bool
    kernels: dict[KernelCall, float] = field(default_factory=dict)  # prices found so far

    def simulation(self, skip: bool) -> Simulation:
        """The simulation of all repetitions, or of the fewest that tell what the others would do."""
        return (self._skipping() if skip else None) or self._whole()

    def _whole(self) -> Simulation:
        """Simulate all."""
        engine = self._engine(written_out(self.program), kept=False)
        engine.simulate()
        return self._simulation(engine)

    def _skipping(self) -> Simulation | None:
        """Simulate ever more repetitions until they come again; None when that takes most of them."""
        total, times = repetitions(self.program), FEWEST
        reach = self._reach() if 2 * times < total else None
        if reach is None:
            return None
        times = max(times, 3 * reach)
        while 2 * times < total:
            short = with_repetitions(self.program, times)
            engine = self._engine(written_out(short), kept=True)
            engine.simulate()
            shift = shift_of(
                [short.classes[symmetry_class.program] for symmetry_class in self.symmetry_classes], engine, reach
            )
            if shift is not None and (total - times) % shift.every == 0:
                return self._simulation(engine, shift, (total - times) // shift.every)
            times = 4 * times if shift is None else times + (total - times) % shift.every
        return None

    def _reach(self) -> int | None:
        """How far repetitions look; None where nothing may be skipped. Where streams slow each other both ways, or a
        CPU's cores are shared, what runs beside what is more than a few nodes' business."""
        engine = self._engine(written_out(with_repetitions(self.program, FEWEST)), kept=False)
        stages = [self.program.classes[symmetry_class.program] for symmetry_class in self.symmetry_classes]
        return None if engine.shared or engine.synchronous else reach_of(stages, engine)

    def _engine(self, program: StepProgram, kept: bool) -> Engine:
        profile, synchronous = self.profile, self.cluster.device == "cpu"
        contention = Contention.of(profile)
        cores = profile.cores.cores if synchronous and profile.cores is not None else None
        wake_ps = picoseconds(profile.host_issue_s("wake")) if synchronous else 0
        engine = Engine(contention, synchronous, cores, wake_ps, PERIODS, kept)
        coarse = self.coarse and not synchronous
        plans = _Cutter(program, self.cluster, profile, contention, coarse, self.kernels)
        engine.ranks = [
            _rank(engine, self.symmetry_classes, symmetry_class, plans) for symmetry_class in self.symmetry_classes
        ]
        engine.checks_all = plans.checks_all
        return engine

    def _simulation(self, engine: Engine, shift: Shift | None = None, shifts: int = 0) -> Simulation:
        """What the engine's ranks did, with so many shifts that they did not."""
        ranks = engine.ranks
        periods = [rank.marks[-1][0] - (rank.marks[-2][0] if PERIODS > 1 else 0) for rank in ranks]
        accounts = [tuple(rank.marks[-1][1]) for rank in ranks]
        if shift is not None:
            periods = [period + shifts * shift.time_ps for period in periods]
            accounts = [
                tuple(time + shifts * more for time, more in zip(account, adds, strict=True))
                for account, adds in zip(accounts, shift.accounts, strict=True)
            ]
        return Simulation(
            program=self.program,
            cluster=self.cluster,
            profile=self.profile,
            symmetry_classes=self.symmetry_classes,
            periods_ps=tuple(periods),
            accounts=tuple(accounts),
            events=engine.clock.events,
            ranks=tuple(ranks),
            whole=None if shift is None else self._whole,
        )


def _rank(
    engine: Engine, symmetry_classes: Sequence[SymmetryClass], symmetry_class: SymmetryClass, plans: _Cutter
) -> RankSimulation:
    """A symmetry class's rank with its cuts, and its ends of every channel and in-step check."""
    stage = plans.program.classes[symmetry_class.program]
    plan = plans.plan(symmetry_class)
    device, many = engine.device(symmetry_class.node), symmetry_class.beside[symmetry_class.index]
    rank = RankSimulation(engine, f"rank {symmetry_class.rank}", stage, plan.cuts, plan.boundary, device, many)
    for role, name in plans.channels(symmetry_class.program):
        group_instance = symmetry_class.group_instances.get(role)
        if group_instance is not None and group_instance.has_peers:
            rank.lanes[role, name] = Lane(engine.channel((group_instance.name, name), len(group_instance.members)))
    for roles in plan.roles:
        members = _in_step(symmetry_classes, symmetry_class, roles)
        rank.in_step_checks[roles] = engine.in_step_check((roles, members), len(members))
    return rank


def _in_step(
    symmetry_classes: Sequence[SymmetryClass], symmetry_class: SymmetryClass, roles: Sequence[str]
) -> tuple[int, ...]:
    """Everybody reached from a symmetry class through the groups of `roles`."""
    found, new = {symmetry_class.index}, [symmetry_class.index]
    while new:
        index = new.pop()
        reached = {member for role in roles for member in symmetry_classes[index].group_instances[role].members} - found
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
class _ClassPlan:
    """How a symmetry class's program is simulated: the cut of each call, the instruction that closes the period, and
    the groups of roles that merged segments take to be in step."""

    cuts: tuple[Cut, ...]
    boundary: tuple[int, int]
    roles: tuple[tuple[str, ...], ...]


class _Cutter:
    """Prices and cuts the blocks of each symmetry class; symmetry classes alike in program and geometry share the
    result."""

    def __init__(
        self,
        program: StepProgram,
        cluster: Cluster,
        profile: Profile,
        contention: Contention,
        coarse: bool,
        kernels: dict[KernelCall, float],
    ) -> None:
        self.program = program
        self.cluster = cluster
        self.profile = profile
        self.contention = contention
        self.coarse = coarse
        self.pipelined = program.degrees.get("pp", 1) > 1
        self.checks_all = False  # whether some single slows compute and may follow from a transfer (see `segments`)
        self._kernels = kernels
        self._channels: dict[int, tuple[tuple[str, str], ...]] = {}
        self._known: dict[object, _ClassPlan] = {}

    def channels(self, number: int) -> tuple[tuple[str, str], ...]:
        """(role, channel) of every communicator a class uses."""
        known = self._channels.get(number)
        if known is None:
            comms = (i.comm for block in self.program.classes[number].blocks for i in block.instructions)
            names = dict.fromkeys((comm.role, comm.channel) for comm in comms if comm is not None)
            known = self._channels[number] = tuple(names)
        return known

    def plan(self, symmetry_class: SymmetryClass) -> _ClassPlan:
        """How a symmetry class's program is simulated."""
        kinds = ((role, m.geometry, m.has_peers, m.in_step) for role, m in symmetry_class.group_instances.items())
        key = (symmetry_class.program, *kinds)
        if key not in self._known:
            self._known[key] = self._cut(symmetry_class)
        return self._known[key]

    def _cut(self, symmetry_class: SymmetryClass) -> _ClassPlan:
        """The block that closes the period stays uncut, so that its STEP is seen."""
        stage = self.program.classes[symmetry_class.program]
        boundary = step_boundary(stage)
        graph = self.program.execution.graph
        pricer = Pricer(self.profile, symmetry_class, stage, self.cluster, self.pipelined, self._kernels, graph)
        rows = [pricer.block(block) for block in stage.blocks]
        closing = stage.calls[boundary[0]].block
        merge = [self.coarse and index != closing for index in range(len(stage.blocks))]
        ports = waited_ports(stage)
        cuts = [cut(block, rows[i], merge[i], self.contention, ports[i]) for i, block in enumerate(stage.blocks)]
        chosen = [cuts[call.block] for call in stage.calls]
        self.checks_all = self.checks_all or any(map(self._has_slowing_single, stage.blocks, cuts))
        fine: dict[int, Cut] = {}
        for index in fine_calls(stage, cuts, self.contention) if self.coarse else ():
            block = stage.calls[index].block
            if block not in fine:
                fine[block] = cut(stage.blocks[block], rows[block], False, self.contention, ports[block])
            chosen[index] = fine[block]
        roles = dict.fromkeys(
            segment.roles for cut_ in (*cuts, *fine.values()) for segment in cut_.segments if segment.roles
        )
        return _ClassPlan(tuple(chosen), boundary, tuple(roles))

    def _has_slowing_single(self, block: Block, cut_: Cut) -> bool:
        """Communications of the step's end and beginning follow from no transfer."""
        singles = (segment.rows[0] for segment in cut_.segments if segment.merge is None)
        factors = self.contention.compute
        return any(factors[row.stream] != 1.0 and block.instructions[row.local].phase != "step" for row in singles)
