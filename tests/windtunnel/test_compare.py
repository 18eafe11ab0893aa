"""`windtunnel compare` and `windtunnel check` on run folders, whose measurement is a simulation with a profile of known
difference."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from program.timeline import Timeline, load, save
from tests.windtunnel.conftest import TINY
from tests.windtunnel.run_folders import profile_file, run_folder
from tests.windtunnel.test_schemas import obeys

Call = Callable[..., Any]


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    """A run folder that measured exactly what the profile says."""
    return run_folder(tmp_path / "honest", TINY, profile_file(tmp_path / "p.yaml"))


def slow_network(tmp_path: Path) -> Path:
    """The same run on a machine whose collectives have a tenth of the bandwidth."""
    real = profile_file(tmp_path / "slow.yaml", bus_bytes_per_s=1e8)
    return run_folder(tmp_path / "slow", TINY, tmp_path / "p.yaml", real, steps=LONG)


LONG = 30  # steps, so that the gate can tell


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """The honest run, of as many steps as the gate needs."""
    return run_folder(tmp_path / "long", TINY, profile_file(tmp_path / "p.yaml"), steps=LONG)


def test_a_run_as_forecast_has_no_error(honest: Path, wt: Call) -> None:
    called = wt("compare", honest, "--json")
    assert called.code == 0
    found = called.json
    obeys("compare", found)
    assert found["step_time"]["error"] == pytest.approx(0, abs=1e-9)
    assert max(abs(row["error_s"]) for row in found["classes"]) < 1e-12
    assert found["ranks"] == [0, 1]
    assert found["only_predicted"] == found["only_measured"] == 0


def test_the_class_that_was_mispriced_comes_first(honest: Path, tmp_path: Path, wt: Call) -> None:
    found = wt("compare", slow_network(tmp_path), "--json", "--top", 3).json
    assert found["step_time"]["error"] < 0
    assert found["classes"][0]["communication"]
    assert found["classes"][0]["error_s"] < 0
    assert all(row["stream"] == "tp" for row in found["instructions"])
    assert len(found["instructions"]) == 3
    forward = next(row for row in found["classes"] if row["name"] == "forward")
    assert forward["error"] == pytest.approx(0, abs=0.1)


def test_text_and_trace(honest: Path, tmp_path: Path, wt: Call) -> None:
    called = wt("compare", honest, "--trace", tmp_path / "trace.json")
    assert called.code == 0
    assert max(map(len, called.out.splitlines())) <= 100
    names = {
        e["args"]["name"]
        for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if e["name"] == "process_name"
    }
    assert names == {f"rank {rank} {what}" for rank in (0, 1) for what in ("predicted (test)", "measured (a machine)")}


def test_two_timelines_instead_of_a_folder(honest: Path, tmp_path: Path, wt: Call) -> None:
    assert wt("forecast", honest / "run.yaml", "--timeline", tmp_path / "predicted.json.gz").code == 0
    by_files = wt("compare", tmp_path / "predicted.json.gz", honest / "timeline" / "step-000007.json.gz", "--json").json
    by_folder = wt("compare", tmp_path / "predicted.json.gz", honest, "--json").json
    assert by_files["classes"] == by_folder["classes"]
    assert by_files["step_time"]["steps"] == 1
    assert by_folder["step_time"]["steps"] == 6
    assert wt("compare", tmp_path / "predicted.json.gz", honest, "--profile", "cpu").code == 2


def test_ranks_without_a_timeline_are_named(honest: Path, wt: Call) -> None:
    """Of step 0 rank 1 recorded nothing, as when it was killed; of step 6 every rank did."""
    file = honest / "timeline" / "step-000007.json.gz"
    whole = load(file)
    assert wt("compare", honest).err == ""
    save(_only(whole, whole.columns["rank"] == 0), file)
    for arguments in (("compare", honest), ("check", honest, honest), ("compare", file, honest)):
        called = wt(*arguments)
        assert "has no timeline of rank 1 for step 0: the run was killed or the disk was full" in called.err
    step_6 = _only(whole, whole.columns["rank"] >= 0)
    step_6.columns["step"][:] = 6
    save(step_6, file.with_name("step-000006.json.gz"))
    assert "of rank 1 for step 0:" in wt("compare", honest).err


def _only(timeline: Timeline, rows: Any) -> Timeline:
    return Timeline(timeline.header, {name: column[rows] for name, column in timeline.columns.items()}, timeline.words)


def test_an_edited_run_file_is_refused_with_both_hashes(honest: Path, wt: Call) -> None:
    edited = yaml.safe_load((honest / "run.yaml").read_text())
    edited["model"]["layers"] = 3
    (honest / "run.yaml").write_text(yaml.safe_dump(edited))
    called = wt("compare", honest)
    assert called.code == 2
    assert "not the same work" in called.err


@pytest.mark.parametrize("damage", ["steps.jsonl", "timeline/step-000007.json.gz", "run.yaml"])
def test_a_damaged_folder_names_the_file(damage: str, honest: Path, wt: Call) -> None:
    (honest / damage).write_bytes(b"\x00\x01")
    called = wt("compare", honest)
    assert called.code == 2
    assert Path(damage).name in called.err


def test_the_gate_passes_an_equal_run_and_names_the_class_that_moved(long: Path, tmp_path: Path, wt: Call) -> None:
    passed = wt("check", long, long, "--json")
    assert passed.code == 0
    obeys("check", passed.json)
    assert passed.json["slowdown"] == pytest.approx(0, abs=1e-9)
    assert passed.json["efficiency"]["one_device_from"] == "twin"
    failed = wt("check", long, slow_network(tmp_path), "--json")
    assert failed.code == 1
    obeys("check", failed.json)
    assert failed.json["moved"].startswith("tensor ")
    assert wt("check", long, tmp_path / "slow", "--tolerance", 10).code == 0


def test_scaling_from_one_device_is_judged_against_the_twin(long: Path, tmp_path: Path, wt: Call) -> None:
    alone = {**TINY, "plan": {**TINY["plan"], "tensor_parallel": 1, "sequence_parallel": False}}  # type: ignore[dict-item]
    one = run_folder(tmp_path / "one", alone, tmp_path / "p.yaml", steps=LONG)
    found = wt("check", one, long, "--json").json
    assert found["passed"]
    assert not found["same_program"]
    efficiency = found["efficiency"]
    assert efficiency["one_device_from"] == "baseline"
    assert efficiency["measured"] == pytest.approx(efficiency["twin"])
    assert efficiency["measured"] == pytest.approx(found["baseline_s"] / (2 * found["step_time_s"]))


def test_a_tolerance_that_is_no_share(long: Path, wt: Call) -> None:
    assert wt("check", long, long, "--tolerance", -1).code == 2


def test_a_short_run_cannot_be_told(honest: Path, wt: Call) -> None:
    called = wt("check", honest, honest)
    assert called.code == 2
    assert "cannot tell: the baseline has 8 steps" in called.err
    assert "at least 29 steps" in called.err
    assert "cannot tell" in wt("check", honest, honest, "--json").json["error"]["problems"][0]
