"""A step program small enough to check by hand: PP2 × DP2, two micro-batches, one unit a stage, gpipe.

    stage 0   F0 s F1 s | r B0  r B1 | AR STEP          s: send, r: receive; each a block of its own, as the compiler
    makes them stage 1   r F0 r F1 | B0 s  B1 s | AR STEP

Stage 0 holds unit 0 (`embed`), stage 1 unit 1 (`head`). Received tensors live in rings of two slots.
"""

from dataclasses import replace

from program import (
    Block,
    Bucket,
    Buffer,
    Call,
    Comm,
    Group,
    Instruction,
    KernelCall,
    Param,
    PortIn,
    PortOut,
    RankProgram,
    StepProgram,
    rank_wide,
)
from program.hashing import program_hash

SHAPE = (4, 8)
BYTES = 128
WEIGHTS, GRADS, MOMENTS, W, G = (rank_wide(i) for i in range(5))  # flat, flat, flat, and the views of the one parameter
RESIDENT = (
    Buffer((128,), "fp32", "weight", "weights"),
    Buffer((128,), "fp32", "grad", "gradients"),
    Buffer((128,), "fp32", "optim", "moments"),
    Buffer((8, 8), "fp32", "weight", "w", base=(0, 0)),
    Buffer((8, 8), "fp32", "grad", "g", base=(1, 0)),
)
GEMM = (KernelCall("gemm", (4, 8, 8), "fp32", "nt"),)


def act(what: str, slot: str | None = None) -> Buffer:
    """An activation of the one shape there is."""
    return Buffer(SHAPE, "fp32", "comm" if slot else "act", what, slot)


def port(name: str, buffer: int | None = None) -> PortIn:
    """An in-port."""
    return PortIn(name, buffer)


def send(role: str, channel: str, unit: int, piece: str) -> Block:
    """A send of the buffer behind port 0; hands out a token."""
    stream = "send_fwd" if role == "pp_next" else "send_bwd"
    comm = Comm("send", role, BYTES, "fp32", channel)  # type: ignore[arg-type]
    phase = "F" if role == "pp_next" else "B"
    ins = Instruction(phase, "SEND", unit, piece, stream, comm=comm, waits=(-1,), reads=(0,))  # type: ignore[arg-type]
    return Block(f"send {channel}", (ins,), (act("sent"),), (port("x", 0),), (PortOut("sent", 0, None),))


def receive(role: str, channel: str, unit: int, piece: str, slot: int) -> Block:
    """A receive into one slot of the ring, once the slot's last reader (port 0) is done."""
    stream = "recv_fwd" if role == "pp_prev" else "recv_bwd"
    comm = Comm("recv", role, BYTES, "fp32", channel)  # type: ignore[arg-type]
    phase = "F" if role == "pp_prev" else "B"
    ins = Instruction(phase, "RECV", unit, piece, stream, comm=comm, waits=(-1,), writes=(0,))  # type: ignore[arg-type]
    buffer = act("received", f"{channel}.{slot}")
    return Block(f"recv {channel}.{slot}", (ins,), (buffer,), (port("free"),), (PortOut("x", 0, 0),))


def finish(ports: int, frees: int) -> Block:
    """Gradient all-reduce and optimizer step. Ports: the last W, then tokens to wait for and buffers to free."""
    reduce = Instruction(
        "step", "AR", 0, "bucket", "dp",
        comm=Comm("all_reduce", "dp", 512, "fp32", "grads", "sum"), waits=(-1,), reads=(GRADS,), writes=(GRADS,),
    )  # fmt: skip
    sweep = (KernelCall("adamw", (128,), "fp32"),)
    step = Instruction(
        "step", "STEP", 0, "bucket", "compute", sweep, waits=(0, *range(-ports, -1)), reads=(GRADS, WEIGHTS, MOMENTS),
        writes=(WEIGHTS, MOMENTS), frees=tuple(range(frees)), host_sync=True,
    )  # fmt: skip
    tokens = ports - 1 - frees
    names = [
        port("last W"),
        *(port(f"token {i}") for i in range(tokens)),
        *(port(f"freed {i}", i) for i in range(frees)),
    ]
    return Block("step", (reduce, step), tuple(act(f"freed {i}") for i in range(frees)), tuple(names), ())


def first_stage() -> RankProgram:
    """Unit 0: F makes x, which is sent; B takes dx and frees x, which the send has finished reading."""
    forward = Block(
        "F", (Instruction("F", "F", 0, "embed", "compute", GEMM, reads=(W,), writes=(0,)),), (act("x"),),
        (), (PortOut("x", 0, 0),), net_bytes=BYTES, peak_bytes=BYTES,
    )  # fmt: skip
    weight = Instruction(
        "W", "W", 0, "embed", "compute", GEMM, waits=(-1, -3), reads=(0, 1, G), writes=(G,), frees=(1,),
    )  # fmt: skip
    backward = Block(
        "B", (weight,), (act("dx", "bwd.0"), act("x")), (port("dx", 0), port("x", 1), port("sent")),
        (PortOut("done", 0, None),), -BYTES, 0,
    )  # fmt: skip
    other = replace(backward, name="B'", buffers=(act("dx", "bwd.1"), act("x")))
    receives = [receive("pp_next", "bwd", 0, "embed", slot) for slot in (0, 1)]
    blocks = (forward, send("pp_next", "fwd", 0, "embed"), *receives, backward, other, finish(1, 0))
    plan = [
        (0, 0, ()), (1, 0, ((0, 0),)), (0, 1, ()), (1, 1, ((2, 0),)),
        (2, 0, ((-1, -1),)), (4, 0, ((4, 0), (0, 0), (1, 0))), (3, 1, ((-1, -1),)), (5, 1, ((6, 0), (2, 0), (3, 0))),
        (6, -1, ((7, 0),)),
    ]  # fmt: skip
    return assemble(0, blocks, plan)


def last_stage() -> RankProgram:
    """Unit 1: F reads the received x and keeps y; B makes dx, which is sent; STEP frees what was sent."""
    forward = Block(
        "F", (Instruction("F", "F", 1, "head", "compute", GEMM, waits=(-1,), reads=(0, W), writes=(1,)),),
        (act("x", "fwd.0"), act("y")), (port("x", 0),), (PortOut("y", 0, 1),), BYTES, BYTES,
    )  # fmt: skip
    other = replace(forward, name="F'", buffers=(act("x", "fwd.1"), act("y")))
    backward = Block(
        "B", (
            Instruction("B", "I", 1, "head", "compute", GEMM, reads=(0, W), writes=(1,)),
            Instruction("W", "W", 1, "head", "compute", GEMM, reads=(0, G), writes=(G,), frees=(0,)),
        ),
        (act("y"), act("dx")), (port("y", 0),), (PortOut("dx", 0, 1), PortOut("done", 1, None)), 0, BYTES,
    )  # fmt: skip
    receives = [receive("pp_prev", "fwd", 1, "head", slot) for slot in (0, 1)]
    blocks = (forward, other, *receives, backward, send("pp_prev", "bwd", 1, "head"), finish(5, 2))
    plan = [
        (2, 0, ((-1, -1),)), (0, 0, ((0, 0),)), (3, 1, ((-1, -1),)), (1, 1, ((2, 0),)),
        (4, 0, ((1, 0),)), (5, 0, ((4, 0),)), (4, 1, ((3, 0),)), (5, 1, ((6, 0),)),
        (6, -1, ((6, 1), (5, 0), (7, 0), (4, 0), (6, 0))),
    ]  # fmt: skip
    return assemble(1, blocks, plan)


def assemble(
    stage: int, blocks: tuple[Block, ...], plan: list[tuple[int, int, tuple[tuple[int, int], ...]]]
) -> RankProgram:
    """Calls with their bases, and the one parameter and bucket every stage has."""
    calls, base = [], 0
    for block, micro, bindings in plan:
        calls.append(Call(block, micro, base, bindings))
        base += len(blocks[block].instructions)
    name = ("embed", "head")[stage] + ".weight"
    param = Param(name, (8, 8), (8, 8), None, "fp32", 0, 0, "normal:0.02")
    bucket = Bucket(0, 128, 128, "replicated", 1.0, 0, 1, 0, 2, 2, 1)
    ring = "bwd" if stage == 0 else "fwd"
    slots = tuple(act(f"{ring}.{k}", f"{ring}.{k}") for k in (0, 1))
    return RankProgram(stage, blocks, tuple(calls), (*RESIDENT, *slots), (param,), (bucket,))


def tiny_program() -> StepProgram:
    """Ranks 0 and 1 are stage 0, ranks 2 and 3 stage 1."""
    groups = {
        "tp": tuple(Group("tp", (r,)) for r in range(4)),
        "dp": (Group("dp", (0, 1)), Group("dp", (2, 3))),
        "pp_next": (Group("pp_next", (0, 2)), Group("pp_next", (1, 3))),
        "pp_prev": (Group("pp_prev", (0, 2)), Group("pp_prev", (1, 3))),
    }
    degrees = {"tp": 1, "dp": 2, "pp": 2, "vpp": 1, "microbatches": 2, "micro_batch_size": 1, "seq_length": 4}
    program = StepProgram((first_stage(), last_stage()), (0, 0, 1, 1), groups, degrees, rules={"pipeline": "separate"})
    return replace(program, hash=program_hash(program))
