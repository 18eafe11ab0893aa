"""Small edits of a step program that keep its references consistent: what an experiment, or a test of the proofs,
changes.

    swap(program, 0, block, 3, 4)        two instructions of a block change places
    move(program, 0, block, 7, 2)        an instruction (a bucket's collective, a prefetch) goes elsewhere in its block
    move_call(program, 0, 12, 20)        a call (a send, a receive) is issued earlier or later
    drop(...), drop_wait(...), drop_call(...), rebind(...)

Each returns a new program with its hash. A `class_` is the number of the rank class, `block` and `call` its indices
there. Edits may be unsound; that is for `program.proofs` to find. What an edit cannot keep consistent it refuses with
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from program.hashing import program_hash
from program.instruction import Instruction
from program.step_program import Block, Call, RankProgram, StepProgram

UNBOUND = (-1, -1)


def find(program: StepProgram, class_: int, wanted: Callable[[Block, Instruction], bool]) -> list[tuple[int, int]]:
    """(block, local id) of every instruction that `wanted` accepts."""
    blocks = program.classes[class_].blocks
    return [(b, k) for b, block in enumerate(blocks) for k, i in enumerate(block.instructions) if wanted(block, i)]


def with_class(program: StepProgram, class_: int, stage: RankProgram) -> StepProgram:
    """The program with one class replaced, hashed anew."""
    classes = tuple(stage if number == class_ else old for number, old in enumerate(program.classes))
    changed = replace(program, classes=classes)
    return replace(changed, hash=program_hash(changed))


def with_block(program: StepProgram, class_: int, block: int, new: Block) -> StepProgram:
    """The program with one block of a class replaced. Ids of instructions stay where they were: bases do not move."""
    stage = program.classes[class_]
    blocks = tuple(new if number == block else old for number, old in enumerate(stage.blocks))
    return with_class(program, class_, replace(stage, blocks=blocks))


def with_instruction(program: StepProgram, class_: int, block: int, local: int, new: Instruction) -> StepProgram:
    """The program with one instruction replaced."""
    old = program.classes[class_].blocks[block]
    instructions = (*old.instructions[:local], new, *old.instructions[local + 1 :])
    return with_block(program, class_, block, replace(old, instructions=instructions))


def reorder(block: Block, order: list[int]) -> Block:
    """The block with instruction `order[k]` at place k; waits and out-ports follow their instructions."""
    new_id = {old: new for new, old in enumerate(order)}
    if sorted(order) != list(range(len(block.instructions))):
        raise ValueError(f"{block.name}: {order} is not an order of its {len(block.instructions)} instructions")
    instructions = tuple(_renumbered(block.instructions[old], new_id) for old in order)
    ports = tuple(replace(port, instruction=new_id[port.instruction]) for port in block.ports_out)
    return _remeasured(replace(block, instructions=instructions, ports_out=ports))


def _renumbered(instruction: Instruction, new_id: dict[int, int]) -> Instruction:
    waits = sorted(w if w < 0 else new_id[w] for w in instruction.waits if w < 0 or w in new_id)
    return replace(instruction, waits=tuple(waits))


def _remeasured(block: Block) -> Block:
    """The block with `net_bytes` and `peak_bytes` of its new order (allocator buffers and transients, in host
    order).
    """
    born = {p.buffer for p in block.ports_in}
    live = peak = 0
    for instruction in block.instructions:
        for ref in instruction.writes:
            if ref >= 0 and ref not in born and block.buffers[ref].slot is None and block.buffers[ref].base is None:
                born.add(ref)
                live += block.buffers[ref].bytes
        peak = max(peak, live + instruction.transient_bytes)
        live -= sum(block.buffers[ref].bytes for ref in instruction.frees)
    return replace(block, net_bytes=live, peak_bytes=peak)


def swap(program: StepProgram, class_: int, block: int, a: int, b: int) -> StepProgram:
    """Two instructions of a block change places."""
    old = program.classes[class_].blocks[block]
    order = list(range(len(old.instructions)))
    order[a], order[b] = order[b], order[a]
    return with_block(program, class_, block, reorder(old, order))


def move(program: StepProgram, class_: int, block: int, local: int, to: int) -> StepProgram:
    """An instruction goes to place `to` of its block; those between close up."""
    old = program.classes[class_].blocks[block]
    order = list(range(len(old.instructions)))
    order.insert(to, order.pop(local))
    return with_block(program, class_, block, reorder(old, order))


def drop_wait(program: StepProgram, class_: int, block: int, local: int, wait: int | None = None) -> StepProgram:
    """An instruction no longer waits for `wait` (None: for anything)."""
    instruction = program.classes[class_].blocks[block].instructions[local]
    kept = () if wait is None else tuple(w for w in instruction.waits if w != wait)
    if kept == instruction.waits:
        raise ValueError(
            f"instruction {local} of block {block} has no wait {wait} to drop: it waits for {instruction.waits}"
        )
    return with_instruction(program, class_, block, local, replace(instruction, waits=kept))


def drop(program: StepProgram, class_: int, block: int, local: int) -> StepProgram:
    """An instruction is gone; nobody waits for it any more.

    An out-port that stood for it stands for the instruction before it on its stream. Raises ValueError when there is
    none.
    """
    old = program.classes[class_].blocks[block]
    stream = old.instructions[local].stream
    before = next((k for k in range(local - 1, -1, -1) if old.instructions[k].stream == stream), None)
    new_id = {k: k - (k > local) for k in range(len(old.instructions)) if k != local}
    ports = []
    for port in old.ports_out:
        stands_for = before if port.instruction == local else port.instruction
        if stands_for is None:
            raise ValueError(
                f"{old.name}: out-port {port.name} would stand for nothing once instruction {local} is gone"
            )
        ports.append(replace(port, instruction=new_id[stands_for]))
    kept = tuple(_renumbered(old.instructions[k], new_id) for k in new_id)
    return with_block(program, class_, block, _remeasured(replace(old, instructions=kept, ports_out=tuple(ports))))


def move_call(program: StepProgram, class_: int, call: int, to: int) -> StepProgram:
    """A call is issued as number `to`; bindings follow the calls they name, and ids of instructions stay."""
    stage = program.classes[class_]
    order = list(range(len(stage.calls)))
    order.insert(to, order.pop(call))
    return with_class(program, class_, replace(stage, calls=_reissued(stage.calls, order)))


def drop_call(program: StepProgram, class_: int, call: int) -> StepProgram:
    """A call is gone; in-ports bound to it are bound to nothing."""
    stage = program.classes[class_]
    order = [c for c in range(len(stage.calls)) if c != call]
    return with_class(program, class_, replace(stage, calls=_reissued(stage.calls, order)))


def _reissued(calls: Sequence[Call], order: Iterable[int]) -> tuple[Call, ...]:
    kept = list(order)
    new_place = {old: new for new, old in enumerate(kept)}
    return tuple(
        replace(
            calls[old],
            bindings=tuple((new_place[b], out) if b in new_place else UNBOUND for b, out in calls[old].bindings),
        )
        for old in kept
    )


def rebind(program: StepProgram, class_: int, call: int, port: int, binding: tuple[int, int]) -> StepProgram:
    """In-port `port` of a call is bound to (call, out-port), or to nothing with (-1, -1)."""
    stage = program.classes[class_]
    old = stage.calls[call]
    bindings = (*old.bindings[:port], binding, *old.bindings[port + 1 :])
    calls = (*stage.calls[:call], replace(old, bindings=bindings), *stage.calls[call + 1 :])
    return with_class(program, class_, replace(stage, calls=calls))
