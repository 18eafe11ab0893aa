"""Which kernel calls of a program the profile never measured: a forecast says so, by name, and how much of the work
it is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from program import KernelCall, StepProgram, block_uses

if TYPE_CHECKING:
    from calibration.profile import Profile

MOST_NAMED = 6


def warnings(program: StepProgram, profile: Profile) -> tuple[str, ...]:
    """A sentence for each way a call is not covered, with the share of kernel time priced so, largest first."""
    priced = {call: profile.kernel_s(call) * times for call, times in kernel_calls(program).items()}
    total = sum(priced.values())
    found: dict[str, float] = {}
    for call, time_s in priced.items():
        sentence = _sentence(call, profile)
        if sentence:
            found[sentence] = found.get(sentence, 0.0) + time_s
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{text} ({_share(time_s, total)} of kernel time)" for text, time_s in ordered[:MOST_NAMED]]
    rest = ordered[MOST_NAMED:]
    if rest:
        lines.append(f"{len(rest)} more operators like these ({_share(sum(t for _, t in rest), total)} of kernel time)")
    return tuple(lines)


def kernel_calls(program: StepProgram) -> Counter[KernelCall]:
    """Every distinct kernel call with how often a step executes it, over all ranks."""
    ranks = Counter(program.class_of)
    found: Counter[KernelCall] = Counter()
    for number, stage in enumerate(program.classes):
        uses = block_uses(stage)
        for index, block in enumerate(stage.blocks):
            for instruction in block.instructions:
                for call in instruction.body if instruction.stream != "cpu" else ():  # one rate for the host's own
                    found[call] += uses[index] * ranks[number]
    return found


def _sentence(call: KernelCall, profile: Profile) -> str:
    """One sentence an operator, dtype and variant, so that shapes do not flood the report."""
    coverage = profile.covers(call)
    name = f"{call.op} {call.dtype} {call.variant}".rstrip()
    if coverage.status == "missing":
        return f"{name}: not measured, {coverage.how}"
    if coverage.status == "extrapolated":
        return f"{name}: shapes beyond the measured ones, extrapolated"
    return ""


def _share(part_s: float, total_s: float) -> str:
    return f"{part_s / total_s:.1%}" if total_s > 0 else "0.0%"
