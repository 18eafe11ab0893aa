"""What of a unit is kept from forward for backward, and which forward steps backward repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.units import saved_names
from program import numel
from program.lines import Part, Tensor, Unit

SAVED = "saved"


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """A unit with what of it is kept for backward, and the forward steps backward repeats."""

    unit: Unit
    number: int
    kept: tuple[str, ...]
    repeated: tuple[Part, ...]
    shared: bool = False  # of what is kept each tensor-parallel rank keeps its share


def share_saved(plan: UnitPlan, ranks: int) -> UnitPlan:
    """The input of a recomputed unit, flat and cut over the tensor-parallel ranks that all hold it: each keeps its
    share (DeepSpeed's `partition_activations`, Megatron-LM's `--distribute-saved-activations`)."""
    whole = plan.unit.tensors[plan.unit.source]
    share = Tensor(SAVED, (numel(whole.shape) // ranks,), whole.dtype)
    unit = replace(plan.unit, tensors={**plan.unit.tensors, SAVED: share})
    return UnitPlan(unit, plan.number, (SAVED,), plan.repeated, shared=True)


def unit_plan(unit: Unit, number: int, recompute: str, whole: bool = False) -> UnitPlan:
    """`recompute`: none | selective (keep all but what the attention makes of its input) | full (keep the input only).
    `whole`: what is recomputed in full runs to its end, as under autograd's checkpointing, what backward does not need
    included."""
    saved = saved_names(unit)
    kept = saved
    if recompute == "full":
        kept = (unit.source,)
        if whole:
            return UnitPlan(unit, number, kept, unit.forward)
    elif recompute == "selective":
        again = [part for part in unit.forward if part.piece == "attn.sdpa"]
        made = {n for part in again for n in part.writes}
        given = [n for part in again for n in part.reads if ":" not in n]
        kept = tuple(dict.fromkeys((*(n for n in saved if n not in made), *given)))
    missing = {n for n in saved if n not in kept}
    return UnitPlan(unit, number, kept, _slice(unit, missing, set(kept)))


def _slice(unit: Unit, missing: set[str], kept: set[str]) -> tuple[Part, ...]:
    """The forward steps needed to make `missing` again from `kept` (a unit's last sum is not among them)."""
    wanted, steps = set(missing), []
    for step in reversed(unit.forward):
        if not wanted.intersection(step.writes):
            continue
        steps.append(step)
        if set(step.writes).isdisjoint(step.reads):
            wanted -= set(step.writes)
        wanted |= {n for n in step.reads if ":" not in n and n not in kept}
    return tuple(reversed(steps))
