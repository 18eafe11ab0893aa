"""DeepSpeed's program trains as one process with plain autograd does: gradients made apart and added up afterwards
(fp64 stands for bf16 here), added up in the computing type (fp32), blocking transfers, gradients all-reduced whole and
weights gathered at the end of the step.
"""

from typing import Any

import pytest

from compiler import compile_run
from tests.soak import crossed
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, make_run, train
from tests.trainer.test_conformance import _hold_communications, _hold_products, _peak_bytes
from tests.trainer.test_parity import STEPS, _hold, _reference
from tests.trainer.watching import observe

DEEPSPEED = {"implementation": "deepspeed", "attention": "unfused"}
TP2, PP2, DP2 = {"tensor_parallel": 2, "micro_batch_size": 4}, {"pipeline_parallel": 2}, {"data_parallel": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "dp2": DP2,
    "tp2": TP2,
    "pp2": PP2,
    "pp4": {"pipeline_parallel": 4},
    "tp2-pp2": TP2 | PP2 | {"micro_batch_size": 2},
    "dp2-pp2": DP2 | PP2,
    "zero1-dp2": DP2 | {"zero_stage": 1},
    "zero1-dp4": {"data_parallel": 4, "zero_stage": 1},
    "zero1-dp2-tp2": DP2 | TP2 | {"zero_stage": 1},
    "zero1-dp2-pp2": DP2 | PP2 | {"zero_stage": 1},
    "recompute-tp2": TP2 | {"recompute": "full"},
    "recompute-pp2": PP2 | {"recompute": "full"},
    "partitioned-tp2-pp2": TP2 | PP2 | {"recompute": "full", "partition_activations": True},
}


@crossed(layout=LAYOUTS, model=["llama", "gpt"])
def test_losses_norms_and_parameters_in_fp64(pool: Pool, model: str, layout: str) -> None:
    _hold(pool, model, LAYOUTS[layout] | DEEPSPEED)


@pytest.mark.parametrize("layout", ["single", "tp2-pp2", "recompute-pp2"])
def test_blooms_choices(pool: Pool, layout: str) -> None:
    _hold(pool, "bloom", LAYOUTS[layout] | DEEPSPEED)


@pytest.mark.parametrize("layout", ["single", "tp2-pp2", "recompute-tp2"])
def test_dropout_by_stored_masks(pool: Pool, layout: str) -> None:
    """Megatron's layers store masks and what they left of the probabilities; the same elements drop."""
    _hold(pool, "gpt", LAYOUTS[layout] | DEEPSPEED, "dropout")


@crossed(layout=["single", "tp2-pp2", "zero1-dp2-pp2"], model=["llama", "gpt"])
def test_gradients_added_up_in_the_computing_type(pool: Pool, model: str, layout: str) -> None:
    _hold(pool, model, LAYOUTS[layout] | DEEPSPEED | {"precision": "fp32"})


@pytest.mark.parametrize("zero", [0, 1])
def test_bf16_follows_the_fp32_reference(pool: Pool, zero: int) -> None:
    """The BF16_Optimizer shards its state at stage 0 too."""
    run = make_run(LLAMA, DEEPSPEED | DP2 | PP2 | {"precision": "bf16", "zero_stage": zero})
    losses, norms, _ = _reference("llama", "fp32", "")
    for share in pool.run(train, run, STEPS):
        assert share.losses == pytest.approx(losses, rel=5e-3)
        assert share.norms == pytest.approx(norms, rel=3e-2)


@crossed(
    layout=["tp2-pp2", "zero1-dp2-pp2", "recompute-tp2", "tp2"],
    precision=["fp32", "fp64", "bf16"],
    model=["llama", "gpt"],
)
def test_a_step_does_exactly_what_its_program_says(pool: Pool, layout: str, precision: str, model: str) -> None:
    dropout = {"dropout": 0.1, "attention_dropout": 0.1} if model == "gpt" else {}
    run = make_run(
        {"llama": LLAMA, "gpt": GPT}[model] | dropout, LAYOUTS[layout] | DEEPSPEED | {"precision": precision}
    )
    program = compile_run(run)
    for rank, (observed, groups) in enumerate(pool.run(observe, run)[: run.plan.world]):
        mine = program.classes[program.class_of[rank]]
        _hold_communications(observed, groups, mine)
        _hold_products(observed, mine)
        assert observed.wrong_results == []
        assert observed.peak_bytes == _peak_bytes(mine)
