"""Where in a step program an edit takes hold: instructions of a kind, buffers of one shape."""

import random
from collections.abc import Callable

from program import Buffer, Instruction, StepProgram

Edit = Callable[[random.Random, StepProgram], StepProgram | None]
Place = tuple[int, int, int]  # class, block, instruction


PIPE = ("send", "recv", "exchange")


def places(program: StepProgram, wanted: Callable[[Instruction], bool]) -> list[Place]:
    """Where such instructions stand, in blocks that are called."""
    called = [{call.block for call in stage.calls} for stage in program.classes]
    return [
        (c, b, k)
        for c, stage in enumerate(program.classes)
        for b, block in enumerate(stage.blocks)
        for k, i in enumerate(block.instructions)
        if b in called[c] and wanted(i)
    ]


def at(program: StepProgram, place: Place) -> Instruction:
    """The instruction at a place."""
    return program.classes[place[0]].blocks[place[1]].instructions[place[2]]


def buffer(program: StepProgram, place: Place, ref: int) -> Buffer:
    """The buffer behind a reference."""
    stage = program.classes[place[0]]
    return stage.buffers[-1 - ref] if ref < 0 else stage.blocks[place[1]].buffers[ref]


def like(program: StepProgram, place: Place, ref: int) -> list[int]:
    """Other buffers of one shape and type that the block's instructions name."""
    block = program.classes[place[0]].blocks[place[1]]
    shape = buffer(program, place, ref).shape, buffer(program, place, ref).dtype
    named = sorted({r for i in block.instructions for r in (*i.reads, *i.writes)})
    return [
        r for r in named if r != ref and (buffer(program, place, r).shape, buffer(program, place, r).dtype) == shape
    ]


def some(draw: random.Random, program: StepProgram, wanted: Callable[[Instruction], bool]) -> Place | None:
    """One such instruction."""
    found = places(program, wanted)
    return draw.choice(found) if found else None
