"""`windtunnel forecast`: the record adds up, obeys its schema, and says no by its exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.windtunnel.run_folders import profile_file
from tests.windtunnel.test_schemas import obeys

Call = Callable[..., Any]


@pytest.fixture
def forecast(run_file: Call, wt: Call, tmp_path: Path) -> Call:
    """forecast(*options, **sections of the run file)"""

    def call(*options: object, **sections: Any) -> Any:
        return wt("forecast", run_file(**sections), "--profile", profile_file(tmp_path / "p.yaml"), *options)

    return call


def test_json_obeys_the_schema_and_adds_up(forecast: Call) -> None:
    called = forecast("--json")
    assert called.code == 0
    found = called.json
    obeys("forecast", found)
    assert sum(found["time"].values()) == pytest.approx(1)
    for stage in found["memory"]["per_stage"]:
        parts = [
            stage[f"{part}_gib"]
            for part in ("weights", "gradients", "optimizer", "activations", "buffers", "workspace", "framework")
        ]
        assert sum(parts) == pytest.approx(stage["peak_gib"], rel=1e-12)
    low, high = found["step_time_interval_s"]
    assert low < found["step_time_s"] < high
    assert found["tokens_per_s"] == pytest.approx(32 / found["step_time_s"])
    assert found["tokens_per_s_per_gpu"] == pytest.approx(found["tokens_per_s"] / 2)
    assert found["mfu"] == pytest.approx(found["model_tflops_per_gpu"] / found["peak_tflops_per_gpu"])


def test_a_plan_that_does_not_fit_is_exit_1(forecast: Call) -> None:
    called = forecast("--set", "cluster.gpu_memory_gib=0.0001")
    assert called.code == 1
    assert "DOES NOT FIT" in called.out
    assert not forecast("--set", "cluster.gpu_memory_gib=0.0001", "--json").json["memory"]["fits"]


def test_a_capacity_inside_the_memory_interval_is_borderline_and_exit_0(
    run_file: Call, wt: Call, tmp_path: Path
) -> None:
    """The profile says how far memory may be off; without a word of it the interval is a point."""
    error = {"source": "test", "below": 0.1, "above": 0.2, "communicator_bytes": 2**20, "host_above": 0.5}
    profile = profile_file(tmp_path / "p.yaml", memory_error=error)

    def called(capacity_gib: float, *more: str) -> Any:
        capacity = f"cluster.gpu_memory_gib={capacity_gib}"
        return wt("forecast", run_file(), "--profile", profile, "--set", capacity, *more)

    memory = called(1, "--json").json["memory"]
    low, high = memory["interval_gib"]
    held, context, mib = memory["peak_reserved_gib"], memory["context_gib"], 1 / 1024
    assert low == pytest.approx(0.9 * held + context)
    assert high == pytest.approx(1.2 * held + context + mib)  # one communicator, of tensor parallelism
    for capacity, code, borderline in (
        (low * 0.99, 1, False),
        (low * 1.01, 0, True),
        (high * 0.99, 0, True),
        (high, 0, False),
    ):
        found = called(capacity, "--json")
        assert (found.code, found.json["memory"]["borderline"]) == (code, borderline)
        assert found.json["memory"]["fits"] == (capacity >= held + context)
        assert any("memory is borderline: a real run may hold" in text for text in found.json["warnings"]) == borderline
    assert "BORDERLINE" in called(high * 0.99).out
    plain = wt("forecast", run_file(), "--profile", profile_file(tmp_path / "q.yaml"), "--json").json["memory"]
    assert plain["interval_gib"] == [plain["peak_reserved_gib"] + plain["context_gib"]] * 2


def test_runs_that_ran_out_in_reality_are_borderline_and_not_fit(wt: Call, tmp_path: Path) -> None:
    """DeepSpeed's start, communicators' buffers and host memory beyond 16 bytes a parameter (the list of faults)."""
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    common = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    (tmp_path / "start.json").write_text(json.dumps(common | {"zero_optimization": offload}))
    where = ("forecast", tmp_path / "start.json", "--nodes", 1, "--set", "plan.recompute=full", "--json")
    start = ("--model", "llama-3-8b", "--cluster", "dgx-a100-40gb", "--set", "cluster.gpus_per_node=2")
    found = wt(*where, *start, "--set", "plan.global_batch_size=16", "--set", "model.seq_length=1024")
    assert (found.code, found.json["memory"]["borderline"]) == (0, True)
    assert any("flattens weights" in text for text in found.json["warnings"])
    host = ("--model", "llama-2-13b", "--cluster", "dgx-a100-80gb", "--set")
    found = wt(*where, *host, "cluster.host.memory_gib=210")
    assert (found.code, found.json["memory"]["borderline"]) == (0, True)
    assert any("host memory is borderline" in text for text in found.json["warnings"])
    assert not wt(*where, *host, "cluster.host.memory_gib=400").json["memory"]["borderline"]
    assert wt(*where, *host, "cluster.host.memory_gib=190").code == 1
    layers = {"layers": 100, "hidden": 12288, "heads": 96, "vocab": 250880, "seq_length": 2048}
    plan = {"implementation": "deepspeed", "tensor_parallel": 4, "pipeline_parallel": 6, "zero_stage": 1}
    run = {
        "model": layers,
        "cluster": {"preset": "dgx-a100-80gb", "nodes": 48},
        "plan": plan | {"global_batch_size": 256},
    }
    (tmp_path / "large.yaml").write_text(json.dumps(run | {"plan": run["plan"] | {"recompute": "full"}}))
    found = wt("forecast", tmp_path / "large.yaml", "--json")
    assert (found.code, found.json["memory"]["borderline"]) == (0, True)
    assert any("up to 1.8 GB of NCCL buffers for each of 3" in text for text in found.json["warnings"])


def test_a_forecast_above_the_peak_is_refused(forecast: Call) -> None:
    called = forecast("--json", "--set", "cluster.peak_tflops={fp32: 1.0e-9}")
    assert called.code == 2
    assert "TFLOP/s a GPU against a peak of 1e-09 at fp32" in called.json["error"]["problems"][0]


def test_kernels_that_the_profile_does_not_price_are_named(forecast: Call) -> None:
    said = "plan.kernels triton: profile"
    assert any(said in text for text in forecast("--json", "--set", "plan.kernels=triton").json["warnings"])
    assert not any("plan.kernels" in text for text in forecast("--json").json["warnings"])


def test_a_graph_that_the_profile_does_not_price_is_named(run_file: Call, wt: Call) -> None:
    """Where launching one was not measured, it costs nothing, and the step says so."""
    on = ["--profile", "h200-published", "--set", "cluster={preset: dgx-h200, gpus: 2}", "--json"]
    said = "plan.cuda_graph: profile h200-published has no host time of kind GRAPH"
    graphed = wt("forecast", run_file(), *on, "--set", "plan.cuda_graph=true").json
    plain = wt("forecast", run_file(), *on).json
    assert any(said in text for text in graphed["warnings"])
    assert not any("cuda_graph" in text for text in plain["warnings"])
    assert graphed["program_hash"] != plain["program_hash"]  # another step is executed


def test_recompute_counts_in_hfu_and_not_in_mfu(forecast: Call) -> None:
    found = forecast("--json", plan={"recompute": "full"}).json
    assert found["hfu"] > found["mfu"]
    assert found["time"]["recompute"] > 0


def test_the_convention_changes_flops_and_is_printed_beside_mfu(forecast: Call) -> None:
    exact, megatron = (forecast("--json", "--flops", name).json for name in ("exact", "megatron"))
    assert megatron["mfu"] > exact["mfu"]
    assert megatron["step_time_s"] == exact["step_time_s"]
    line = next(line for line in forecast("--flops", "palm").out.splitlines() if line.startswith("MFU"))
    assert "palm: 6N" in line


def test_cost_follows_the_budget_and_its_price(forecast: Call) -> None:
    budget = {"tokens": 32e6, "price_per_gpu_hour": 2.0}
    found = forecast("--json", budget=budget).json
    assert found["cost"]["steps"] == 1_000_000
    assert found["cost"]["gpu_hours"] == pytest.approx(found["step_time_s"] * 1e6 * 2 / 3600)
    assert found["cost"]["usd"] == pytest.approx(2 * found["cost"]["gpu_hours"])


def test_the_resolved_run_forecasts_the_same(forecast: Call, wt: Call, tmp_path: Path) -> None:
    first = forecast("--json").json
    (tmp_path / "again.yaml").write_text(json.dumps(first["run"]))
    second = wt("forecast", tmp_path / "again.yaml", "--profile", tmp_path / "p.yaml", "--json").json
    assert first.pop("assumptions")
    assert second.pop("assumptions") == []  # a resolved run leaves nothing open
    assert second == first


def test_text_fits_the_page_and_is_the_same_twice(forecast: Call) -> None:
    text = forecast().out
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert forecast().out == text


def test_timeline_and_trace_are_written(forecast: Call, tmp_path: Path) -> None:
    from program.timeline import load

    called = forecast("--timeline", tmp_path / "out" / "t.json.gz", "--trace", tmp_path / "out" / "trace.json")
    assert called.code == 0
    assert load(tmp_path / "out" / "t.json.gz").header.source == "predicted"
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]


def test_a_timeline_that_cannot_be_written_is_exit_2(forecast: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert forecast("--timeline", tmp_path / "file" / "t.json.gz").code == 2


def test_neither_torch_nor_the_shell_grammar_is_imported(run_file: Call, tmp_path: Path) -> None:
    from tests.windtunnel.test_cli import python

    code = (
        "import sys; from windtunnel.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as e: code = e.code\n"
        "print(code, [m for m in ('torch', 'triton', 'scipy', 'tree_sitter') if m in sys.modules], file=sys.stderr)"
    )
    done = python(code, "forecast", run_file(), "--profile", profile_file(tmp_path / "p.yaml"))
    assert done.stderr == "0 []\n"


def test_the_share_offloaded_is_said_where_it_is_not_the_one_asked_for(forecast: Call) -> None:
    """Whole buckets go to the host: here most is in one, unless they are made smaller."""

    def share(note: str) -> float:
        assert note.startswith("offload.fraction 0.1 is rounded up to whole buckets: ")
        return float(note.partition("buckets: ")[2].partition("%")[0]) / 100

    degrees = {"tensor_parallel": 1, "sequence_parallel": False, "data_parallel": 2}
    plan = degrees | {"zero_stage": 1, "offload": {"optimizer": "cpu", "fraction": 0.1}}
    (note,) = forecast("--json", plan=plan).json["notes"]
    (nearer,) = forecast("--json", plan=plan | {"communication": {"bucket_mb": 0.02}}).json["notes"]
    assert 0.1 < share(nearer) < 0.5 < share(note)
    assert forecast("--json", plan=plan | {"offload": {"optimizer": "cpu"}}).json["notes"] == []


def test_what_the_file_leaves_open_stands_first_with_what_changes_it(forecast: Call) -> None:
    found = forecast("--json", plan={"attention": "flash"}).json["assumptions"]
    assert {
        "subject": "recompute",
        "value": "none",
        "flag": "--set plan.recompute=full",
        "moves": "memory and step time",
    } in found
    assert not any(each["subject"] in ("attention", "precision") for each in found)  # the file says both
    lines = forecast().out.splitlines()
    assert lines.index(next(line for line in lines if line.startswith("assumed"))) < lines.index(
        next(line for line in lines if line.startswith("step time"))
    )
    assert not any(
        each["subject"] == "recompute"
        for each in forecast("--json", "--set", "plan.recompute=full").json["assumptions"]
    )


def test_assumptions_of_an_importer_come_through(wt: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importers import ImportResult
    from plan.ledger import Assumption

    run = {"model": "gpt2-124m", "cluster": {"preset": "dgx-h100"}, "plan": {"global_batch_size": 8}}
    told = Assumption("vocabulary", "50257", "--vocab-size N", "parameters, memory and step time")
    monkeypatch.setattr(
        "importers.import_file", lambda *_, **__: ImportResult(run, format="megatron", assumptions=(told,))
    )
    (tmp_path / "train.sh").write_text("")
    found = wt("forecast", tmp_path / "train.sh", "--json").json["assumptions"]
    assert found == [{"subject": "vocabulary", "value": "50257", "flag": "--vocab-size N", "moves": told.moves}]
    imported = wt("import", tmp_path / "train.sh")
    line = "assumed: vocabulary 50257; --vocab-size N changes it (parameters, memory and step time)"
    assert f"# {line}\n" in imported.out
    assert line in imported.err
    assert wt("import", tmp_path / "train.sh", "--json").json["assumptions"] == found
