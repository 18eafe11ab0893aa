"""Fresh gradients join the main ones after a backward: DeepSpeed's BF16_Optimizer.

    ACC grads   a unit's fresh gradients (computing type) are widened one by one, each into a new tensor, and added into
                the main ones (`update_hp_grads` of `runtime/bf16_optimizer.py`, v0.6.5)

Until the next backward clears them they stay beside the main gradients. Nothing but the backward writes them: products
overwrite theirs, and what is added up instead starts from zero.
"""

from __future__ import annotations

from compiler.block_builder import BlockBuilder
from compiler.parameters import Parameters
from compiler.units import step as around
from plan.parallel import Plan
from program import Param, rank_wide


def add_fresh(builder: BlockBuilder, plan: Plan, parameters: Parameters, unit: int, params: list[Param]) -> None:
    """Emit ACC for a unit's parameters. Unit 0's body also holds what clearing its tables' gradients costs: their
    backward scatters into zeros."""
    if not params:
        return
    # Products overwrite theirs; what a backward adds up (norms, biases, the embedding's tables) starts from zero again.
    cleared = [len(p.local_shape) == 1 or unit == 0 for p in params]
    body = around.accumulate([p.local_shape for p in params], plan.precision, plan.gradient_dtype, cleared)
    fresh = [rank_wide(parameters.fresh_ref[p.name]) for p in params]
    main = [rank_wide(parameters.grad_ref[p.name]) for p in params]
    refs = (*fresh, *main)
    builder.emit("W", "ACC", unit, "grads", "compute", refs, refs, body)
