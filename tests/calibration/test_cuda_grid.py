"""The GPU's grid: what it must contain, checked where there is no GPU."""

import pytest
import torch

from calibration import cuda_bench, cuda_grid
from kernels.registry import POINTWISE
from plan.errors import InputError
from plan.ops import OPERATORS, flops_of


def test_every_memory_bound_operator_is_measured() -> None:
    measured = {call.op for call in cuda_grid.memory_calls(frozenset(POINTWISE))}
    assert measured == {name for name, operator in OPERATORS.items() if operator.kind == "memory"}


def test_products_come_in_the_three_layouts_of_a_step() -> None:
    calls = [c for c in cuda_grid.gemm_calls() if c.op == "gemm"]
    assert {c.variant for c in calls} == {"nt", "nn", "tn+acc32"}
    assert all(flops_of(c) <= cuda_grid.LARGEST_FLOPS for c in calls)
    assert len({(c.shape, c.dtype, c.variant) for c in calls}) == len(calls)


def test_compiled_operators_get_few_shapes() -> None:
    few = [c for c in cuda_grid.memory_calls(frozenset(POINTWISE)) if c.op == "swiglu_forward"]
    many = [c for c in cuda_grid.memory_calls(frozenset()) if c.op == "swiglu_forward"]
    assert len(few) == 3 < len(many)


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of a machine without a GPU")
def test_without_a_gpu_the_message_says_what_to_do() -> None:
    with pytest.raises(InputError, match="no GPU is visible.*calibrate.*doctor"):
        cuda_bench.require_gpu()
