"""Edits of what a stage holds, and of who belongs to which group: storage, parameters, degrees."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program import StepProgram
from tests.program import edit
from tests.program.edit_places import Edit


def of_stage(change: Callable[[random.Random, Any], Any]) -> Edit:
    """A kind that changes one class."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        class_ = draw.randrange(len(program.classes))
        new = change(draw, program.classes[class_])
        return None if new is None else edit.with_class(program, class_, new)

    return make


def offsets(draw: random.Random, stage: Any) -> Any:
    """Two parameters of one shape exchange their places."""
    params = list(stage.params)
    pairs = [(a, b) for a in range(len(params)) for b in range(a) if params[a].local_shape == params[b].local_shape]
    if not pairs:
        return None
    a, b = draw.choice(pairs)
    one, two = params[a], params[b]
    params[a] = replace(one, bucket=two.bucket, offset=two.offset)
    params[b] = replace(two, bucket=one.bucket, offset=one.offset)
    return replace(stage, params=tuple(params))


def views(draw: random.Random, stage: Any) -> Any:
    """Two views of one shape exchange what they view."""
    held = list(stage.buffers)
    found = [k for k, b in enumerate(held) if b.base is not None]
    pairs = [(a, b) for a in found for b in found if a < b and held[a].shape == held[b].shape
             and held[a].pool == held[b].pool]  # fmt: skip
    if not pairs:
        return None
    a, b = draw.choice(pairs)
    held[a], held[b] = replace(held[a], base=held[b].base), replace(held[b], base=held[a].base)
    return replace(stage, buffers=tuple(held))


def norm_weight(draw: random.Random, stage: Any) -> Any:
    """A bucket counts otherwise in the norm."""
    k = draw.randrange(len(stage.buckets))
    other = 0.5 if stage.buckets[k].norm_weight != 0.5 else 1.0
    new = replace(stage.buckets[k], norm_weight=other)
    return replace(stage, buckets=(*stage.buckets[:k], new, *stage.buckets[k + 1 :]))


def flats(draw: random.Random, stage: Any) -> Any:
    """Two flat buffers of a bucket exchange their roles."""
    k = draw.randrange(len(stage.buckets))
    names = draw.sample(["weight_buffer", "grad_buffer", "master_buffer", "exp_avg_buffer", "exp_avg_sq_buffer",
                         "reduced_buffer"], 2)  # fmt: skip
    bucket = stage.buckets[k]
    new = replace(bucket, **{names[0]: getattr(bucket, names[1]), names[1]: getattr(bucket, names[0])})
    return replace(stage, buckets=(*stage.buckets[:k], new, *stage.buckets[k + 1 :]))


def slots(draw: random.Random, stage: Any) -> Any:
    """A buffer of a block lies in another slot."""
    names = sorted({b.slot for b in stage.buffers if b.slot is not None})
    found = [(n, k) for n, block in enumerate(stage.blocks) for k, b in enumerate(block.buffers) if b.slot is not None]
    if len(names) < 2 or not found:
        return None
    n, k = draw.choice(found)
    block = stage.blocks[n]
    slot = draw.choice([name for name in names if name != block.buffers[k].slot])
    held = (*block.buffers[:k], replace(block.buffers[k], slot=slot), *block.buffers[k + 1 :])
    return replace(stage, blocks=(*stage.blocks[:n], replace(block, buffers=held), *stage.blocks[n + 1 :]))


def grouped(*roles: str) -> Edit:
    """Two ranks exchange their places in the groups of a role."""

    def make(draw: random.Random, program: StepProgram) -> StepProgram | None:
        found = [r for r in roles if any(len(g.ranks) > 1 for g in program.groups.get(r, ()))]
        if not found:
            return None
        chosen = draw.choice(found)
        one, two = draw.sample(range(program.world), 2)
        names = {one: two, two: one}
        made = tuple(replace(g, ranks=tuple(names.get(r, r) for r in g.ranks)) for g in program.groups[chosen])
        return replace(program, groups=program.groups | {chosen: made})

    return make


def classes(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """Two ranks exchange their programs."""
    pairs = [(a, b) for a in range(program.world) for b in range(a) if program.class_of[a] != program.class_of[b]]
    if not pairs:
        return None
    a, b = draw.choice(pairs)
    found = list(program.class_of)
    found[a], found[b] = found[b], found[a]
    return replace(program, class_of=tuple(found))


def degree(draw: random.Random, program: StepProgram) -> StepProgram | None:
    """One micro-batch more or fewer."""
    return replace(
        program, degrees=program.degrees | {"microbatches": program.degrees["microbatches"] + draw.choice([-1, 1])}
    )
