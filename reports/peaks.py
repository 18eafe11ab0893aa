"""Whether a forecast is faster than its card can be: then a price or a data sheet is wrong, and it is refused.

Asked of the whole step (hardware FLOPs by the `exact` count, whatever convention is printed) and of each operator's
calls together, so that one wrong price is found in a step that is slow elsewhere. FLOPs are held against the cluster's
peak at the calls' precision. Bytes are held against the memory rate of the cluster's card, or of the card that a
profile was named for (`reports.card` tells their ratio), where a call moves more than any cache keeps. A card whose
data sheet states no peak, such as a CPU, is held against the best rate of products in its profile, as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler import laid_out
from plan.flops import hardware_flops_per_step
from plan.run import Run
from program import KernelCall, StepProgram
from program.errors import InputError
from program.ops import OPERATORS, bytes_of, flops_of
from reports.card import memory_gb_s
from reports.coverage import kernel_calls

if TYPE_CHECKING:
    from calibration.profile import Profile

ROUNDING = 1.001  # data sheets give three or four digits
BEYOND_CACHES = 64 << 20  # bytes: more than the last cache of a card; what fits there may move faster than memory


@dataclass(slots=True)
class _Sum:
    """What the calls of one operator, dtype and variant do in a step."""

    seconds: float = 0.0
    flops: float = 0.0
    large_seconds: float = 0.0
    large_bytes: float = 0.0
    how: str = ""  # what stands in for a price that was not measured


def refuse_impossible(
    run: Run, program: StepProgram, profile: Profile, step_s: float, peak_tflops: float | None
) -> None:
    """Raises InputError with every cause when a step, or a kind of call in it, is beyond the card. `peak_tflops`: dense
    peak of one GPU at the run's precision."""
    causes = list(_causes(run, program, profile))
    tflops = hardware_flops_per_step(laid_out(run)) / max(step_s, 1e-300) / program.world / 1e12
    if peak_tflops is not None and tflops > peak_tflops * ROUNDING:
        causes.insert(
            0,
            f"the forecast would use {tflops / peak_tflops:.0%} of the card: {tflops:.4g} TFLOP/s a GPU against a peak "
            f"of {peak_tflops:g} at {run.plan.precision}",
        )
    if causes:
        name = run.cluster.gpu
        remedy = f"is cluster.peak_tflops that of {name}, and is profile {profile.name} a profile of it?"
        raise InputError([*causes[:-1], f"{causes[-1]}; {remedy}"])


def _causes(run: Run, program: StepProgram, profile: Profile) -> Iterator[str]:
    limit_gb_s = memory_gb_s(run, profile)
    for (op, dtype, variant), found in _sums(program, profile).items():
        name = f"{op} {dtype} {variant}".rstrip()
        peak, rate = _peak_tflops(run, dtype), found.flops / max(found.seconds, 1e-300) / 1e12
        how = f" ({found.how})" if found.how else ""
        if OPERATORS[op].kind != "memory" and peak and rate > peak * ROUNDING:
            yield f"profile {profile.name} prices {name}{how} at {rate:.4g} TFLOP/s, beyond the card's peak of {peak:g}"
        rate = found.large_bytes / max(found.large_seconds, 1e-300) / 1e9
        if limit_gb_s and rate > limit_gb_s * ROUNDING:
            yield f"profile {profile.name} prices {name}{how} at {rate:.4g} GB/s, beyond the card's {limit_gb_s:g}"


def _sums(program: StepProgram, profile: Profile) -> dict[tuple[str, str, str], _Sum]:
    sums: dict[tuple[str, str, str], _Sum] = {}
    for call, times in kernel_calls(program).items():
        found = sums.setdefault((call.op, call.dtype, call.variant), _Sum())
        seconds = profile.kernel_s(call) * times
        found.seconds += seconds
        found.flops += flops_of(call) * times
        found.how = profile.covers(call).how
        if _moves(call) > BEYOND_CACHES:
            found.large_seconds += seconds
            found.large_bytes += bytes_of(call) * times
    return sums


def _moves(call: KernelCall) -> int:
    return OPERATORS[call.op].bytes_(call) if OPERATORS[call.op].kind == "memory" else 0


def _peak_tflops(run: Run, dtype: str) -> float | None:
    """Dense peak at the precision of a call; fp32 products may run as TF32."""
    peaks = run.cluster.peak_tflops
    return max(peaks.get("fp32", 0.0), peaks.get("tf32", 0.0)) or None if dtype == "fp32" else peaks.get(dtype)
