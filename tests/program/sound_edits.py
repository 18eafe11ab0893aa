"""Sound kinds of edit: the program does the same, written otherwise. The proofs should accept them."""

import random
from dataclasses import replace
from typing import Any

from program import StepProgram
from tests.program import edit
from tests.program.edit_places import Edit, at, places, some


def wait_added(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """An instruction waits for an earlier one too."""
    place = some(draw, program, lambda i: True)
    if place is None or place[2] == 0:
        return None
    i = at(program, place)
    return edit.with_instruction(program, *place, replace(i, waits=tuple(sorted({*i.waits, draw.randrange(place[2])}))))


def redundant_wait_dropped(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """Of waits that others imply, added before, one is gone again."""
    found = []
    for class_, number, local in places(program, lambda i: any(w >= 1 for w in i.waits)):
        block = program.classes[class_].blocks[number]
        waits = block.instructions[local].waits
        stream = block.instructions[max(waits)].stream
        early = [k for k in range(max(waits)) if block.instructions[k].stream == stream and k not in waits]
        if len(early) > 1:
            found.append(((class_, number, local), early))
    if not found:
        return None
    place, early = draw.choice(found)
    i = at(program, place)
    more = edit.with_instruction(program, *place, replace(i, waits=tuple(sorted({*i.waits, *early[-2:]}))))
    return edit.drop_wait(more, *place, early[-1])


def independent_swapped(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """Two neighbours that nothing orders, of which at most one communicates, change places."""
    found = [
        (class_, number, local)
        for class_, number, local in places(program, lambda i: True)
        if local > 0 and _independent(program, class_, number, local)
    ]
    if not found:
        return None
    class_, number, local = draw.choice(found)
    return edit.swap(program, class_, number, local, local - 1)


def _independent(program: StepProgram, class_: int, number: int, local: int) -> bool:
    stage = program.classes[class_]
    block = stage.blocks[number]

    def storage(refs: tuple[int, ...]) -> set[Any]:
        held = [stage.buffers[-1 - r] if r < 0 else block.buffers[r] for r in refs]
        return {
            b.slot or (("wide", b.base[0]) if b.base is not None else ("wide", -1 - r) if r < 0 else r)
            for r, b in zip(refs, held, strict=True)
        }

    a, b = block.instructions[local - 1], block.instructions[local]
    ours, theirs = (storage((*i.reads, *i.writes, *i.frees)) for i in (a, b))
    touched = storage((*a.writes, *a.frees, *b.writes, *b.frees))
    quiet = not (a.comm and b.comm) and not a.host_sync and not b.host_sync and not b.frees and not a.frees
    ordered = local - 1 in b.waits or (a.stream == b.stream and bool(a.waits))
    return quiet and not ordered and not ours & theirs & touched


def buffers_renumbered(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """The buffers of a block have other numbers."""
    class_, number, _ = draw.choice(places(program, lambda i: True))
    block = program.classes[class_].blocks[number]
    order = list(range(len(block.buffers)))
    draw.shuffle(order)
    new = {old: k for k, old in enumerate(order)}

    def ref(old: int | None) -> Any:
        return old if old is None or old < 0 else new[old]

    held = []
    for old in order:
        b = block.buffers[old]
        held.append(replace(b, base=(new[b.base[0]], b.base[1])) if b.slot is not None and b.base is not None else b)
    instructions = tuple(
        replace(i, reads=tuple(map(ref, i.reads)), writes=tuple(map(ref, i.writes)), frees=tuple(map(ref, i.frees)))
        for i in block.instructions
    )
    ins = tuple(replace(p, buffer=ref(p.buffer)) for p in block.ports_in)
    outs = tuple(replace(p, buffer=ref(p.buffer)) for p in block.ports_out)
    made = replace(block, buffers=tuple(held), instructions=instructions, ports_in=ins, ports_out=outs)
    return edit.with_block(program, class_, number, made)


def slot_doubled(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A block's tenants of a slot lie in a slot of their own."""
    found = []
    for class_, stage in enumerate(program.classes):
        for number, block in enumerate(stage.blocks):
            brought = {p.buffer for p in block.ports_in} | {p.buffer for p in block.ports_out}
            names = {b.slot for k, b in enumerate(block.buffers) if b.slot is not None and k not in brought}
            names -= {b.slot for k, b in enumerate(block.buffers) if k in brought}
            found += [(class_, number, name) for name in sorted(n for n in names if n and not n.startswith("shard."))]
    if not found:
        return None
    class_, number, name = draw.choice(found)
    stage = program.classes[class_]
    place = next(b for b in stage.buffers if b.slot == name)
    block = stage.blocks[number]
    held = tuple(replace(b, slot="own slot") if b.slot == name else b for b in block.buffers)
    blocks_ = (*stage.blocks[:number], replace(block, buffers=held), *stage.blocks[number + 1 :])
    wide = (*stage.buffers, replace(place, slot="own slot", what="own slot"))
    return edit.with_class(program, class_, replace(stage, blocks=blocks_, buffers=wide))


def later_free(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A buffer is freed later, by the last compute instruction of its block."""
    place = some(draw, program, lambda i: bool(i.frees))
    if place is None:
        return None
    last = max(p[2] for p in places(program, lambda i: i.stream == "compute") if p[:2] == place[:2])
    if last == place[2]:
        return None
    ref = draw.choice(at(program, place).frees)
    kept = tuple(r for r in at(program, place).frees if r != ref)
    without = edit.with_instruction(program, *place, replace(at(program, place), frees=kept))
    there = (*place[:2], last)
    return edit.with_instruction(without, *there, replace(at(without, there), frees=(*at(without, there).frees, ref)))


def renamed(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """A block and its activations have other names."""
    class_, number, _ = draw.choice(places(program, lambda i: True))
    block = program.classes[class_].blocks[number]
    held = tuple(replace(b, what="renamed") if b.pool in ("act", "stash") else b for b in block.buffers)
    return edit.with_block(program, class_, number, replace(block, name=block.name + " renamed", buffers=held))


SOUND: dict[str, Edit] = {
    "wait added": wait_added,
    "redundant wait dropped": redundant_wait_dropped,
    "independent neighbours swapped": independent_swapped,
    "buffers renumbered": buffers_renumbered,
    "slot doubled": slot_doubled,
    "later free": later_free,
    "block renamed": renamed,
}
