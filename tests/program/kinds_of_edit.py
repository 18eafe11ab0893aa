"""Kinds of edit of a step program, each drawn by number so that every rank makes the same one: most break it, some are
sound. A kind returns None where the program has no place for it."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program import Instruction, StepProgram
from program.hashing import program_hash
from tests.program import edit
from tests.program.edit_places import PIPE, Edit, Place, at, like, places, some
from tests.program.edits_of_calls import (
    blocks,
    call_dropped,
    call_moved,
    free_moved,
    freed_again,
    micros,
    neighbours,
    rebound,
    transfer_dropped,
    wait_dropped,
)
from tests.program.edits_of_stages import classes, degree, flats, grouped, norm_weight, of_stage, offsets, slots, views
from tests.program.sound_edits import SOUND

COMPUTE = ("F", "I", "W", "B")


def edited(kind: str, number: int, program: StepProgram) -> StepProgram | None:
    """The `number`-th edit of a kind; None where it is none, or cannot keep the program's references."""
    try:
        found = (KINDS | SOUND)[kind](random.Random(f"{kind} {number}"), program)
    except (ValueError, IndexError):
        return None
    if found is None:
        return None
    found = replace(found, hash=program_hash(found))
    return None if found.hash == program.hash and found.degrees == program.degrees else found


# --- one instruction


def changed(wanted: Callable[[Instruction], bool], change: Callable[[random.Random, Instruction], Any]) -> Edit:
    """A kind that changes one instruction."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        place = some(draw, program, wanted)
        if place is None:
            return None
        new = change(draw, at(program, place))
        return None if new is None else edit.with_instruction(program, *place, new)

    return make


def dropped(wanted: Callable[[Instruction], bool]) -> Edit:
    """A kind that drops one instruction."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        place = some(draw, program, wanted)
        return None if place is None else edit.drop(program, *place)

    return make


def moved(wanted: Callable[[Instruction], bool]) -> Edit:
    """A kind that moves one instruction within its block."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        place = some(draw, program, wanted)
        if place is None:
            return None
        many = len(program.classes[place[0]].blocks[place[1]].instructions)
        return edit.move(program, *place, draw.randrange(many))

    return make


def role(*roles: str) -> Callable[[Instruction], bool]:
    """A communication over one of these."""
    return lambda i: i.comm is not None and i.comm.role in roles


def collective(i: Instruction) -> bool:
    """A communication that is no transfer."""
    return i.comm is not None and i.comm.op not in PIPE


def kind(*kinds: str) -> Callable[[Instruction], bool]:
    """An instruction of one of these kinds."""
    return lambda i: i.kind in kinds


def comm(**fields: Callable[[random.Random, Any], Any]) -> Callable[[random.Random, Instruction], Any]:
    """A change of the communication's fields."""

    def change(draw: random.Random, i: Instruction) -> Instruction:
        assert i.comm is not None
        new = {name: value(draw, getattr(i.comm, name)) for name, value in fields.items()}
        return replace(i, comm=replace(i.comm, **new))

    return change


# --- arguments


def exchanged(side: str) -> Edit:
    """Two buffers of one shape change places among an instruction's reads (or writes)."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        pairs = [
            (place, a, b)
            for place in places(program, lambda i: len(getattr(i, side)) > 1)
            for refs in [getattr(at(program, place), side)]
            for a in range(len(refs))
            for b in range(a)
            if refs[a] != refs[b] and refs[b] in like(program, place, refs[a])
        ]
        if not pairs:
            return None
        place, a, b = draw.choice(pairs)
        refs = list(getattr(at(program, place), side))
        refs[a], refs[b] = refs[b], refs[a]
        return edit.with_instruction(program, *place, replace(at(program, place), **{side: tuple(refs)}))

    return make


def another(side: str, wide: bool) -> Edit:
    """One of an instruction's buffers is another of its shape: a rank-wide one, or one of the block."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        for place in draw.sample(found := places(program, lambda i: bool(getattr(i, side))), len(found)):
            refs = list(getattr(at(program, place), side))
            k = draw.randrange(len(refs))
            others = [r for r in like(program, place, refs[k]) if (r < 0) == wide == (refs[k] < 0)]
            if others:
                refs[k] = draw.choice(others)
                return edit.with_instruction(program, *place, replace(at(program, place), **{side: tuple(refs)}))
        return None

    return make


# --- bodies and declarations


def taken(*names: str, alike: bool = True) -> Edit:
    """An instruction takes fields of another with as many reads and writes."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        found = places(program, lambda i: i.lines is not None)
        pairs = [(a, b) for a in draw.sample(found, min(40, len(found))) for b in found if fits(a, b, program)]
        if not pairs:
            return None
        one, two = draw.choice(pairs)
        new = {name: getattr(at(program, two), name) for name in names}
        return edit.with_instruction(program, *one, replace(at(program, one), **new))

    def fits(a: Place, b: Place, program: StepProgram) -> bool:
        one, two = at(program, a), at(program, b)
        return (len(one.reads), len(one.writes)) == (len(two.reads), len(two.writes)) and any(
            getattr(one, name) != getattr(two, name) for name in names
        )

    return make


def line_dropped(draw: random.Random, i: Instruction) -> Instruction | None:
    """A line of a body is gone."""
    assert i.lines is not None
    if len(i.lines.lines) < 2:
        return None
    k = draw.randrange(len(i.lines.lines))
    return replace(i, lines=replace(i.lines, lines=i.lines.lines[:k] + i.lines.lines[k + 1 :]))


def line_permuted(draw: random.Random, i: Instruction) -> Instruction | None:
    """A line takes its arguments in another order."""
    assert i.lines is not None
    found = [k for k, line in enumerate(i.lines.lines) if len(set(line[1])) > 1]
    if not found:
        return None
    k = draw.choice(found)
    op, arguments, results, given = i.lines.lines[k]
    line = (op, (arguments[1], arguments[0], *arguments[2:]), results, given)
    return replace(i, lines=replace(i.lines, lines=(*i.lines.lines[:k], line, *i.lines.lines[k + 1 :])))


def doubled(wanted: Callable[[Instruction], bool]) -> Edit:
    """An instruction stands twice, the second under another piece's name."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        place = some(draw, program, lambda i: wanted(i) and not i.frees)
        if place is None:
            return None
        class_, number, local = place
        old = program.classes[class_].blocks[number]
        again = replace(at(program, place), piece=at(program, place).piece + ".again")
        order = list(range(len(old.instructions)))
        added = replace(old, instructions=(*old.instructions, again))
        order.insert(local + 1, len(order))
        return edit.with_block(program, class_, number, edit.reorder(added, order))

    return make


def _other(values: list[Any]) -> Callable[[random.Random, Any], Any]:
    return lambda draw, old: draw.choice([v for v in values if v != old])


STREAMS = ["compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd"]
KINDS: dict[str, Edit] = {
    "tensor-parallel collective dropped": dropped(lambda i: collective(i) and role("tp")(i)),
    "data-parallel collective dropped": dropped(lambda i: collective(i) and role("dp")(i)),
    "statistics or tied sum dropped": dropped(role("embed", "model", "world")),
    "transfer dropped": transfer_dropped,
    "compute dropped": dropped(kind(*COMPUTE)),
    "clearing dropped": dropped(kind("ZERO")),
    "load dropped": dropped(kind("LOAD")),
    "step instruction dropped": dropped(kind("NORM", "STEP", "CAST", "ACC", "ADD", "D2H", "H2D", "LOSS")),
    "maximum for sum": changed(collective, comm(reduce=_other(["sum", "max", ""]))),
    "other role": changed(collective, comm(role=_other(["tp", "dp", "model", "world", "embed"]))),
    "other operation": changed(collective, comm(op=_other(["all_reduce", "all_gather", "reduce_scatter"]))),
    "other bytes": changed(lambda i: i.comm is not None, comm(bytes=lambda draw, n: draw.choice([n * 2, n // 2, 0]))),
    "other channel": changed(lambda i: i.comm is not None, comm(channel=_other(["tp", "dp", "fwd", "bwd"]))),
    "other type": changed(lambda i: i.comm is not None, comm(dtype=_other(["fp64", "fp32", "bf16"]))),
    "reads exchanged": exchanged("reads"),
    "writes exchanged": exchanged("writes"),
    "another read": another("reads", wide=False),
    "another write": another("writes", wide=False),
    "another rank-wide read": another("reads", wide=True),
    "another rank-wide write": another("writes", wide=True),
    "unbound": rebound("nothing"),
    "bound to another call": rebound("call"),
    "bound to another port": rebound("port"),
    "micro-batches exchanged": micros(both=True),
    "micro-batch relabelled": micros(both=False),
    "another block": blocks,
    "call moved": call_moved,
    "call dropped": call_dropped,
    "wait dropped": wait_dropped,
    "neighbours swapped": neighbours,
    "compute moved": moved(kind(*COMPUTE)),
    "collective moved": moved(collective),
    "clearing moved": moved(kind("ZERO")),
    "step instruction moved": moved(lambda i: i.phase == "step"),
    "free moved": free_moved,
    "freed again": freed_again,
    "free dropped": changed(lambda i: bool(i.frees), lambda draw, i: replace(i, frees=i.frees[1:])),
    "other stream": changed(lambda i: True, lambda draw, i: replace(i, stream=_other(STREAMS)(draw, i.stream))),
    "receive on another stream": changed(
        lambda i: i.comm is not None and i.comm.op == "recv",
        lambda draw, i: replace(i, stream=_other(STREAMS)(draw, i.stream)),
    ),
    "host does not wait": changed(lambda i: i.host_sync, lambda draw, i: replace(i, host_sync=False)),
    "another's body": taken("lines", "body"),
    "another's declaration": taken("values"),
    "another's price": taken("body"),
    "line dropped": changed(lambda i: i.lines is not None, line_dropped),
    "line's arguments permuted": changed(lambda i: i.lines is not None, line_permuted),
    "nothing declared": changed(lambda i: i.values is not None, lambda draw, i: replace(i, values=None)),
    "no lines": changed(lambda i: i.lines is not None, lambda draw, i: replace(i, lines=None)),
    "other unit": changed(lambda i: True, lambda draw, i: replace(i, unit=max(0, i.unit + draw.choice([-1, 1])))),
    "other phase": changed(
        lambda i: True, lambda draw, i: replace(i, phase=_other(["F", "R", "B", "W"])(draw, i.phase))
    ),
    "collective twice": doubled(collective),
    "compute twice": doubled(kind(*COMPUTE)),
    "parameters exchanged": of_stage(offsets),
    "views exchanged": of_stage(views),
    "flat buffers exchanged": of_stage(flats),
    "norm counts otherwise": of_stage(norm_weight),
    "other slot": of_stage(slots),
    "groups regrouped": grouped("tp", "dp", "model", "embed"),
    "pipeline neighbours exchanged": grouped("pp_next", "pp_prev"),
    "ranks exchange programs": classes,
    "other number of micro-batches": degree,
}
