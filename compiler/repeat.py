"""The calls of a stage; those of a steady state are placed a few times and written as a repetition.

Placing calls is an automaton: what it does next depends on the schedule and on a few queues of slots and ports. The
short step and the one that is a repetition longer (`compiler.schedules.placements`) are placed both. Where the longer
is the shorter with one stretch put in, everything behind it moved by constants, and the stretch itself stands there
several times over, the state has come again, and so it can be put in as often as the step needs. Otherwise all calls
are placed one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from compiler.call_placer import CallPlacer
from compiler.schedules import Placement, Steady
from compiler.stage import StageBlocks
from program import Call, RankProgram, Repeated

STANDS = 2  # how many repetitions the short step must hold around the seam


def place_calls(blocks: StageBlocks, placement: Placement) -> RankProgram:
    """The stage's program. `blocks` has its forward and backward blocks; transfers and the close are added here."""
    if placement.steady is not None:
        before = len(blocks.blocks), dict(blocks.context.allocator.sizes)
        calls = _both(blocks, placement, placement.steady)
        if calls is not None:
            return _program(blocks, calls)
        _forget(blocks, *before)
        placement = placement.steady.whole()[placement.steady.stage]
    placer = CallPlacer(blocks, placement)
    placer.place()
    placer.close()
    return _program(blocks, tuple(placer.calls))


def _program(blocks: StageBlocks, calls: Sequence[Call]) -> RankProgram:
    context, parameters = blocks.context, blocks.context.parameters
    return RankProgram(
        context.stage, tuple(blocks.blocks), calls, context.buffers(), parameters.params, parameters.buckets
    )


def _forget(blocks: StageBlocks, many: int, slots: Collection[str]) -> None:
    """Drop the blocks and slots that were added for a short step."""
    for kept in (blocks.blocks, blocks.in_ports, blocks.out_ports):
        del kept[many:]
    blocks.index = {name: block for name, block in blocks.index.items() if block < many}
    sizes = blocks.context.allocator.sizes
    for name in [name for name in sizes if name not in slots]:
        del sizes[name]


def _both(blocks: StageBlocks, short: Placement, steady: Steady) -> Repeated | None:
    """The repeated calls, or None when the longer step is not the short one with a repetition more."""
    one = CallPlacer(blocks, short)
    more = one.shared(steady.longer)
    one.place()
    known = len(blocks.blocks)
    more.place()
    if len(blocks.blocks) != known:
        return None
    left = one.close()
    if more.close(len(blocks.blocks) - 1) != left:
        return None
    return repeated(one.calls, more.calls, steady.times, len(blocks.blocks))


def repeated(short: Sequence[Call], longer: Sequence[Call], times: int, blocks: int) -> Repeated | None:
    """`short` with `times` repetitions of what `longer` has more, put in where it may stand; None where it may not."""
    period, ids = len(longer) - len(short), longer[-1].base - short[-1].base
    latest = next((i for i, (a, b) in enumerate(zip(short, longer, strict=False)) if a != b), len(short))
    if not 0 < period <= latest // STANDS:
        return None
    micros = longer[latest].micro - short[latest - period].micro
    found = _Moves(period, micros, ids)
    earliest = len(short)
    while earliest and found.take(short[earliest - 1], longer[earliest - 1 + period]):
        earliest -= 1
    turn = found.turn
    if latest - earliest < STANDS * period or set(turn) != set(turn.values()):
        return None
    turns = tuple(turn.get(block, block) for block in range(blocks))
    seam = latest - STANDS * period
    return _shortened(Repeated(tuple(short), seam, period, times, micros, ids, found.anchor, turns))


def _shortened(calls: Repeated) -> Repeated | None:
    """The same calls with one repetition more to put in and one fewer of those that stand behind the seam; None when
    what follows looks into the one that goes."""
    tail = calls.kept[calls.seam + calls.period :]
    gone = range(calls.anchor, calls.anchor + calls.period)
    if any(bound in gone for call in tail for bound, _ in call.bindings):
        return None
    kept = (*calls.kept[: calls.seam], *(calls.moved(call, -1) for call in tail))
    return replace(calls, kept=kept, times=calls.times + 1)


@dataclass(slots=True)
class _Moves:
    """How calls of the short step move in the longer one: taken from the last call backwards, as long as one rule holds
    for all. Bindings to `anchor` and behind it move by a period, those to `fixed` and before it stay."""

    period: int
    micros: int
    ids: int
    anchor: int = 1 << 62
    fixed: int = -1
    turn: dict[int, int] = field(default_factory=dict)

    def take(self, short: Call, longer: Call) -> bool:
        """Whether a call follows the rule too."""
        micros = self.micros if short.micro >= 0 else 0
        if (longer.base - short.base, longer.micro - short.micro) != (self.ids, micros):
            return False
        if len(short.bindings) != len(longer.bindings):
            return False
        anchor, fixed = self.anchor, self.fixed
        for (a, port), (b, other) in zip(short.bindings, longer.bindings, strict=True):
            if port != other or (a < 0) != (b < 0) or b - a not in (0, self.period):
                return False
            if a >= 0 and b > a:
                anchor = min(anchor, a)
            elif a >= 0:
                fixed = max(fixed, a)
        if anchor <= fixed or self.turn.setdefault(short.block, longer.block) != longer.block:
            return False
        self.anchor, self.fixed = anchor, fixed
        return True
