"""Edits of a step program's calls: what they are bound to, their micro-batches and order, waits and frees."""

import random
from dataclasses import replace

from program import StepProgram
from tests.program import edit
from tests.program.edit_places import PIPE, Edit, at, places, some


def rebound(how: str) -> Edit:
    """An in-port is bound to another call, to another out-port, or to nothing."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        class_ = draw.randrange(len(program.classes))
        stage = program.classes[class_]
        bound = [(c, k) for c, call in enumerate(stage.calls) for k, (b, _) in enumerate(call.bindings) if b >= 0]
        for call, port in draw.sample(bound, len(bound)):
            source, out = stage.calls[call].bindings[port]
            twins = [c for c in range(call) if stage.calls[c].block == stage.calls[source].block and c != source]
            outs = [k for k in range(len(stage.blocks[stage.calls[source].block].ports_out)) if k != out]
            choices = {"nothing": [(-1, -1)], "call": [(c, out) for c in twins], "port": [(source, k) for k in outs]}
            if choices[how]:
                return edit.rebind(program, class_, call, port, draw.choice(choices[how]))
        return None

    return make


def micros(both: bool) -> Edit:
    """Two calls of a block exchange their micro-batches, or one takes another."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        class_ = draw.randrange(len(program.classes))
        stage = program.classes[class_]
        calls = list(stage.calls)
        pairs = [
            (a, b) for a in range(len(calls)) for b in range(a)
            if calls[a].block == calls[b].block and calls[a].micro != calls[b].micro
        ]  # fmt: skip
        if not pairs:
            return None
        a, b = draw.choice(pairs)
        one, two = calls[a].micro, calls[b].micro
        calls[a] = replace(calls[a], micro=two)
        if both:
            calls[b] = replace(calls[b], micro=one)
        return edit.with_class(program, class_, replace(stage, calls=tuple(calls)))

    return make


def blocks(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A call places another block with as many ports."""
    class_ = draw.randrange(len(program.classes))
    stage = program.classes[class_]
    ports = [len(block.ports_in) for block in stage.blocks]
    pairs = [(c, b) for c, call in enumerate(stage.calls) for b, n in enumerate(ports)
             if b != call.block and n == ports[call.block]]  # fmt: skip
    if not pairs:
        return None
    call, block = draw.choice(pairs)
    calls = (*stage.calls[:call], replace(stage.calls[call], block=block), *stage.calls[call + 1 :])
    return edit.with_class(program, class_, replace(stage, calls=calls))


def call_moved(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A call is issued earlier or later."""
    class_ = draw.randrange(len(program.classes))
    last = len(program.classes[class_].calls) - 1
    call = draw.randint(0, last)
    return edit.move_call(program, class_, call, min(last, max(0, call + draw.randint(-3, 3))))


def transfer_dropped(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A call that sends or receives is gone."""
    place = some(draw, program, lambda i: i.comm is not None and i.comm.op in PIPE)
    if place is None:
        return None
    calls = [k for k, call in enumerate(program.classes[place[0]].calls) if call.block == place[1]]
    return edit.drop_call(program, place[0], draw.choice(calls))


def call_dropped(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A call is gone."""
    class_ = draw.randrange(len(program.classes))
    return edit.drop_call(program, class_, draw.randrange(len(program.classes[class_].calls)))


# --- waits, frees, order


def wait_dropped(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """An instruction waits for one fewer."""
    place = some(draw, program, lambda i: bool(i.waits))
    return None if place is None else edit.drop_wait(program, *place, draw.choice(at(program, place).waits))


def neighbours(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """Two neighbours of a block change places."""
    place = some(draw, program, lambda i: True)
    if place is None or place[2] == 0:
        return None
    return edit.swap(program, *place, place[2] - 1)


def free_moved(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A buffer is freed by another instruction."""
    place = some(draw, program, lambda i: bool(i.frees))
    if place is None:
        return None
    ref = draw.choice(at(program, place).frees)
    kept = tuple(r for r in at(program, place).frees if r != ref)
    without = edit.with_instruction(program, *place, replace(at(program, place), frees=kept))
    there = draw.choice([p for p in places(without, lambda i: i.stream == "compute") if p[:2] == place[:2]])
    return edit.with_instruction(without, *there, replace(at(without, there), frees=(*at(without, there).frees, ref)))


def freed_again(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A buffer is freed by one that does not own it."""
    place = some(draw, program, lambda i: i.stream == "compute" and any(r >= 0 for r in i.reads))
    if place is None:
        return None
    i = at(program, place)
    return edit.with_instruction(
        program, *place, replace(i, frees=(*i.frees, draw.choice([r for r in i.reads if r >= 0])))
    )
