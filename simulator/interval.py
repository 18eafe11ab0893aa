"""A first-order interval around the step time: how wrong each class of cost is, times how much of the step it is.

The profile says how far each class of its entries missed the measurements it was fitted on (relative standard
deviation). Within a class the errors go together, so its part of the step moves by sigma x share; classes are
independent, so parts add in squares. Waiting (bubble, skew) is other ranks' work and takes the mixture of everything
else.

Published step times err one-sidedly: some real runs are slower than any model of healthy hardware and none is faster
than it. The upper side is therefore wider: it is added the share of communication and host time once more at its own
sigma, the classes that degraded links and busy hosts hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plan.ops import OPERATORS
from plan.program import KernelCall

if TYPE_CHECKING:
    from simulator.flight import Flight

SIDES = 2.0  # standard deviations each side: about 95% of a normal error
COMPUTE_PARTS = ("compute", "recompute", "optimizer")
COMMUNICATION = {
    "exposed_tensor": "collective",
    "exposed_data": "collective",
    "exposed_pipeline": "transfer",
    "exposed_offload": "copy",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of the step time in seconds, and the share of the step and sigma of each class behind them."""

    low_s: float
    high_s: float
    shares: dict[str, float]
    sigmas: dict[str, float]


def interval(flight: Flight) -> Interval:
    """The interval of a flight."""
    shares = class_shares(flight)
    residuals = flight.profile.residuals
    sigmas = {name: _sigma(residuals, name) for name in shares}
    spread = sum((shares[name] * sigmas[name]) ** 2 for name in shares) ** 0.5
    slow = (
        sum((shares[name] * sigmas[name]) ** 2 for name in shares if name not in ("gemm", "attention", "memory")) ** 0.5
    )
    step = flight.step_time_s
    return Interval(step * max(0.0, 1.0 - SIDES * spread), step * (1.0 + SIDES * (spread + slow)), shares, sigmas)


def _sigma(residuals: dict[str, float], name: str) -> float:
    """A class the profile gives no residual for is as uncertain as its worst class."""
    found = residuals.get(name)
    return max(residuals.values(), default=0.0) if found is None else found


def class_shares(flight: Flight) -> dict[str, float]:
    """Share of the step of each residual class; they sum to 1 (waiting is spread over the others)."""
    time = flight.breakdown
    computing = sum(time[name] for name in COMPUTE_PARTS)
    kinds = kernel_kinds_s(flight)
    whole = sum(kinds.values())
    shares = {kind: computing * value / whole for kind, value in kinds.items()} if whole > 0 else {"memory": computing}
    for part, name in COMMUNICATION.items():
        if part == "exposed_offload" and "host_optimizer" in flight.profile.residuals:
            name = "host_optimizer"  # the wider of the two
        shares[name] = shares.get(name, 0.0) + time[part]
    shares["host"] = shares.get("host", 0.0) + time["host"]
    busy = sum(shares.values())
    return {name: share / busy for name, share in shares.items() if share > 0} if busy > 0 else shares


def kernel_kinds_s(flight: Flight) -> dict[str, float]:
    """Seconds of kernels of each kind (gemm, attention, memory) in a step, mean over ranks."""
    totals: dict[str, float] = {}
    weights = [0] * len(flight.program.classes)
    for colour in flight.colours:
        weights[colour.program] += len(colour.ranks)
    prices: dict[KernelCall, float] = {}
    for weight, stage in zip(weights, flight.program.classes, strict=True):
        uses = [0] * len(stage.blocks)
        for call in stage.calls:
            uses[call.block] += 1
        for many, block in zip(uses, stage.blocks, strict=True):
            for instruction in block.instructions:
                for kernel in instruction.body if instruction.stream != "cpu" else ():
                    if kernel not in prices:
                        prices[kernel] = flight.profile.kernel_s(kernel)
                    kind = OPERATORS[kernel.op].kind
                    totals[kind] = totals.get(kind, 0.0) + prices[kernel] * many * weight
    return {kind: value / flight.program.world for kind, value in totals.items()}
