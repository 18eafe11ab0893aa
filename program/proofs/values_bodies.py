"""What is computed outside the units is what its kind says, of the size that its buffers have.

An optimizer's step decays exactly the parameters that are to be decayed; a norm is of as many elements as a bucket or a
rank's share of it has.
"""

from __future__ import annotations

from program import Buffer, Instruction, RankProgram, numel
from program.lines import Stretches

OPERATORS = {
    "ZERO": {"fill"},
    "ADD": {"add_into"},
    "COPY": {"cast", "copy"},
    "ACC": {"cast", "add_into", "fill"},
    "NORM": {"sqnorm", "statistics"},
    "CAST": {"clone", "cast"},
    "D2H": {"transfer"},
    "H2D": {"transfer"},
    "STEP": {"clip_coefficient", "not_finite", "adamw"},
    "LOSS": {"read"},
}
MAIN = {"ACC": "add_into", "NORM": "statistics", "CAST": "cast", "STEP": "adamw"}  # the one that must be there
FILLED = {"COPY": 1, "NORM": 1, "D2H": 1, "H2D": 1}  # tensors that are written and not read


def made_afresh(i: Instruction) -> set[int]:
    """Places that one product of an instruction writes whole, whatever was there."""
    lines = () if i.lines is None else i.lines.lines
    targets = [args[2] for op, args, _, _ in lines if op == "gemm_out"]
    return {i.reads[target] for target in targets if target < len(i.reads) and targets.count(target) == 1}


def body_fault(stage: RankProgram, i: Instruction, written: tuple[Buffer, ...]) -> str | None:
    """What is wrong with the lines of an instruction that declares no values; None if nothing is."""
    if i.comm is not None:
        return None
    if i.lines is None or i.lines.calls != i.body:
        return "what is priced is not what it computes"
    found = {line[0] for line in i.lines.lines}
    if i.kind not in OPERATORS:
        return "it declares nothing of what it reads and writes"
    if i.kind == "ZERO" and i.reads not in ((), i.writes):
        return "a ZERO reads something else than it clears"
    if not found <= OPERATORS[i.kind] or not found or MAIN.get(i.kind, min(found)) not in found:
        return f"a {i.kind} does not compute {', '.join(sorted(found)) or 'nothing'}"
    filled = 0 if i.kind == "COPY" and "copy" not in found else FILLED.get(i.kind, 0)  # a cast makes a new tensor
    given = len({*i.reads, *i.writes}) if i.kind == "ZERO" else len(i.reads) + filled
    if i.lines.arguments != given:
        return f"its lines take {i.lines.arguments} tensors; it has {given}"
    return _size_fault(stage, i, written)


def _size_fault(stage: RankProgram, i: Instruction, written: tuple[Buffer, ...]) -> str | None:
    assert i.lines is not None
    sizes = [numel(call.shape) for call in i.lines.calls]
    held = [numel(buffer.shape) for buffer in written]
    if i.kind == "ADD" and sizes[-1:] != held[-1:]:
        return f"{sizes} elements are added to {held}"
    if i.kind == "COPY" and (len(held) != 1 or set(sizes) != set(held)):
        return f"{sizes} elements are copied to {held}"
    if i.kind == "ZERO" and sum(sizes) != sum(held):
        return f"{sum(sizes)} elements are cleared of {sum(held)}"
    if i.kind == "NORM":
        wanted = [(bucket.numel, bucket.shard_numel) for bucket in stage.buckets]
        if len(sizes) != len(wanted) or any(size not in two for size, two in zip(sizes, wanted, strict=True)):
            return f"the norm is of {sizes} elements"
    return _step_fault(stage, i) if i.kind == "STEP" else None


def _step_fault(stage: RankProgram, i: Instruction) -> str | None:
    assert i.lines is not None
    bucket = stage.buckets[i.unit] if i.unit < len(stage.buckets) else None
    given = next(dict(line[3]) for line in i.lines.lines if line[0] == "adamw")
    decayed = given.get("decayed")
    params = sorted((p for p in stage.params if p.bucket == i.unit and p.decay), key=lambda p: p.offset)
    wanted = tuple((p.offset, p.offset + p.local_numel) for p in params)
    if bucket is None or not isinstance(decayed, Stretches):
        return f"there is no bucket {i.unit}, or nothing says what of it decays"
    if decayed.ranges != wanted or decayed.extent != bucket.shard_numel:
        return f"step of bucket {i.unit} decays other parameters than the bucket's"
    return None
