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
from functools import cached_property, partial

from calibration.profile import Profile
from program import KernelCall, Repeated, StepProgram, repetitions, with_repetitions, written_out
from program.cluster import Cluster
from program.gc_paused import gc_paused
from program.timeline import Timeline
from simulator.call_script import Growing, NotRepeating, Repeating, Script
from simulator.clock import picoseconds
from simulator.cutter import Cutter
from simulator.engine import Engine
from simulator.fold import SymmetryClass, fold
from simulator.interval import Interval, interval
from simulator.memory import StageMemory, simulate_memory
from simulator.nodes import NotInStep
from simulator.rank_simulation import Lane, RankSimulation
from simulator.sharing import Contention
from simulator.simulated import Simulated
from simulator.steady import Shift, rows_of, settled, shift_of
from simulator.timeline import predicted_timeline

PERIODS = 2
FEWEST = 4  # repetitions that are fewer than half of those worth skipping, and have every block waited for


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
        engine = self._engine(written_out(self.program))
        engine.simulate()
        return self._simulation(engine)

    def _skipping(self) -> Simulation | None:
        """Simulate repetitions until they come again; None when that takes most of them, and where nothing may be
        skipped: where streams slow each other both ways, or a CPU's cores are shared, what runs beside what is more
        than a few nodes' business."""
        total, least = repetitions(self.program), 0
        if total <= 2 * FEWEST:
            return None
        short = written_out(with_repetitions(self.program, FEWEST))
        stages = [self.program.classes[symmetry_class.program] for symmetry_class in self.symmetry_classes]
        while True:
            repeating = Repeating(len(stages), PERIODS, total, least)
            engine = self._engine(short, repeating)
            if engine.shared or engine.synchronous or (rows := rows_of(stages, engine)) is None:
                return None
            repeating.rows, repeating.settled = rows, partial(settled, stages, engine, rows)
            try:
                engine.simulate()
            except NotRepeating:
                return None
            times = repeating.simulated()
            shift = shift_of(stages, engine, rows, times)
            if shift is not None and (total - times[-1]) % shift.every == 0:
                for rank in engine.ranks:
                    rank.forget()
                return self._simulation(engine, shift, (total - times[-1]) // shift.every)
            least = 3 * max(times) // 2

    def _engine(self, program: StepProgram, repeating: Repeating | None = None) -> Engine:
        """The ranks that execute `program`, with as many repetitions of the whole step as `repeating` finds."""
        profile, synchronous = self.profile, self.cluster.device == "cpu"
        contention = Contention.of(profile)
        cores = profile.cores.cores if synchronous and profile.cores is not None else None
        wake_ps = picoseconds(profile.host_issue_s("wake")) if synchronous else 0
        engine = Engine(contention, synchronous, cores, wake_ps, PERIODS)
        coarse = self.coarse and not synchronous
        plans = Cutter(program, self.cluster, profile, contention, coarse, self.kernels)
        engine.ranks = [self._rank(engine, each, plans, repeating) for each in self.symmetry_classes]
        engine.hears_of(plans.checks_all)
        return engine

    def _rank(
        self, engine: Engine, symmetry_class: SymmetryClass, plans: Cutter, repeating: Repeating | None
    ) -> RankSimulation:
        """A symmetry class's rank with its script, and its ends of every channel and in-step check."""
        number, plan = symmetry_class.program, plans.plan(symmetry_class)
        stage, calls = plans.program.classes[number], self.program.classes[number].calls
        script = Script(stage.calls, plan.cuts, plan.boundary)
        if repeating is not None:
            assert isinstance(calls, Repeated)
            boundary = (plan.boundary[0] - len(stage.calls), plan.boundary[1])
            script = Growing(calls, plan.of_blocks, boundary, repeating, symmetry_class.index)
        device, many = engine.device(symmetry_class.node), symmetry_class.beside[symmetry_class.index]
        rank = RankSimulation(engine, f"rank {symmetry_class.rank}", stage, script, device, many)
        for role, name in plans.channels(number):
            group_instance = symmetry_class.group_instances.get(role)
            if group_instance is not None and group_instance.has_peers:
                rank.lanes[role, name] = Lane(engine.channel((group_instance.name, name), len(group_instance.members)))
        for roles in plan.roles:
            members = _in_step(self.symmetry_classes, symmetry_class, roles)
            rank.in_step_checks[roles] = engine.in_step_check((roles, members), len(members))
        return rank

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
