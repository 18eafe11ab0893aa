"""What a pipeline schedule is: the order in which each stage computes, and the plans it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from plan.parallel import Plan


class Slot(NamedTuple):
    """One compute call of a stage: forward, backward in one call, or its input and its weight half (a tuple, because
    schedules hash and sort tens of thousands)."""

    phase: Literal["F", "B", "I", "W"]
    micro: int
    chunk: int

    @property
    def crossing(self) -> Slot:
        """The pass that crosses the boundary of two stages: a gradient comes and goes with B or with I."""
        return self._replace(phase="B") if self.phase == "I" else self

    def cell(self, stage: int, stages: int) -> str:
        """The slot in PyTorch's text form, on a stage of so many."""
        return f"{self.chunk * stages + stage}{self.phase}{self.micro}"


Order = Callable[[Plan, int, int], tuple[Slot, ...]]
"""The slots of a stage: (plan, micro-batches, stage)."""


def nothing(plan: Plan) -> list[str]:
    """No problems."""
    return []


def never(plan: Plan) -> bool:
    """Of no plan."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule. `chunks`: model chunks that a stage may hold; several take micro-batches in groups.
    `steady` gives the micro-batches of a step that fills, repeats a few times and drains, and those of a repetition;
    None where a step has no repetition. `splits`: input and weight gradients may stand apart. `problems` are plans it
    cannot run, in sentences."""

    name: str
    order: Order
    chunks: Literal["one", "several", "any"] = "one"
    steady: Callable[[Plan], tuple[int, int]] | None = None
    splits: Callable[[Plan], bool] = never
    problems: Callable[[Plan], list[str]] = nothing


def halves_refused(plan: Plan) -> list[str]:
    """Why the two halves of this plan's backward cannot be run apart."""
    found = []
    if plan.recompute in ("full", "layers"):
        found.append(
            f"weight gradients apart from input gradients need what recompute {plan.recompute} throws away: each half "
            "would repeat the layer; use recompute selective or none, or schedule 1f1b"
        )
    if plan.zero_stage > 1:
        found.append(
            f"zero_stage {plan.zero_stage} reduces gradients unit by unit in the backward, which weight gradients "
            "apart from input gradients would do twice; use zero_stage 1, or schedule 1f1b"
        )
    return found


def merged(forward: list[Slot], backward: list[Slot], warm_up: int) -> tuple[Slot, ...]:
    """Warm-up forwards, then one forward and one backward at a time, then the remaining backwards."""
    steady = len(forward) - warm_up
    pairs = [s for f, b in zip(forward[warm_up:], backward[:steady], strict=True) for s in (f, b)]
    return (*forward[:warm_up], *pairs, *backward[steady:])


def joined(slots: list[Slot]) -> tuple[Slot, ...]:
    """Weight gradients that follow their own input gradients at once are a backward in one call: the input gradient's
    collectives then run beside them."""
    found: list[Slot] = []
    for slot in slots:
        if slot.phase == "W" and found and found[-1] == slot._replace(phase="I"):
            found[-1] = slot._replace(phase="B")
        else:
            found.append(slot)
    return tuple(found)
