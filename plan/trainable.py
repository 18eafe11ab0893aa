"""What a run may ask that can be forecast and not yet be trained."""

from __future__ import annotations

from plan.implementations import IMPLEMENTATIONS, engine, implementation
from plan.parallel import FRAMEWORK_KERNELS
from plan.run import Run
from program.errors import InputError


def check_trainable(run: Run) -> None:
    """Raises InputError for what a run may ask and the trainer does not do."""
    problems = []
    if not implementation(run.plan.implementation).trains:
        problems.append(
            f"plan.implementation {run.plan.implementation} can be forecast; what trains is implementation: "
            + " or ".join(each.name for each in IMPLEMENTATIONS.values() if each.trains)
        )
    if run.plan.kernels in FRAMEWORK_KERNELS:
        problems.append(
            f"plan.kernels {run.plan.kernels} are priced as their project launches them, and not executed here; set "
            "plan.kernels: compiled"
        )
    if run.checkpoint.every:
        problems.append(
            f"checkpoint.every {run.checkpoint.every}: checkpoints are not written yet; set checkpoint.every: 0"
        )
    if run.train.eval_every:
        problems.append(f"train.eval_every {run.train.eval_every}: evaluation is not run yet; set train.eval_every: 0")
    if run.model.positions == "alibi" and run.plan.attention != "unfused":
        problems.append(
            f"model.positions alibi trains with attention: unfused (it is {run.plan.attention}), because torch's fused "
            "kernels take no bias; set plan.attention: unfused"
        )
    if run.plan.gradient_dtype in ("fp16", "bf16") and engine(run.plan).grad_accumulation == "in_gemm":
        problems.append(
            f"plan.gradient_dtype {run.plan.gradient_dtype} can be forecast; gradients are trained in fp32: set "
            "gradient_dtype: fp32"
        )
    if run.plan.precision == "fp16" and run.plan.loss_scale is None:
        problems.append("plan.precision fp16 without a loss scale loses small gradients; set plan.loss_scale: auto")
    if problems:
        raise InputError(problems)
