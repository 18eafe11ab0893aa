"""Fresh gradients join the main ones after a backward: DeepSpeed's BF16_Optimizer.

    ACC grads   a unit's fresh gradients (computing type) are widened one by one, each into a new tensor, and added into
                the main ones (`update_hp_grads` of `runtime/bf16_optimizer.py`, v0.6.5)

Until the next backward clears them they stay beside the main gradients. Nothing but the backward writes them: products
overwrite theirs, and what is added up instead starts from zero (`trainer.pieces_step.add_fresh`).
"""

from __future__ import annotations

from plan.compile.builder import BlockBuilder
from plan.compile.parameters import Parameters
from plan.parallel import Plan
from plan.program import DTYPE_BYTES, KernelCall, Param, rank_wide


def add_fresh(builder: BlockBuilder, plan: Plan, parameters: Parameters, unit: int, params: list[Param]) -> None:
    """Emit ACC for a unit's parameters. Unit 0's body also holds what clearing its tables' gradients costs: their
    backward scatters into zeros."""
    if not params:
        return
    body = tuple(call for param in params for call in _calls(plan, unit, param))
    fresh = [rank_wide(parameters.fresh_ref[p.name]) for p in params]
    main = [rank_wide(parameters.grad_ref[p.name]) for p in params]
    refs, widest = (*fresh, *main), max(p.local_numel for p in params) * DTYPE_BYTES[plan.gradient_dtype]
    builder.emit("W", "ACC", unit, "grads", "compute", refs, refs, body, transient_bytes=widest)


def _calls(plan: Plan, unit: int, param: Param) -> list[KernelCall]:
    size, wide = (param.local_numel,), plan.gradient_dtype
    clear = [KernelCall("fill", size, plan.precision)] if unit == 0 and len(param.full_shape) > 1 else []
    widen = KernelCall("copy", size, plan.precision, f"{plan.precision}->{wide}")
    return [*clear, widen, KernelCall("add", size, wide)]
