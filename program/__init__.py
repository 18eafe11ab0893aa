"""The step program: what every rank executes in one training step, in order.

One data structure, two interpreters: the simulator prices it, the trainer runs it, and neither may create, drop or
reorder an instruction. A rank's program is *blocks* and *calls*. A block holds the instructions of one (stage, chunk,
phase), compiled, proved and priced once; a call places a block in time for one micro-batch. `expand` yields the
flat instruction list where somebody needs it.

Naming of things inside a block (all plain integers, so that a block is position-independent):

* instruction i of a block has local id i; in call c its global id is `call.base + i`.
* a buffer reference `ref >= 0` is `block.buffers[ref]` (one instance per call); `ref < 0` is the rank-wide buffer
  `program.buffers[-1 - ref]` (weights, gradients, optimizer state, fixed slots). See `rank_wide`.
* a wait `w >= 0` is a local id; `w < 0` is the in-port `-1 - w`: the instruction behind the out-port it is bound to.
* `call.bindings[k] = (call index, out-port index)` says what in-port k is in this call; `(-1, -1)` means nothing stands
  behind it (first use of a ring): no wait, no buffer.

Host issue order is the order of calls, and inside a call the order of instructions.
"""

from program.buffers import Bucket, Buffer, Param, rank_wide, tenant_of
from program.calls import Repeated, block_uses, columns, repetitions, with_repetitions, written_out
from program.flat import Placed, expand, resolve_buffer, resolve_wait
from program.instruction import Comm, Instruction, label
from program.kinds import DTYPE_BYTES, OFF_DEVICE, STREAMS, CommOp, KernelCall, Phase, Pool, Reduce, Role, Stream, numel
from program.step_program import Block, Call, Execution, Group, PortIn, PortOut, RankProgram, StepProgram

__all__ = [
    "DTYPE_BYTES",
    "OFF_DEVICE",
    "STREAMS",
    "Block",
    "Bucket",
    "Buffer",
    "Call",
    "Comm",
    "CommOp",
    "Execution",
    "Group",
    "Instruction",
    "KernelCall",
    "Param",
    "Phase",
    "Placed",
    "Pool",
    "PortIn",
    "PortOut",
    "RankProgram",
    "Reduce",
    "Repeated",
    "Role",
    "StepProgram",
    "Stream",
    "block_uses",
    "columns",
    "expand",
    "label",
    "numel",
    "rank_wide",
    "repetitions",
    "resolve_buffer",
    "resolve_wait",
    "tenant_of",
    "with_repetitions",
    "written_out",
]
