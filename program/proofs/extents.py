"""The buffers of every communication have the sizes that it moves.

An all-gather's result holds a share of every member, a reduce-scatter's source too, an all-reduce changes no size, and
`Comm.bytes` is the whole tensor of each (the payload of a transfer). In place, the buffer is the whole tensor. Checked
once a block: sizes depend on no call.
"""

from __future__ import annotations

from program import DTYPE_BYTES, Block, Comm, Instruction, RankProgram, StepProgram, rank_wide
from program.proofs.error import ProofError, name

SHARES = {"all_gather": "reads", "reduce_scatter": "writes"}  # which side holds a member's share


def prove_extents(program: StepProgram) -> None:
    """Raises ProofError (`collectives`) for a communication whose buffers do not fit what it moves."""
    members = {role: len(groups[0].ranks) for role, groups in program.groups.items() if groups}
    for class_, stage in enumerate(program.classes):
        own = _own_stretches(stage)
        for number, block in enumerate(stage.blocks):
            for local, instruction in enumerate(block.instructions):
                comm = instruction.comm
                if comm is None or _own(instruction, comm, own):
                    continue
                wrong = _wrong(stage, block, instruction, comm, members.get(comm.role, 1))
                if wrong is not None:
                    call = next((c for c, placed in enumerate(stage.calls) if placed.block == number), None)
                    named = [] if call is None else [name(stage, class_, call, local)]
                    raise ProofError("collectives", f"{block.name}: {wrong}", named)


def _own_stretches(stage: RankProgram) -> dict[int, int]:
    """Gradient flats in which a reduction leaves the rank's share in its own stretch (Megatron-LM), with its bytes."""
    kept = [b for b in stage.buckets if b.reduced_buffer == b.grad_buffer and b.shard_numel < b.numel]
    return {
        rank_wide(b.grad_buffer): b.shard_numel * DTYPE_BYTES[stage.buffers[b.grad_buffer].dtype]
        for b in kept
        if not b.gradients_sharded
    }


def _own(instruction: Instruction, comm: Comm, own: dict[int, int]) -> bool:
    """Whether an all-reduce sums the rank's own stretch of a flat, in place."""
    return instruction.reads == instruction.writes and [own.get(ref) for ref in instruction.reads] == [comm.bytes]


def _wrong(stage: RankProgram, block: Block, instruction: Instruction, comm: Comm, members: int) -> str | None:
    """What does not fit, if anything."""
    share = comm.bytes
    if comm.op in SHARES and instruction.reads != instruction.writes:
        share, rest = divmod(comm.bytes, members)
        if rest:
            return f"the {comm.op} of {comm.bytes} bytes leaves a rest over {members} ranks"
    for side, refs in (("reads", instruction.reads), ("writes", instruction.writes)):
        wanted = share if SHARES.get(comm.op) == side else comm.bytes
        for ref in refs:
            buffer = block.buffers[ref] if ref >= 0 else stage.buffers[-1 - ref]
            if buffer.dtype != comm.dtype:
                return f"the {comm.op} of {comm.dtype} {side} {buffer.what} of {buffer.dtype}"
            if buffer.bytes != wanted:
                held = f"{buffer.what} of {buffer.bytes} bytes"
                return f"the {comm.op} of {comm.bytes} bytes over {members} ranks {side} {held}; it should be {wanted}"
    return None
