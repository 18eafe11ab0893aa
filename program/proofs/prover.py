"""The proofs in order, and the blocks that are analysed once for all of them."""

from __future__ import annotations

from program import (
    Block,
    Buffer,
    RankProgram,
    StepProgram,
    numel,
    repetitions,
    with_repetitions,
    written_out,
)
from program.gc_paused import gc_paused
from program.proofs.blocks import Shape, analyse, shape_key
from program.proofs.complete import prove_complete
from program.proofs.error import ProofError, name
from program.proofs.extents import prove_extents
from program.proofs.form import prove_form
from program.proofs.order import prove_order
from program.proofs.places import Place, StorageRegions, slot_names
from program.proofs.ports import Ports
from program.proofs.rank_grid import prove_grid
from program.proofs.stage_under_proof import StageUnderProof
from program.proofs.steady_state import call_sequence, find_steady_state
from program.proofs.storage_proof import Storage
from program.proofs.uses import Broken
from program.proofs.values_calls import prove_values

# What following a reference can raise that `prove_form` did not think of: the program is refused all the same.
ASTRAY = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, StopIteration)
ENOUGH = 2  # repetitions of a steady state that are proved, besides those of the short step around them


def prove(program: StepProgram, skip: bool = True) -> None:
    """Raises ProofError when the program must not run. `skip=False` steps through every call of a steady state too.

    Where a steady state is written as a repetition, all that a proof asks of it (which micro-batches, who meets whom in
    which order, who reads and writes which slot after whom) is the same from one repetition to the next, moved by
    constants; so a few of them, between the same fill and drain, stand for all. A program that fails is proved whole,
    so that what is named is in it.
    """
    with gc_paused():
        try:
            _proved(program, skip)
        except ASTRAY as error:
            reason = f"the proofs cannot follow it ({type(error).__name__}: {error})"
            raise ProofError("form", reason) from error


def _proved(program: StepProgram, skip: bool) -> None:
    prove_form(program)
    prove_grid(program)
    if skip and repetitions(program) > ENOUGH:
        try:
            _prove(written_out(with_repetitions(program, ENOUGH)), skip)
        except (ProofError, *ASTRAY):
            _prove(written_out(program), skip)
            raise
    else:
        _prove(written_out(program), skip)


def _prove(program: StepProgram, skip: bool) -> None:
    prove_complete(program)
    prove_extents(program)
    prove_order(program)
    prove_storage(program, skip)
    prove_values(program)


def prove_storage(program: StepProgram, skip: bool = True) -> None:
    """The proofs race, memory and close, and that nothing inside a class waits for what is issued later."""
    library = _Library()
    for number, stage in enumerate(program.classes):
        _prove_class(stage, number, library, skip)


class _Library:
    """Shapes known so far, by structure; `layouts` numbers layouts of rank-wide storage."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.numbers: dict[tuple[object, ...], int] = {}
        self.layouts: dict[tuple[tuple[int, tuple[Place, ...]], ...], int] = {}


def _prove_class(stage: RankProgram, class_: int, library: _Library, skip: bool) -> None:
    regions = StorageRegions(stage)
    layout = library.layouts.setdefault(regions.layout, len(library.layouts))
    numbers = [_number(stage, class_, block, regions, (library, layout)) for block in range(len(stage.blocks))]
    shapes = [library.shapes[number] for number in numbers]
    slots = [slot_names(block) for block in stage.blocks]
    _prove_slots(stage, class_)
    sequence = call_sequence(stage, numbers)
    ports = Ports(stage, class_, shapes, regions, sequence)
    under_proof = StageUnderProof(stage, class_, shapes, numbers, slots, ports)
    steady = find_steady_state(stage, sequence, slots) if skip else None
    try:
        Storage(under_proof, steady).prove()
    except (ProofError, KeyError):
        if steady is None:
            raise
        Storage(StageUnderProof(stage, class_, shapes, numbers, slots, ports), None).prove()


def _number(stage: RankProgram, class_: int, block: int, regions: StorageRegions, shelf: tuple[_Library, int]) -> int:
    """The number of a block's shape, analysed if it is new."""
    library, layout = shelf
    key = shape_key(stage.blocks[block], layout)
    if key not in library.numbers:
        try:
            shape = analyse(stage.blocks[block], regions)
        except Broken as broken:
            call = next((c for c, placed in enumerate(stage.calls) if placed.block == block), None)
            named = [] if call is None else [name(stage, class_, call, local) for local in broken.locals]
            raise ProofError(broken.proof, f"{stage.blocks[block].name}: {broken.reason}", named) from None
        library.numbers[key] = len(library.shapes)
        library.shapes.append(shape)
    return library.numbers[key]


def _prove_slots(stage: RankProgram, class_: int) -> None:
    """Every slot is a rank-wide buffer large enough for each of its tenants."""
    sizes = {buffer.slot: buffer.bytes for buffer in stage.buffers if buffer.slot is not None}
    for number, block in enumerate(stage.blocks):
        imported = {port.buffer for port in block.ports_in}
        for ref, buffer in enumerate(block.buffers):
            if buffer.slot is None or ref in imported or _fits(block, buffer, sizes.get(buffer.slot, -1)):
                continue
            held = f"holds {sizes[buffer.slot]} bytes" if buffer.slot in sizes else "is no rank-wide buffer"
            call = next((c for c, placed in enumerate(stage.calls) if placed.block == number), None)
            users = [k for k, i in enumerate(block.instructions) if ref in (*i.reads, *i.writes)][:1]
            named = [] if call is None else [name(stage, class_, call, local) for local in users]
            raise ProofError("memory", f"{buffer.what} needs {buffer.bytes} bytes; slot {buffer.slot} {held}", named)


def _fits(block: Block, buffer: Buffer, held_bytes: int) -> bool:
    """Whether a tenant fits its slot, and a view of a tenant fits that."""
    if buffer.base is None:
        return buffer.bytes <= held_bytes
    holder, offset = buffer.base
    return numel(buffer.shape) + offset <= numel(block.buffers[holder].shape)
