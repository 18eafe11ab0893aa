"""Flying a program: from a step program, a run and a profile to a `Flight`.

    flight = fly(compile_run(run), run, load_profile("h100"))
    flight.step_time_s, flight.breakdown["bubble"], flight.memory[0].peak_bytes

Two periods are flown and the second is reported: the time between two STEPs on a rank, in the steady state of a long
job. The flight keeps what each colour of ranks did; instruction rows are expanded only when a timeline is asked for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from calibration.profile import Profile
from plan.program import Block, KernelCall, RankProgram, StepProgram
from plan.run import Run
from plan.timeline import Timeline
from simulator.breakdown import CLASSES, fractions
from simulator.clock import picoseconds, seconds
from simulator.coarsen import Cut, cut, fine_calls, waited_ports
from simulator.costs import Pricer
from simulator.engine import Engine, Lane, RankFlight
from simulator.fold import Colour, fold
from simulator.interval import Interval, interval
from simulator.memory import StageMemory, fly_memory
from simulator.sharing import Contention
from simulator.timeline import predicted_timeline

PERIODS = 2


@dataclass(frozen=True)
class Flight:
    """What a program did. Times in seconds; `periods_ps` and `accounts` are those of each colour, in picoseconds."""

    program: StepProgram
    run: Run
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

    @property
    def rank_0_step_time_s(self) -> float:
        """The period of rank 0."""
        return seconds(self.periods_ps[0])

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """The ten `time` fractions: mean over ranks of exclusive critical time; they sum to 1."""
        totals = [0] * len(CLASSES)
        for colour, account in zip(self.colours, self.accounts, strict=True):
            for index, time in enumerate(account):
                totals[index] += time * len(colour.ranks)
        return fractions(totals)

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Memory of each class (pipeline stage)."""
        return tuple(fly_memory(stage, self.profile.allocator) for stage in self.program.classes)

    @cached_property
    def interval(self) -> Interval:
        """First-order interval of the step time."""
        return interval(self)

    def timeline(self, ranks: Sequence[int] | None = None) -> Timeline:
        """The predicted timeline of the second period: one rank of every colour, or of those that hold `ranks`."""
        return predicted_timeline(self, ranks)


def fly(program: StepProgram, run: Run, profile: Profile, *, unfold: bool = False, coarse: bool = True) -> Flight:
    """Fly two periods of a program. `unfold` flies every rank; `coarse` merges instructions where that is exact."""
    with _uncollected():
        return _fly(program, run, profile, unfold, coarse)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A flight makes many small objects that all live until its end: looking for cycles among them takes half as long
    again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _fly(program: StepProgram, run: Run, profile: Profile, unfold: bool, coarse: bool) -> Flight:
    synchronous = run.cluster.device == "cpu"
    if synchronous:
        profile = profile.for_threads(run.cluster.threads_per_rank)
    colours = fold(program, run.cluster, unfold, synchronous)
    contention = Contention.of(profile)
    cores = profile.cores.cores if synchronous and profile.cores is not None else None
    wake_ps = picoseconds(profile.host_issue_s("wake", 0)) if synchronous else 0
    engine = Engine(contention, synchronous, cores, wake_ps, PERIODS)
    plans = _Cutter(program, profile, contention, coarse and not synchronous)
    engine.ranks = [_rank(engine, program, colour, plans) for colour in colours]
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


def _rank(engine: Engine, program: StepProgram, colour: Colour, plans: _Cutter) -> RankFlight:
    stage = program.classes[colour.program]
    boundary = step_boundary(stage)
    rank = RankFlight(
        engine,
        f"rank {colour.rank}",
        stage,
        plans.cuts(colour, boundary),
        boundary,
        engine.device(colour.node),
        colour.beside[colour.index],
    )
    for meeting in colour.meetings.values():
        members = len(set(meeting.members))
        if members > 1:
            for name in plans.channel_names(stage):
                rank.lanes[meeting.name, name] = Lane(engine.channel((meeting.name, name), members))
    return rank


def step_boundary(stage: RankProgram) -> tuple[int, int]:
    """(call, local id) whose end closes a period: the last STEP; in a program without one the last compute
    instruction."""
    compute: tuple[int, int] | None = None
    for index in range(len(stage.calls) - 1, -1, -1):
        instructions = stage.blocks[stage.calls[index].block].instructions
        for local in range(len(instructions) - 1, -1, -1):
            if instructions[local].kind == "STEP":
                return index, local
            if compute is None and instructions[local].stream == "compute":
                compute = index, local
    assert compute is not None, "a step computes something"
    return compute


class _Cutter:
    """Prices and cuts blocks for each colour, and remembers kernel prices."""

    def __init__(self, program: StepProgram, profile: Profile, contention: Contention, coarse: bool) -> None:
        self.program = program
        self.profile = profile
        self.contention = contention
        self.coarse = coarse
        self.pipelined = program.degrees.get("pp", 1) > 1
        self.punctual = False  # whether some single slows compute and may follow from a transfer (see `segments`)
        self._kernels: dict[KernelCall, float] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def channel_names(self, stage: RankProgram) -> tuple[str, ...]:
        """Channels a stage communicates on."""
        known = self._names.get(id(stage))
        if known is None:
            comms = (i.comm for block in stage.blocks for i in block.instructions)
            known = self._names[id(stage)] = tuple(dict.fromkeys(comm.channel for comm in comms if comm is not None))
        return known

    def cuts(self, colour: Colour, boundary: tuple[int, int]) -> list[Cut]:
        """The cut of each call of a colour's program. The block that closes the period stays uncut, so that its STEP is
        seen."""
        stage = self._stage(colour)
        pricer = Pricer(self.profile, colour, self.pipelined, self._kernels)
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
        return chosen

    def _has_slowing_single(self, block: Block, cut_: Cut) -> bool:
        """Communications of the step's end and beginning follow from no transfer."""
        singles = (segment.rows[0] for segment in cut_.segments if segment.merge is None)
        factors = self.contention.compute
        return any(factors[row.stream] != 1.0 and block.instructions[row.local].phase != "step" for row in singles)

    def _stage(self, colour: Colour) -> RankProgram:
        return self.program.classes[colour.program]
