"""Where the units of a model go."""

from hypothesis import assume, given
from hypothesis import strategies as st

from plan.layout import Layout, layout
from plan.run import load


def laid_out(layers: int, p: int, v: int = 1, how: object = "auto") -> Layout:
    plan = {"pipeline_parallel": p, "virtual_pipeline": v, "pipeline_layout": how, "global_batch_size": p}
    model = {"layers": layers, "hidden": 8, "heads": 1, "vocab": 8, "seq_length": 8}
    run = load({"model": model, "cluster": "cpu", "plan": plan})
    return layout(run.model, run.plan)


def test_layers_that_divide_are_shared_evenly_with_embedding_first_and_head_last() -> None:
    assert laid_out(4, 2) == (((0, 1, 2),), ((3, 4, 5),))


def test_chunks_of_an_interleaved_stage_lie_apart() -> None:
    assert laid_out(8, 2, 2) == (((0, 1, 2), (5, 6)), ((3, 4), (7, 8, 9)))


def test_bloom_puts_72_units_on_12_stages() -> None:
    stages = laid_out(70, 12)
    assert [len(stage[0]) for stage in stages] == [6] * 12
    assert stages[0][0] == (0, 1, 2, 3, 4, 5)
    assert stages[-1][0] == (66, 67, 68, 69, 70, 71)


def test_what_divides_neither_way_is_shared_as_equally_as_it_goes() -> None:
    assert [len(stage[0]) for stage in laid_out(31, 4)] == [9, 8, 8, 8]


def test_an_explicit_layout_is_followed() -> None:
    assert laid_out(4, 2, how=[2, 4]) == (((0, 1),), ((2, 3, 4, 5),))


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 3))
def test_every_unit_is_on_exactly_one_stage_in_order(layers: int, p: int, v: int) -> None:
    assume((p > 1 or v == 1) and layers + 2 >= p * v)
    stages = laid_out(layers, p, v)
    in_order = [unit for chunk in range(v) for stage in range(p) for unit in stages[stage][chunk]]
    assert in_order == list(range(layers + 2))
    assert all(chunk for stage in stages for chunk in stage)
