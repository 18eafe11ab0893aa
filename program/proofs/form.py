"""A program is well formed: whatever an index or a name stands for is there.

It comes before every other proof, so that those may follow references without asking. A block is looked at once,
however many calls and classes share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from program import DTYPE_BYTES, STREAMS, Block, Buffer, Call, Instruction, RankProgram, Repeated, StepProgram
from program.proofs.error import ProofError

DEGREES = ("tp", "dp", "pp", "microbatches")
FLATS = ("weight_buffer", "grad_buffer", "master_buffer", "exp_avg_buffer", "exp_avg_sq_buffer", "reduced_buffer")
SIDES = {"send": (1, 0), "recv": (0, 1)}  # buffers read and written; of any other communication one each
IF_ANY = ("host_grad_buffer", "host_weight_buffer", "whole_buffer")


def prove_form(program: StepProgram) -> None:
    """Raises ProofError (`form`) for the first reference that stands for nothing."""
    fault = next(_of_program(program), None)
    if fault is None:
        faults = (
            (number, fault) for number, stage in enumerate(program.classes) for fault in _of_class(program, stage)
        )
        number, fault = next(faults, (-1, None))
        fault = fault and f"class {number}: {fault}"
    if fault is not None:
        raise ProofError("form", fault)


def _within(index: object, many: int) -> bool:
    return isinstance(index, int) and 0 <= index < many


def _of_program(program: StepProgram) -> Iterator[str]:
    if not program.classes or not program.class_of:
        yield "the program has no ranks"
    for rank, class_ in enumerate(program.class_of):
        if not _within(class_, len(program.classes)):
            yield f"rank {rank} is of class {class_}, of which there are {len(program.classes)}"
    for key in dict.fromkeys((*DEGREES, *program.degrees)):
        if not isinstance(program.degrees.get(key), int) or program.degrees[key] < 1:
            yield f"degree {key} is {program.degrees.get(key)}; it should be 1 or more"
    for role, groups in program.groups.items():
        members = [rank for group in groups for rank in group.ranks]
        if len(members) != len(set(members)) or not all(_within(rank, program.world) for rank in members):
            yield f"the groups of role {role} hold a rank twice, or one that is not there"
    stages = {stage.stage for stage in program.classes}
    if stages != set(range(len(stages))):
        yield f"stages are {sorted(stages)}; they should be 0 to {len(stages) - 1}"


def _of_class(program: StepProgram, stage: RankProgram) -> Iterator[str]:
    yield from _of_storage(stage)
    for block in stage.blocks:
        yield from (f"{block.name}: {fault}" for fault in _of_block(program, stage, block))
    calls = stage.calls
    if isinstance(calls, Repeated):
        yield from _of_repetition(stage, calls)
        calls = calls.kept  # what is put in is like them
    for index, call in enumerate(calls):
        yield from (f"call {index}: {fault}" for fault in _of_call(program, stage, calls, call))


def _of_repetition(stage: RankProgram, calls: Repeated) -> Iterator[str]:
    fits = calls.period > 0 and calls.times >= 0 and 0 <= calls.seam <= len(calls.kept) - calls.period
    if not fits or len(calls.turn) != len(stage.blocks):
        yield f"{calls.times} repetitions of {calls.period} calls at {calls.seam} of {len(calls.kept)}"


def _of_storage(stage: RankProgram) -> Iterator[str]:
    yield from (f"rank-wide buffer {i} {fault}" for i, b in enumerate(stage.buffers) for fault in _of_buffer(b))
    for index, buffer in enumerate(stage.buffers):
        if buffer.base is not None and not _holds(stage.buffers, buffer):
            yield f"rank-wide buffer {index} ({buffer.what}) is a view of what is not there"
    many = len(stage.buffers)
    for index, bucket in enumerate(stage.buckets):
        fields = [getattr(bucket, name) for name in FLATS]
        fields += [held for held in (getattr(bucket, name) for name in IF_ANY) if held != -1]
        if bucket.index != index or not all(_within(held, many) for held in fields):
            yield f"bucket {index} names itself {bucket.index}, or a buffer that is not there"
        elif any(stage.buffers[held].base is not None or stage.buffers[held].slot is not None for held in fields):
            yield f"bucket {index} lies in a view or in a slot"
    names = [param.name for param in stage.params]
    if len(names) != len(set(names)):
        yield "two parameters have one name"
    for param in stage.params:
        if not _within(param.bucket, len(stage.buckets)) or param.offset < 0:
            yield f"parameter {param.name} lies in bucket {param.bucket} at {param.offset}"
    empty = set(range(len(stage.buckets))) - {param.bucket for param in stage.params}
    if empty:
        yield f"bucket {min(empty)} holds no parameter"


def _of_buffer(buffer: Buffer) -> Iterator[str]:
    if buffer.dtype not in DTYPE_BYTES:
        yield f"({buffer.what}) is of type {buffer.dtype}; known are {', '.join(DTYPE_BYTES)}"
    if not all(isinstance(extent, int) and extent >= 0 for extent in buffer.shape):
        yield f"({buffer.what}) has shape {buffer.shape}"


def _holds(buffers: tuple[Buffer, ...], view: Buffer) -> bool:
    """Whether a view lies in a buffer that is no view itself."""
    assert view.base is not None
    base, offset = view.base
    return _within(base, len(buffers)) and buffers[base].base is None and offset >= 0


def _of_block(program: StepProgram, stage: RankProgram, block: Block) -> Iterator[str]:
    params = {param.name for param in stage.params}
    for ref, buffer in enumerate(block.buffers):
        yield from (f"buffer {ref} {fault}" for fault in _of_buffer(buffer))
        if buffer.base is not None and not _holds(block.buffers if buffer.slot is not None else stage.buffers, buffer):
            yield f"buffer {ref} ({buffer.what}) is a view of what is not there"
        elif buffer.base is not None and buffer.slot not in (None, block.buffers[buffer.base[0]].slot):
            yield f"buffer {ref} ({buffer.what}) is a view in slot {buffer.slot} of what lies elsewhere"
        if buffer.slot is not None and buffer.what[:2] in ("w:", "g:") and buffer.what[2:] not in params:
            yield f"buffer {ref} is a view of parameter {buffer.what[2:]}, which the rank does not hold"
    many = len(block.buffers)
    for port in block.ports_in:
        if port.buffer is not None and not _within(port.buffer, many):
            yield f"in-port {port.name} brings buffer {port.buffer} of {many}"
    brought = [port.buffer for port in block.ports_in if port.buffer is not None]
    if len(brought) != len(set(brought)):
        yield "two in-ports bring one buffer"
    for out in block.ports_out:
        if not _within(out.instruction, len(block.instructions)):
            yield f"out-port {out.name} stands for instruction {out.instruction} of {len(block.instructions)}"
        if out.buffer is not None and not -len(stage.buffers) <= out.buffer < many:
            yield f"out-port {out.name} hands over buffer {out.buffer} of {many}"
    for local, instruction in enumerate(block.instructions):
        faults = _of_instruction(program, stage, block, instruction)
        yield from (f"instruction {local} ({instruction.kind} {instruction.piece}) {fault}" for fault in faults)


def _of_instruction(program: StepProgram, stage: RankProgram, block: Block, instruction: Instruction) -> Iterator[str]:
    local, wide = len(block.buffers), len(stage.buffers)
    if instruction.stream not in STREAMS:
        yield f"is on stream {instruction.stream}; known are {', '.join(STREAMS)}"
    for ref in (*instruction.reads, *instruction.writes):
        if not -wide <= ref < local:
            yield f"names buffer {ref}; there are {local} here and {wide} rank-wide ones"
    for ref in instruction.frees:
        if not _within(ref, local):
            yield f"frees buffer {ref} of {local}"
    for wait in instruction.waits:
        if not -len(block.ports_in) <= wait < len(block.instructions):
            yield f"waits for {wait}; there are {len(block.instructions)} instructions and {len(block.ports_in)} ports"
    comm = instruction.comm
    if comm is not None and (not program.groups.get(comm.role) or comm.dtype not in DTYPE_BYTES):
        yield f"communicates over role {comm.role}, which has no groups, or in type {comm.dtype}"
    if comm is not None:
        reads, writes = SIDES.get(comm.op, (1, 1))
        if len(instruction.reads) > reads or len(instruction.writes) > writes:
            yield f"is a {comm.op} of {len(instruction.reads)} buffers into {len(instruction.writes)}"
    yield from _of_lines(instruction)


def _of_lines(instruction: Instruction) -> Iterator[str]:
    lines = instruction.lines
    if lines is None:
        return
    made = set(range(lines.arguments)) | {index for index, _ in lines.views}
    for op, arguments, results, _ in lines.lines:
        if not all(index == -1 or index in made for index in arguments):
            yield f"runs {op} on a tensor that nothing has made"
        made |= {index for index in results if index >= 0}
    bases = {view[0] for _, view in lines.views}
    if not {*lines.results, *bases} <= made:
        yield "hands out a tensor that nothing has made"
    given = len(instruction.reads) if set(instruction.writes) <= set(instruction.reads) else lines.arguments
    if given > lines.arguments or len(lines.results) > len(instruction.writes):
        yield f"has lines for {lines.arguments} buffers and {len(lines.results)} results"


def _of_call(program: StepProgram, stage: RankProgram, calls: Sequence[Call], call: Call) -> Iterator[str]:
    if not _within(call.block, len(stage.blocks)):
        yield f"places block {call.block} of {len(stage.blocks)}"
        return
    block = stage.blocks[call.block]
    if len(call.bindings) != len(block.ports_in):
        yield f"binds {len(call.bindings)} in-ports of {len(block.ports_in)}"
    if call.base < 0 or not -1 <= call.micro < program.degrees["microbatches"]:
        yield f"is for micro-batch {call.micro} of {program.degrees['microbatches']}, from instruction {call.base} on"
    many = len(calls)
    for bound, out in call.bindings:
        if bound == -1 and out == -1:
            continue
        if not _within(bound, many) or not _within(calls[bound].block, len(stage.blocks)):
            yield f"is bound to call {bound} of {many}"
        elif not _within(out, len(stage.blocks[calls[bound].block].ports_out)):
            yield f"is bound to out-port {out} of {stage.blocks[calls[bound].block].name}"
