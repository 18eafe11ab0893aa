"""Where a step's time goes: ten classes of exclusive critical time that tile each rank's period.

The compute stream of a rank is the thread to follow. While it computes, the time belongs to `compute`, `recompute` or
`optimizer`. While it is idle, the gap belongs to what it waits for: a transfer under way is *exposed* tensor, pipeline,
data or offload communication; a partner that has not come is a pipeline `bubble` (across stages) or `skew` (inside a
group that should be in step); an instruction not yet issued is `host`, but for the time in which the host itself was
blocked by a communication. A gap that reaches further back than the
transfer waited for is charged to what that transfer itself waited for. Every picosecond between two STEPs has exactly
one class.
"""

from __future__ import annotations

from program import Instruction

CLASSES = (
    "compute",
    "recompute",
    "optimizer",
    "bubble",
    "exposed_tensor",
    "exposed_pipeline",
    "exposed_data",
    "exposed_offload",
    "skew",
    "host",
)
COMPUTE, RECOMPUTE, OPTIMIZER, BUBBLE, TENSOR, PIPELINE, DATA, OFFLOAD, SKEW, HOST = range(len(CLASSES))
Trail = tuple[
    int, int, int, int, "Trail | None"
]  # last member's start, work class, own start, wait class, what it waited for
COPY_STREAMS = ("h2d", "d2h", "cpu", "disk")


def work_class(instruction: Instruction) -> int:
    """The class of an instruction's own time when it is on the critical path."""
    if instruction.comm is not None:
        role = instruction.comm.role
        return TENSOR if role == "tp" else PIPELINE if role in ("pp_next", "pp_prev") else DATA
    if instruction.stream in COPY_STREAMS:
        return OFFLOAD
    if instruction.phase == "step":
        return OPTIMIZER
    return RECOMPUTE if instruction.phase == "R" else COMPUTE


def wait_class(instruction: Instruction, pipelined: bool) -> int:
    """The class of time spent waiting for the last member of a communication."""
    if instruction.comm is None or instruction.comm.role in ("tp", "dp"):
        return SKEW
    across = instruction.comm.role in ("pp_next", "pp_prev") or pipelined
    return BUBBLE if across else SKEW


def blame(account: list[int], begin: int, end: int, trail: Trail | None) -> None:
    """Charge the gap [begin, end) along a trail: from `last` on to the transfer, from `start` to `last` to the wait for
    partners, and what is earlier to what the transfer itself waited for. At the trail's end stands an instruction not
    issued yet: the host."""
    while trail is not None and end > begin:
        last, work, start, wait, trail = trail
        if last < end:
            cut = last if last > begin else begin
            account[work] += end - cut
            end = cut
        if start < end:
            cut = start if start > begin else begin
            account[wait] += end - cut
            end = cut
    if end > begin:
        account[HOST] += end - begin


def fractions(totals: list[int]) -> dict[str, float]:
    """Shares of each class; they sum to exactly 1 (a step that takes no time is all compute)."""
    whole = sum(totals)
    if whole == 0:
        return {name: 1.0 if index == COMPUTE else 0.0 for index, name in enumerate(CLASSES)}
    shares = {name: total / whole for name, total in zip(CLASSES, totals, strict=True)}
    largest = max(shares, key=lambda name: shares[name])
    for _ in range(8):
        error = 1.0 - sum(shares.values())
        if error == 0.0:
            break
        shares[largest] += error
    return shares
