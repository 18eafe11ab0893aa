"""A rank's program as text: a header, then one line an instruction, in host issue order. `windtunnel program RUN
--rank R` prints it.

    # stage 0 of 2 · rank 0 (class 0, 1 rank) · 8 micro-batches · program 3f0c…
    # groups: tp 0,1 · dp 0 · pp 0,2
    # blocks: F 41 instructions x 8 …
    # resident 1.2 MiB: weight 0.4 · grad 0.8; buckets 2
         12 compute   F F0.1 attn.in   rmsnorm_forward(128,64 fp32)
         13 tp        F AG0.1 attn.in  waits 12 | all_gather tp#fwd.0 32.0 KiB fp32

The columns are: global id, stream, label, then waits, communication, host synchronisation, kernel calls, frees.
`schedule_csv` writes the pipeline schedule alone in PyTorch's text form (`2F0`: stage 2, forward, micro-batch 0), one
line a pipeline rank, which its schedule loader reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from program.flat import Placed, expand
from program.instruction import Comm, Instruction, label
from program.kinds import KernelCall
from program.step_program import Block, RankProgram, StepProgram

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(bytes_: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `32.0 KiB`."""
    size, unit = float(bytes_), 0
    while abs(size) >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:.1f} {UNITS[unit]}"


def kernel_text(call: KernelCall) -> str:
    """`gemm(128,64,64 bf16 nt)x2`."""
    variant = f" {call.variant}" if call.variant else ""
    times = f"x{call.count}" if call.count != 1 else ""
    return f"{call.op}({','.join(map(str, call.shape))} {call.dtype}{variant}){times}"


def comm_text(comm: Comm, seq: int) -> str:
    """`reduce_scatter tp#fwd.3 32.0 KiB bf16 sum`: operation, role#channel.seq, bytes of the full tensor, dtype,
    reduction.
    """
    reduce = f" {comm.reduce}" if comm.reduce else ""
    algorithm = f" {comm.algorithm}" if comm.algorithm != "auto" else ""
    return f"{comm.op} {comm.role}#{comm.channel}.{seq} {size_text(comm.bytes)} {comm.dtype}{reduce}{algorithm}"


def label_of(instruction: Instruction, micro: int) -> str:
    """The text form of an instruction placed for a micro-batch."""
    return label(instruction.phase, instruction.kind, micro, instruction.unit, instruction.piece)


def instruction_text(placed: Placed, frees: int | None = None) -> str:
    """One line of the program. `frees`: how many buffers it really frees (default: all it names, bound or not)."""
    ins = placed.instruction
    frees = len(ins.frees) if frees is None else frees
    notes = []
    if placed.waits:
        notes.append("waits " + ",".join(map(str, placed.waits)))
    if ins.comm is not None:
        notes.append(comm_text(ins.comm, placed.seq))
    if ins.host_sync:
        notes.append("host waits")
    notes += [kernel_text(call) for call in ins.body]
    if frees:
        notes.append(f"frees {frees}")
    if ins.transient_bytes:
        notes.append(f"workspace {size_text(ins.transient_bytes)}")
    return f"{placed.id:>8} {ins.stream:<9} {label_of(ins, placed.micro):<24} {' | '.join(notes)}".rstrip()


def program_text(program: StepProgram, rank: int) -> Iterator[str]:
    """The lines of a rank's program. Raises IndexError when there is no such rank (the command line checks it
    first).
    """
    number = program.class_of[rank]
    stage = program.classes[number]
    yield from header_text(program, rank, number)
    for placed in expand(stage):
        call = stage.calls[placed.call]
        ports = zip(stage.blocks[call.block].ports_in, call.bindings, strict=True)
        absent = {port.buffer for port, (bound, _) in ports if bound < 0} if placed.instruction.frees else set()
        yield instruction_text(placed, sum(ref not in absent for ref in placed.instruction.frees))


def header_text(program: StepProgram, rank: int, number: int) -> Iterator[str]:
    """What stands above the instructions: stage, groups, blocks, resident memory, buckets."""
    stage, degrees = program.classes[number], program.degrees
    many = program.class_of.count(number)
    share = f"class {number}, {many} rank{'s' * (many > 1)}"
    yield (
        f"# stage {stage.stage} of {degrees.get('pp', 1)} · rank {rank} of {program.world} ({share}) · "
        f"{degrees.get('microbatches', 1)} micro-batches · program {program.hash[:16] or 'unhashed'}"
    )
    yield "# groups: " + (" · ".join(_groups(program, rank)) or "none")
    uses = Counter(call.block for call in stage.calls)
    for index, block in enumerate(stage.blocks):
        yield (
            f"# block {block.name}: {len(block.instructions)} instructions x {uses[index]} calls, "
            f"leaves {size_text(block.net_bytes)}, peaks at {size_text(block.peak_bytes)}"
        )
    pools: Counter[str] = Counter()
    for buffer in stage.buffers:
        pools[buffer.pool] += buffer.bytes if buffer.base is None else 0
    held = " · ".join(f"{pool} {size_text(bytes_)}" for pool, bytes_ in sorted(pools.items()) if bytes_)
    yield f"# resident {size_text(stage.resident_bytes)}: {held or 'nothing'}"
    yield f"# {len(stage.params)} parameters in {len(stage.buckets)} buckets" + "".join(
        f" · {b.index} {b.kind} {b.numel}" for b in stage.buckets
    )
    for name, value in sorted(program.rules.items()):
        yield f"# rule {name}: {value}"


def _groups(program: StepProgram, rank: int) -> Iterator[str]:
    for role, groups in program.groups.items():
        for group in groups:
            if rank in group.ranks and len(group.ranks) > 1:
                yield f"{role} {_ranks(group.ranks)}"


def _ranks(ranks: tuple[int, ...]) -> str:
    """`0,1,2` or, for an even stride, `0..1016 step 8`."""
    if len(ranks) <= 4:
        return ",".join(map(str, ranks))
    strides = {b - a for a, b in pairwise(ranks)}
    if len(strides) == 1:
        return f"{ranks[0]}..{ranks[-1]} step {strides.pop()}"
    return ",".join(map(str, ranks[:4])) + f",… ({len(ranks)} ranks)"


def schedule_csv(program: StepProgram) -> str:
    """The pipeline schedule in PyTorch's CSV form: a line a pipeline rank, cells `<stage><F|B|I|W><micro-batch>`.

    I and W are the input and weight halves of a backward that the schedule runs apart; B is a backward in one call.
    Recompute has no cell in that form. Stages count model chunks over the whole pipeline, in order of their first unit.
    """
    firsts = sorted({first for stage in program.classes for first in _chunks(stage)})
    lines: dict[int, str] = {}
    for stage in program.classes:
        if stage.stage not in lines:
            lines[stage.stage] = ",".join(_cells(stage, firsts))
    return "".join(lines[number] + "\n" for number in sorted(lines))


def _cells(stage: RankProgram, firsts: list[int]) -> list[str]:
    kinds = [_kinds(block) for block in stage.blocks]
    chunks = [_chunk(stage, block) for block in stage.blocks]
    backward = [(chunks[b], "W" in kinds[b]) for b in range(len(kinds)) if kinds[b] and "F" not in kinds[b]]
    halves = {chunk for chunk, weights in backward if not weights and (chunk, True) in backward}
    cells = []
    for call in stage.calls:
        kind, chunk = kinds[call.block], chunks[call.block]
        if call.micro < 0 or chunk is None or not kind:
            continue
        half = "W" if kind == {"W"} else "B" if "W" in kind else "I"
        action = "F" if "F" in kind else half if chunk in halves else "B"
        cells.append(f"{firsts.index(chunk)}{action}{call.micro}")
    return list(dict.fromkeys(cells))


def _kinds(block: Block) -> set[str]:
    """Which of F, I, W, B a block computes; a block that recomputes alone computes none of them."""
    return {
        i.kind for i in block.instructions if i.phase in ("F", "B", "W") and i.kind in ("F", "I", "W", "B") and i.body
    }


def _chunks(stage: RankProgram) -> dict[int, frozenset[int]]:
    """First unit → units of every model chunk of a stage, from the blocks that compute its forward."""
    forwards = [units for block in stage.blocks if (units := _units(block, ("F",)))]
    return {min(units): units for units in forwards}


def _chunk(stage: RankProgram, block: Block) -> int | None:
    """First unit of the model chunk a block computes in."""
    units = _units(block, ("F", "B", "W"))
    return next((first for first, chunk in _chunks(stage).items() if units & chunk), None)


def _units(block: Block, phases: tuple[str, ...]) -> frozenset[int]:
    return frozenset(i.unit for i in block.instructions if i.phase in phases and i.body and i.stream == "compute")
