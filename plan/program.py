"""The step program: what every rank executes in one training step, in order.

One data structure, two interpreters: `simulator.fly` prices it, `trainer.fly` runs it, and neither may create, drop or
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

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd", "h2d", "d2h", "cpu", "disk"]
STREAMS: tuple[Stream, ...] = (
    "compute", "tp", "dp", "send_fwd", "recv_fwd", "send_bwd", "recv_bwd", "h2d", "d2h", "cpu", "disk",
)  # fmt: skip
Pool = Literal["weight", "grad", "optim", "act", "stash", "gather", "comm", "work", "host", "nvme"]
OFF_DEVICE: tuple[Pool, ...] = ("host", "nvme")
Phase = Literal["F", "R", "B", "W", "step"]  # R: recompute
Role = Literal["tp", "dp", "pp_next", "pp_prev", "embed", "model", "world"]
CommOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "exchange"]

Reduce = Literal["", "sum", "max"]

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int32": 4, "uint8": 1}


def rank_wide(index: int) -> int:
    """The reference that stands for rank-wide buffer `index` inside an instruction."""
    return -1 - index


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements of `shape`."""
    total = 1
    for extent in shape:
        total *= extent
    return total


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One operator of `plan.ops` on one shape: the only thing that is costed on a device.

    `variant` picks among layouts or fusions, ("gemm", (m, n, k), "bf16", "tn+acc32"); `count` repeats it.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    variant: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Param:
    """One trained tensor on a rank.

    `segments` are the extents along `shard_dim` of the parts that are sharded separately (a fused QKV weight is three
    parts: each rank holds a slice of each), in the full tensor; empty: one part. `shard_dim` is None when every
    tensor-parallel rank holds all of it; then `tp_replicated` says its gradient must still be summed over `tp`
    (sequence parallelism). `bucket` and `offset` (elements) place it in the flat buffers. `init` is `normal:<std>`,
    `ones` or `zeros`. `decay` says whether weight decay applies. `tied_to` names the parameter it is a copy of.
    """

    name: str
    full_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    shard_dim: int | None
    dtype: str
    bucket: int
    offset: int
    init: str
    decay: bool = True
    tp_replicated: bool = False
    tied_to: str | None = None
    segments: tuple[int, ...] = ()

    @property
    def local_numel(self) -> int:
        """Elements held by one rank."""
        return numel(self.local_shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One flat stretch of parameters: reduced, normed and stepped as one.

    `numel` includes the padding to lcm(dp, 128); `shard_numel` is what one rank steps (numel, or numel / dp under
    ZeRO). The `*_buffer` fields index `RankProgram.buffers`. `master_buffer` equals `weight_buffer` when no copy is
    kept. `norm_weight` is the share with which this bucket's sum of squares enters the global norm on *each* rank, so
    that every parameter counts once (1/tp for replicated parameters, 0 for the second copy of a tied one).
    """

    index: int
    numel: int
    shard_numel: int
    kind: Literal["sharded", "replicated", "tied"]
    norm_weight: float
    weight_buffer: int
    grad_buffer: int
    master_buffer: int
    exp_avg_buffer: int
    exp_avg_sq_buffer: int
    reduced_buffer: int  # where the reduce-scatter of ZeRO puts the shard; equals grad_buffer otherwise
    weights_sharded: bool = False  # ZeRO-3: the weight buffer holds this rank's shard; units gather it into slots
    gradients_sharded: bool = False  # ZeRO-2 and 3: the gradient buffer sums this rank's shard over micro-batches
    host_grad_buffer: int = -1  # offloaded optimizer: where the host finds the reduced gradient
    host_weight_buffer: int = -1  # … and where its STEP leaves the weights for the device (-1: they live on the host)

    @property
    def offloaded(self) -> bool:
        """Whether the host steps this bucket."""
        return self.host_grad_buffer >= 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor a rank holds. `slot` names a fixed place shared by successive tenants (None: the caching allocator);
    `base` = (rank-wide buffer, offset in elements) makes it a view; with a slot it is a view of the local buffer
    `base[0]`, the slot's tenant."""

    shape: tuple[int, ...]
    dtype: str
    pool: Pool
    what: str
    slot: str | None = None
    base: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of storage (a view has its own extent; the accounting skips views)."""
        return numel(self.shape) * DTYPE_BYTES[self.dtype]


def tenant_of(buffers: Sequence[Buffer], ref: int) -> int:
    """The local buffer that holds a slot when `ref` is touched: itself, or the one it is a view of."""
    buffer = buffers[ref]
    return buffer.base[0] if buffer.slot is not None and buffer.base is not None else ref


@dataclass(frozen=True, slots=True)
class Comm:
    """A communication. `bytes` counts the full logical tensor: all-reduce its tensor, reduce-scatter its input,
    all-gather its output, a transfer its payload. (rank, role, channel) names the communicator; members match by their
    order on it, which `expand` counts in host order."""

    op: CommOp
    role: Role
    bytes: int
    dtype: str
    channel: str
    reduce: Reduce = ""
    algorithm: str = "auto"


@dataclass(frozen=True, slots=True)
class Instruction:
    """What one stream does once. (phase, kind, micro-batch, unit, piece) is unique in a rank's step.

    `reads`/`writes` are positional: the arguments and results of the function registered for (kind, piece). A buffer
    in both is updated in place: the function gets it as an argument and returns nothing for it. `frees` are released
    once this instruction was issued; it stands only on the owner stream (compute), after every access.
    `transient_bytes` live only while it runs. `host_sync` blocks the host until it has finished.
    """

    phase: Phase
    kind: str
    unit: int
    piece: str
    stream: Stream
    body: tuple[KernelCall, ...] = ()
    comm: Comm | None = None
    waits: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    transient_bytes: int = 0
    priority: int = 0
    host_sync: bool = False


@dataclass(frozen=True, slots=True)
class PortIn:
    """A way into a block. `buffer` is the local buffer that stands for the bound one (None: a wait only)."""

    name: str
    buffer: int | None


@dataclass(frozen=True, slots=True)
class PortOut:
    """A way out of a block: `instruction` is who must have finished, `buffer` what is handed over (None: a token)."""

    name: str
    instruction: int
    buffer: int | None


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions compiled once. `net_bytes` is what a call leaves allocated, `peak_bytes` the highest it adds on the
    way (allocator buffers and transients, in host issue order)."""

    name: str
    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    ports_in: tuple[PortIn, ...]
    ports_out: tuple[PortOut, ...]
    net_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One placing of a block. `base` is the global id of its first instruction: stable under edits of other blocks."""

    block: int
    micro: int
    base: int
    bindings: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The step of one class of ranks: one pipeline stage. Holds no rank-dependent number."""

    stage: int
    blocks: tuple[Block, ...]
    calls: tuple[Call, ...]
    buffers: tuple[Buffer, ...]
    params: tuple[Param, ...]
    buckets: tuple[Bucket, ...]

    @property
    def resident_bytes(self) -> int:
        """Rank-wide bytes on the device: weights, gradients, optimizer state and fixed slots (views count with their
        base)."""
        return sum(b.bytes for b in self.buffers if b.base is None and b.pool not in OFF_DEVICE)


@dataclass(frozen=True, slots=True)
class Group:
    """Members (global ranks, in order) that share the communicators of a role."""

    role: Role
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The whole job's step. `class_of[rank]` indexes `classes`; `groups[role]` lists every group of that role.

    A pipeline neighbour is `pp_next`/`pp_prev` of a rank: the group of role `pp_next` is the ring of stages, in order.
    `rules` records the implementation's choices; `hash` covers programs and bindings, and ranks compare it.
    """

    classes: tuple[RankProgram, ...]
    class_of: tuple[int, ...]
    groups: dict[str, tuple[Group, ...]]
    degrees: dict[str, int]  # tp, dp, pp, vpp, microbatches, micro_batch_size, seq_length
    rules: dict[str, str] = field(default_factory=dict)
    hash: str = ""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.class_of)


@dataclass(frozen=True, slots=True)
class Placed:
    """An instruction in its call: what `expand` yields. `id` is global on the rank; `waits` are global ids; `seq`
    counts communications on (role, channel) in host order (-1: not a communication)."""

    id: int
    call: int
    local: int
    micro: int
    instruction: Instruction
    waits: tuple[int, ...]
    seq: int


def expand(program: RankProgram) -> Iterator[Placed]:
    """Every instruction of a rank's step in host issue order, with waits resolved to global ids."""
    counts: dict[tuple[str, str], int] = {}
    for call_index, call in enumerate(program.calls):
        for local, instruction in enumerate(program.blocks[call.block].instructions):
            seq = -1
            if instruction.comm is not None:
                key = (instruction.comm.role, instruction.comm.channel)
                seq = counts.get(key, 0)
                counts[key] = seq + 1
            waits = tuple(w for w in (resolve_wait(program, call, w) for w in instruction.waits) if w >= 0)
            micro = -1 if instruction.phase == "step" else call.micro
            yield Placed(call.base + local, call_index, local, micro, instruction, waits, seq)


def resolve_wait(program: RankProgram, call: Call, wait: int) -> int:
    """Global id behind a wait of `call`, or -1 when its port is unbound."""
    if wait >= 0:
        return call.base + wait
    bound, port = call.bindings[-1 - wait]
    if bound < 0:
        return -1
    source = program.calls[bound]
    return source.base + program.blocks[source.block].ports_out[port].instruction


def resolve_buffer(program: RankProgram, call_index: int, ref: int) -> tuple[int, int]:
    """(call, local buffer) that owns the storage behind `ref` in a call, followed through ports; (-1, i) if rank-wide.

    Raises KeyError when the port is unbound (a block must not touch a buffer that is not there).
    """
    while ref >= 0:
        call = program.calls[call_index]
        block = program.blocks[call.block]
        port = next((k for k, p in enumerate(block.ports_in) if p.buffer == ref), None)
        if port is None:
            return call_index, ref
        bound, out = call.bindings[port]
        if bound < 0:
            raise KeyError(f"{block.name}: in-port {block.ports_in[port].name} is unbound but its buffer is used")
        source = program.calls[bound]
        handed = program.blocks[source.block].ports_out[out].buffer
        if handed is None:
            raise KeyError(f"{block.name}: in-port {block.ports_in[port].name} is bound to a token without a buffer")
        call_index, ref = bound, handed
    return -1, -1 - ref


def label(phase: str, kind: str, micro: int, unit: int, piece: str) -> str:
    """The text form of an instruction: `B RS2.5 attn.in` (micro-batch 2, unit 5); step instructions have no
    micro-batch.
    """
    where = f"{micro}.{unit}" if micro >= 0 and phase != "step" else f"{unit}"
    return f"{phase} {kind}{where} {piece}"
