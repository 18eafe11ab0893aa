"""The scoreboard: rows become the runs they mean or say why not, and forecasts stay near what was measured."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from calibration.frameworks import FRAMEWORKS
from calibration.profile import load_profile
from compiler import compile_run
from plan.parallel import FRAMEWORK_KERNELS, Kernels
from plan.run import Run, load
from program.errors import InputError
from simulator.simulation import simulate
from tests.soak import Counts, soaking
from validation import published
from validation.conventions import CONVENTIONS, chosen, convention
from validation.feasibility import feasibility
from validation.forecaster import Forecaster
from validation.published import Published
from validation.rows import convert, run_dict, units_by_cost
from validation.score import errors, rank_correlation, scoreboard, training_runs
from validation.table import markdown, text

Call = Callable[..., Any]
ROWS = published.read()
SMALL = ("mlm-sc21-t1-1.7B", "korthikanti-t5-22B-full", "vtrain-multi-3.6b-g64-tp2-dp32-pp1-mb8")


def row(name: str, **changes: str) -> Published:
    """A published row with cells changed; an empty text takes the cell away."""
    (found,) = published.named(ROWS, [name])
    cells = {**found.cells, **changes}
    return Published({key: value for key, value in cells.items() if value})


def test_every_row_is_a_run_or_says_why_not() -> None:
    cases = [convert(r) for r in ROWS]
    assert all((case.run is None) != (case.reason == "") for case in cases)
    assert all(case.step_time_s or case.memory_bytes for case in cases if case.run is not None)
    assert {case.source for case in cases} == {known.name for known in CONVENTIONS}
    assert sum(case.run is not None for case in cases) > 250


def test_a_row_becomes_the_run_it_describes() -> None:
    run = load(run_dict(row("vtrain-multi-18.4b-g256-tp4-dp32-pp2-mb8")))
    model, plan, cluster = run.model, run.plan, run.cluster
    assert (model.layers, model.hidden, model.heads, model.ffn, model.seq_length) == (40, 6144, 48, 24576, 2048)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (4, 2, 32)
    assert (plan.micro_batch_size, plan.global_batch_size, plan.microbatches) == (8, 1024, 4)
    assert (plan.implementation, plan.attention, plan.recompute, plan.zero_stage) == ("megatron", "unfused", "full", 0)
    assert (cluster.gpus, cluster.gpus_per_node, cluster.nics.count, cluster.nics.bandwidth_gb_s) == (256, 8, 4, 25)
    assert model.parameters() == pytest.approx(18.4e9, rel=0.01)


def test_what_a_source_leaves_out_is_presumed_and_said() -> None:
    case = convert(row("vtrain-multi-3.6b-g64-tp1-dp64-pp1-mb8"))
    assert case.run is not None
    assert case.run.model.vocab == 50257
    assert case.run.plan.precision == "fp16"
    assert len(case.presumed) == 3
    assert any(note.startswith("vocab 50257:") for note in case.presumed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero_stage_or_sharding": "FSDP2 (ZeRO-3)"}, "not yet forecast: zero_stage 3"),
        ({"zero_stage_or_sharding": "HSDP (shard inside a node)"}, "sharding 'HSDP (shard inside a node)'"),
        ({"precision": "fp8"}, "not yet forecast: precision fp8"),
        ({"precision": "int4"}, "precision 'int4' cannot be expressed"),
        ({"cp": "2", "dp": "16"}, "not yet forecast: context_parallel 2"),
        ({"schedule": "ZB-1p", "pp": "2", "dp": "16", "recompute": "none"}, "not yet forecast: schedule zb-h1 with"),
        ({"recompute": "every 2nd layer"}, "recompute 'every 2nd layer' cannot be expressed"),
        ({"hidden": "", "micro_batch": ""}, "not published: hidden, micro_batch"),
        ({"step_time_s": "", "step_time_s_derived": ""}, "neither step time nor memory published"),
        ({"set": "dev-feasibility"}, "the run failed: only its outcome is known"),
        ({"gpu": "TPUv4"}, "no node type for the GPU 'TPUv4'"),
        ({"tp": "5"}, "no legal plan: world size"),
        ({"global_batch": "511"}, "no legal plan: batch: 511"),
        ({"layers": "many"}, "layers 'many' is not a number"),
        ({"file": "elsewhere"}, "no convention describes its source"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why(changes: dict[str, str], reason: str) -> None:
    case = convert(row("vtrain-multi-3.6b-g64-tp2-dp32-pp1-mb8", **changes))
    assert case.run is None
    assert case.reason.startswith(reason)


def test_memory_above_the_card_was_computed_not_measured() -> None:
    case = convert(row("korthikanti-f1-mem-22B-none"))
    assert "computed by the source" in case.reason


def test_tied_embeddings_follow_from_the_printed_parameters() -> None:
    small, large = (
        convert(row(f"nanotron-{size}"))
        for size in ("1.34B-n8-dp8-tp1-pp1-z0-mb1-ga32", "8.86B-n8-dp4-tp2-pp1-z1-mb1-ga64")
    )
    assert small.run is not None
    assert large.run is not None
    assert (small.run.model.tied_embeddings, large.run.model.tied_embeddings) == (True, False)
    assert large.run.model.parameters() == pytest.approx(8.86e9, rel=0.01)


def test_stages_balanced_by_cost() -> None:
    # 16 layers of one unit of work, a head of four, an embedding that costs nothing
    assert units_by_cost([0, *[1.0] * 16, 4.0], 4) == [7, 5, 5, 1]
    assert units_by_cost([0, *[1.0] * 16, 4.0], 2) == [12, 6]
    assert units_by_cost([0, *[1.0] * 16, 4.0], 8)[-1] == 0


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(1, 8))
def test_every_unit_is_on_one_stage(costs: list[float], stages: int) -> None:
    counts = units_by_cost(costs, stages)
    assert (len(counts), sum(counts)) == (stages, len(costs))


def test_errors_in_numbers() -> None:
    found = errors(["a", "b", "c", "d"], [1.1, 0.8, 3.0, 4.4], [1.0, 1.0, 3.0, 4.0])
    assert found is not None
    assert found.mean_absolute == pytest.approx(0.1)
    assert found.median_absolute == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.0)
    assert (found.worst_row, found.rows) == ("b", 4)
    assert found.worst == pytest.approx(-0.2)
    assert errors([], [], []) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    ours = rank_correlation(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert ours is None
    else:
        assert ours == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize(
    "name", ["nanotron-1.34B-n8-dp4-tp2-pp1-z1-mb1-ga64", "nanotron-1.34B-n8-dp4-tp1-pp2-z1-mb1-ga64"]
)
def test_a_long_step_is_the_step_whose_micro_batches_are_all_simulated(name: str) -> None:
    run = convert(row(name)).run
    assert run is not None
    found = Forecaster().simulate(run)
    whole = simulate(compile_run(run), run.cluster, load_profile("h100"), skip=False)
    assert found.step_time_s == whole.step_time_s
    assert found.memory_bytes["allocated"] == max(stage.peak_allocated_bytes for stage in whole.memory)


def test_three_rows_are_forecast_near_their_measurements(wt: Call) -> None:
    called = wt("validate", *(part for name in SMALL for part in ("--row", name)), "--json")
    assert called.code == 0
    board = called.json
    assert [r["id"] for r in board["rows"]] == list(SMALL)
    assert all(abs(r["step_time_error"]) < 0.12 for r in board["rows"])
    assert all(profile["calibrated_on"] == [] for profile in board["profiles"])
    assert {source["source"]: source["scored"] for source in board["sources"]} == {
        "sc21": 1,
        "korthikanti": 1,
        "vtrain": 1,
    }


def test_the_board_as_text_accounts_for_every_row() -> None:
    chosen = (*published.named(ROWS, SMALL[:1]), row("mlm-2020-a100-1B"), row("vtrain-multi-3.6b-g64-tp8-dp8-pp1-mb64"))
    board = scoreboard(chosen)
    page = text(board)
    assert "not published: micro_batch, recompute" in page
    assert "(anomalous)" in page
    vtrain = next(source for source in board.sources if source.source == "vtrain")
    assert vtrain.step_time is not None
    assert vtrain.step_time_ordinary is None  # nothing ordinary is left of one anomalous row
    assert sum(source.scored + sum(why.rows for why in source.unscored) for source in board.sources) == len(chosen)


def test_rows_a_profile_was_fitted_on_are_not_scored() -> None:
    profile = load_profile("a100-80gb")
    source = next(iter(profile.file.sources))
    fitted = profile.file.sources[source].model_copy(update={"rows": [SMALL[0]]})
    profile = replace(
        profile, file=profile.file.model_copy(update={"sources": {**profile.file.sources, source: fitted}})
    )
    board = scoreboard(published.named(ROWS, SMALL[:2]), Forecaster(profile))
    assert [r.id for r in board.rows] == [SMALL[1]]
    assert board.profiles[0].calibrated_on == (SMALL[0],)
    assert board.sources[0].unscored[0].reason == "calibration data of the profile"


def test_calibration_rows_are_named_singly_or_as_a_range() -> None:
    ids = ["a", "b", "c", "d"]
    assert training_runs(["gemm-0001..gemm-0009", "d"], ids) == ("d",)
    assert training_runs(["b..c", "c"], ids) == ("b", "c")
    assert training_runs([], ids) == ()


def test_runs_that_worked_fit_and_failed_ones_are_told_apart() -> None:
    names = [r.id for r in ROWS if r.file == "nanotron_playbook" and r.text("n_gpus") == "8" and "8.86B" in r.id]
    (found,) = feasibility(published.named(ROWS, names), Forecaster())
    assert found.ran > 5
    assert found.ran_forecast_to_fit + found.ran_borderline == found.ran
    assert found.failed_borderline > 0
    assert found.failed > found.failed_forecast_not_to_fit > 0
    assert found.ran + found.failed + found.undecided == len(names)


@pytest.mark.soak
def test_few_verdicts_are_borderline_and_the_others_are_right(soak_count: Counts) -> None:
    """Every run of a source that names failed ones: at most a tenth borderline, nine tenths of the others right."""
    found = feasibility(ROWS, Forecaster())
    verdicts = sum(each.ran + each.failed for each in found)
    borderline = sum(each.ran_borderline + each.failed_borderline for each in found)
    right = sum(each.ran_forecast_to_fit + each.failed_forecast_not_to_fit for each in found)
    soak_count("verdicts of memory", verdicts)
    assert borderline <= 0.1 * verdicts
    assert right >= 0.9 * (verdicts - borderline)


def test_memory_alone_is_the_memory_of_a_simulation() -> None:
    run = convert(row("nanotron-1.34B-n8-dp4-tp1-pp2-z1-mb1-ga64")).run
    assert run is not None
    assert Forecaster().memory(run) == Forecaster().simulate(run).memory_bytes


def test_a_framework_holds_what_its_source_says_beyond_the_program() -> None:
    """nanotron: gradient buckets where replicas reduce, silu's output in flight, a copy of fp32 logits at the loss."""
    run = convert(row("nanotron-1.34B-n8-dp8-tp1-pp1-z0-mb1-ga32")).run
    assert run is not None
    plain, theirs = (Forecaster().memory(each) for each in (_by(run, "compiled"), run))
    parameters, tokens = run.model.parameters(), 4096
    expected = 2 * parameters + 16 * tokens * 8192 * 2 + tokens * 131072 * 4
    assert theirs["allocated"] - plain["allocated"] == pytest.approx(expected, rel=0.01)
    alone = replace(run, plan=replace(run.plan, data_parallel=1, global_batch_size=32))
    assert Forecaster().memory(alone)["allocated"] < theirs["allocated"] - parameters


def test_rows_on_a_network_of_their_own_are_simulated_on_it() -> None:
    """The source's own scan over nodes: between 4 nodes 160 GB/s a node (nccl-0698); on one node nothing changes."""
    several = next(r for r in ROWS if convert(r).source == "nanotron-nodes" and r.text("n_gpus") == "32")
    assert run_dict(several)["cluster"]["nics"] == {"count": 1, "bandwidth_gb_s": 160.14}
    assert "nics" not in run_dict(row("nanotron-1.34B-n8-dp8-tp1-pp1-z0-mb1-ga32"))["cluster"]


def test_a_network_printed_for_a_node_is_that_of_its_nics_together() -> None:
    """400 Gb/s a node are 50 GB/s; `8x ... 200 Gb/s per node` is each of eight, and the preset's."""
    nics = load(run_dict(row("fms-eager-34b-a100"))).cluster.nics
    assert nics.count * nics.bandwidth_gb_s == pytest.approx(50)
    assert "nics" not in run_dict(row("korthikanti-t5-175B-full"))["cluster"]
    assert "nics" not in run_dict(row("fms-eager-34b-a100", inter_link=""))["cluster"]


def test_what_a_row_notes_of_its_reduction_is_its_plan() -> None:
    noted = {r.text("notes").count("PURE"): run_dict(r)["plan"] for r in ROWS if convert(r).source == "llm-foundry"}
    assert noted[1]["gradient_dtype"] == "bf16"
    assert "gradient_dtype" not in noted[0]


def test_kernels_of_a_framework_are_a_run_files_to_ask_for() -> None:
    assert set(get_args(Kernels)) == {"eager", "compiled", "triton", *FRAMEWORKS}
    assert set(FRAMEWORK_KERNELS) == set(FRAMEWORKS)
    assert {known.plan["kernels"] for known in CONVENTIONS if "kernels" in known.plan} == set(FRAMEWORKS)


def _by(run: Run, kernels: Kernels) -> Run:
    """The run with other kernels."""
    return replace(run, plan=replace(run.plan, kernels=kernels))


def test_kernels_of_the_source_are_slower_than_fused_ones() -> None:
    run = convert(row("nanotron-1.34B-n8-dp4-tp1-pp2-z1-mb1-ga64")).run
    assert run is not None
    forecaster = Forecaster()
    assert forecaster.simulate(run).step_time_s > 1.05 * forecaster.simulate(_by(run, "compiled")).step_time_s


def test_the_readme_table_is_printed_by_a_command() -> None:
    printed = markdown(scoreboard(published.named(ROWS, SMALL[:2]), Forecaster()))
    head, rule, *lines = printed.splitlines()
    assert head.count("|") == rule.count("|") == lines[0].count("|")
    assert len(lines) == len({convert(row(name)).source for name in SMALL[:2]})
    assert "%" in lines[0]


def test_errors_follow_the_profile() -> None:
    run = convert(row(SMALL[1])).run
    assert run is not None
    once, thrice = (Forecaster(load_profile("a100-80gb").scaled(factor)).simulate(run) for factor in (1.0, 3.0))
    assert thrice.step_time_s == pytest.approx(3 * once.step_time_s, rel=1e-6)
    assert thrice.memory_bytes == once.memory_bytes


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--source", "vtrian", "vtrain"),
        ("--row", "mlm-sc21-t1-1.7C", "mlm-sc21-t1-1.7B"),
        ("--profile", "a100-80g", "a100-80gb"),
    ],
)
def test_unknown_names_end_in_exit_2_with_the_nearest(option: str, value: str, said: str, wt: Call) -> None:
    called = wt("validate", option, value, *(() if option != "--profile" else ("--row", SMALL[0])))
    assert called.code == 2
    assert said in called.err


def test_a_row_named_twice_counts_once() -> None:
    """By its source and by its id, or by its id twice."""
    rows = published.read()
    (source,) = {known.name for row in rows if row.id == SMALL[0] and (known := convention(row))}
    assert len(chosen(rows, [source], [])) == len(chosen(rows, [source], [SMALL[0], SMALL[0]]))
    assert len(chosen(rows, [], [SMALL[0], SMALL[0]])) == 1


def test_a_row_like_no_other_is_answered_in_a_line(wt: Call) -> None:
    """Not with the hundreds of rows there are."""
    called = wt("validate", "--row", "xx")
    assert called.code == 2
    assert "--all-rows" in called.err
    assert len(called.err) < 200


def test_a_file_that_is_no_table_of_runs(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="lacks the columns"):
        published.read(tmp_path / "other.csv")
    for name in ("bytes.csv", "absent.csv"):
        with pytest.raises(InputError, match="cannot be read"):
            published.read(tmp_path / name)


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("source", "mean", "worst", "every"),
    [
        ("sc21", 0.08, 0.10, 1),
        ("korthikanti", 0.05, 0.08, 1),
        ("vtrain", 0.07, 0.25, 2),
        ("fms-fsdp", 0.06, 0.10, 1),
        ("llm-foundry", 0.08, 0.35, 6),
        ("nanotron", 0.15, 0.40, 3),
    ],
)
def test_sources_stay_within_what_has_been_reached(
    source: str, mean: float, worst: float, every: int, soak_count: Counts
) -> None:
    """Every n-th row of a long source; all of them under `make soak`."""
    rows = [r for r in ROWS if (known := convention(r)) is not None and known.name == source and convert(r).run]
    board = scoreboard(rows if soaking() else rows[::every])
    soak_count("published rows", len(rows))
    (score,) = board.sources
    ordinary = score.step_time_ordinary or score.step_time
    assert ordinary is not None
    assert ordinary.mean_absolute < mean
    assert abs(ordinary.worst) < worst
