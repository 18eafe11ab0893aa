"""Comparing: instructions join by rank and id, work is judged apart from waiting, the worst comes first."""

import pytest

from program.errors import InputError
from reports.compare import compare
from reports.compare_text import compare_text
from reports.joining import join, operation
from reports.measured import measure, read_steps, warm_up_steps
from tests.reports.simulations import measured, predicted


def test_errors_are_predicted_minus_measured_and_the_worst_class_comes_first() -> None:
    found = compare(
        predicted(core_s=10e-3, transfer_s=2e-3), measured(core_s=8e-3, transfer_s=5e-3), [1.0, 0.02, 0.02, 0.02]
    )
    assert [row.name for row in found.classes] == ["tensor RS", "forward", "optimizer"]
    assert found.classes[0].error_s == pytest.approx(-3e-3)
    assert found.classes[0].error == pytest.approx(-0.6)
    assert found.classes[1].error == pytest.approx(0.25)
    assert found.step_time.measured_s == 0.02
    assert found.step_time.error == pytest.approx(0.013 / 0.02 - 1)
    assert found.step_time.recorded_s == pytest.approx(0.014)
    assert found.world == 2
    assert (found.only_predicted, found.only_measured) == (0, 0)


def test_a_late_member_is_skew_and_not_an_error_of_the_transfer() -> None:
    found = compare(predicted(transfer_s=2e-3), measured(core_s=10e-3, transfer_s=2e-3, late_s=(0, 7e-3)))
    transfer = next(row for row in found.classes if row.name == "tensor RS")
    assert transfer.error == pytest.approx(0, abs=1e-9)
    assert [(row.name, row.predicted_s) for row in found.skew] == [("tensor RS", 0.0)]
    assert found.skew[0].measured_s == pytest.approx(3.5e-3)  # rank 0 waits 7 ms, rank 1 does not


def test_a_folded_forecast_answers_for_every_rank_it_stands_for() -> None:
    folded = predicted(ranks=(0,), stands_for={0: (0, 1)})
    found = compare(folded, measured())
    assert (found.only_predicted, found.only_measured) == (0, 0)
    assert {row.rank for row in join(folded, measured()).rows} == {0, 1}


def test_the_worst_instructions_are_listed_up_to_top() -> None:
    found = compare(predicted(), measured(transfer_s=9e-3), top=2)
    assert [row.label for row in found.instructions] == ["F RS0.1 attn.core"] * 2
    assert [row.rank for row in found.instructions] == [0, 1]


def test_instructions_only_one_side_has_are_counted() -> None:
    less = measured()
    less = less.select(less.columns["id"] != 2)
    assert compare(predicted(), less).only_predicted == 2
    assert compare(predicted(ranks=(0,)), measured()).only_measured == 3


def test_another_program_is_refused_with_both_hashes() -> None:
    with pytest.raises(InputError, match=r"program cdcdcd.*of abab.*not the same work"):
        compare(predicted(hash_="cd" * 16), measured())


def test_swapped_timelines_are_refused_with_the_order() -> None:
    with pytest.raises(InputError) as caught:
        compare(measured(), predicted())
    assert len(caught.value.problems) == 2
    assert "give PREDICTED, then MEASURED" in str(caught.value)


def test_timelines_without_a_common_rank_are_refused() -> None:
    only_rank_1 = measured()
    only_rank_1 = only_rank_1.select(only_rank_1.columns["rank"] == 1)
    with pytest.raises(InputError, match="no instruction in common"):
        compare(predicted(ranks=(0,)), only_rank_1)


def test_idle_time_of_the_compute_stream_is_what_its_work_leaves() -> None:
    found = compare(predicted(core_s=10e-3, transfer_s=2e-3), measured(core_s=8e-3, transfer_s=5e-3))
    assert found.compute_idle_s == pytest.approx((2e-3, 5e-3))


def test_a_machine_that_drifted_is_said() -> None:
    today = measured(machine_probe={"gemm_s": 3e-3, "copy_s": 1e-3, "odd_s": 1.0})
    found = compare(predicted(), today, probe={"gemm_s": 2e-3, "copy_s": 1e-3, "launch_s": 1e-6})
    assert found.machine_drift == pytest.approx({"copy": 1.0, "gemm": 1.5})
    assert "copy 1.00, gemm 1.50" in compare_text(found)
    assert compare(predicted(), today).machine_drift == {}


def test_the_text_fits_the_page_and_says_the_error() -> None:
    text = compare_text(
        compare(predicted(), measured(late_s=(0, 1e-3)), [0.5, 0.0125, 0.0125], interval_s=(0.012, 0.017))
    )
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "error     +4.0 %" in text
    assert "measured is inside" in text
    assert "Skew" in text


@pytest.mark.parametrize(
    ("phase", "kind", "group", "name"),
    [
        ("F", "F", "", "forward"),
        ("R", "F", "", "recompute"),
        ("B", "I", "", "input gradient"),
        ("B", "W", "", "weight gradient"),
        ("B", "B", "", "backward"),
        ("step", "STEP", "", "optimizer"),
        ("B", "AG", "tp", "tensor AG"),
        ("step", "AR", "dp", "data AR"),
        ("F", "SEND", "pp_next", "pipeline transfer"),
    ],
)
def test_operation_classes(phase: str, kind: str, group: str, name: str) -> None:
    assert operation(phase, kind, group) == name


def test_warm_up_is_a_quarter_of_the_run_up_to_five_steps() -> None:
    assert [warm_up_steps(n) for n in (1, 2, 8, 10, 30, 1000)] == [0, 1, 2, 2, 5, 5]


def test_a_measured_step_is_the_median_after_warm_up_with_quartiles_and_range() -> None:
    found = measure([9.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.median_s, found.quartiles_s, found.range_s) == (3.0, (2.0, 4.0), (1.0, 5.0))
    assert (found.steps, found.warm_up) == (5, 1)
    assert found.relative_spread == pytest.approx(1 / 3)


@pytest.mark.parametrize("times", [[], [0.0], [float("nan")], [1.0, -1.0]])
def test_impossible_step_times_are_refused(times: list[float]) -> None:
    with pytest.raises(InputError):
        measure(times)


@pytest.mark.parametrize("content", ["", "not json\n", '{"loss": 1}\n', "[1]\n", None])
def test_a_damaged_steps_file_is_refused_by_name(content: str | None, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "steps.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"steps\.jsonl"):
        read_steps(path)
