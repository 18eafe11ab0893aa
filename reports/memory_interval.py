"""The interval around a forecast of memory: what a real run may hold, from what the profile says of the error.

Device memory: the allocator's peak, by the profile's shares below and above; the device context; and above it the
buffers of each communicator, which are outside of the allocator. An implementation's start may be the peak, where it
flattens weights beside the module that it was given. Host memory: what is offloaded, and the profile's share above.
A verdict is borderline where the capacity lies inside the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plan.implementations import engine
from plan.run import Run

if TYPE_CHECKING:
    from calibration.profile import Profile

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a forecast says are held, and intervals around them."""

    device: float
    device_interval: Interval
    host: float
    host_interval: Interval

    def fits(self, capacity: float, host_capacity: float) -> bool:
        """Whether the forecast itself is at most what there is."""
        return self.device <= capacity and (not self.host or self.host <= host_capacity)

    def borderline(self, capacity: float, host_capacity: float) -> bool:
        """Whether an interval holds what there is, and no interval is wholly above it."""
        both = [(self.device_interval, capacity)] + ([(self.host_interval, host_capacity)] if self.host else [])
        return all(low <= most for (low, _), most in both) and any(most < high for (_, high), most in both)


def held(run: Run, profile: Profile, reserved: float, weights: float, host: float) -> Held:
    """What is held, in bytes: `reserved` by the allocator of the fullest rank, `weights` of the fullest stage, `host`
    on a node. Without a word of the profile on its error the intervals are points."""
    error, context = profile.file.memory_error, profile.allocator.context_bytes
    device = reserved + context
    if error is None:
        return Held(device, (device, device), host, (host, host))
    high = reserved * (1 + error.above) + context + communicators(run) * error.communicator_bytes
    return Held(
        device,
        (reserved * (1 - error.below) + context, max(high, start_bytes(run, weights) + context)),
        host,
        (host, host * (1 + error.host_above)),
    )


def communicators(run: Run) -> int:
    """Communicators of a rank that carry weights, gradients or activations: one a dimension that is parallel."""
    plan = run.plan
    degrees = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.data_parallel)
    return sum(degree > 1 for degree in degrees)


def start_bytes(run: Run, weights: float) -> float:
    """Bytes of `weights` before the first step; 0 where weights are made as the run holds them."""
    return engine(run.plan).start_bytes * weights / run.plan.bytes_per_element
