"""The demo: its run files, its profile, its last table, and the loop itself on two ranks with tiny runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan.run import load
from program.errors import InputError, WindtunnelError
from tests.windtunnel.run_folders import profile_file
from tests.windtunnel.test_schemas import obeys
from windtunnel import demo, output
from windtunnel.results import Demo, DemoRun, Residual

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., Any]


def result(**more: Any) -> Demo:
    worst = (Residual("tensor RS", 1e-3, 2e-3, -0.5), Residual("forward", 3e-3, 2e-3, 0.5))
    run = DemoRun("cpu-llama-3m TP2", "/tmp/demo/one", 25, 0.1, 0.11, (0.1, 0.12), -0.0909, worst)
    values = {"folder": "/tmp/demo", "profile": "p", "profile_hash_before": "a" * 64, "profile_hash_after": "a" * 64}
    return Demo(**(values | {"seconds": 200.0, "load_average": 0.1, "runs": (run, run)} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", demo.RUNS)
def test_the_packaged_examples_are_those_of_the_checkout(name: str) -> None:
    packaged = Path(demo.__file__).parent / "examples" / name
    assert packaged.read_bytes() == (ROOT / "examples" / name).read_bytes()
    assert demo.example(name) == ROOT / "examples" / name


def test_the_two_runs_share_nothing_but_the_machine() -> None:
    first, second = (load(demo.example(name)) for name in demo.RUNS)
    assert first.train.steps >= 30
    assert second.train.steps >= 10
    assert first.plan.tensor_parallel == second.plan.pipeline_parallel == 2
    assert second.plan.tensor_parallel == first.plan.pipeline_parallel == 1
    for key in ("hidden", "heads", "seq_length", "ffn"):
        assert getattr(first.model, key) != getattr(second.model, key)


def test_the_last_table_has_both_errors_and_fits_the_page() -> None:
    text = demo.text(result())
    assert text.count("-9.1 %") == 2
    assert "unchanged" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_cached_profile_is_copied_and_a_missing_one_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibration.profile_paths import cpu_profile_path

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    cpu_profile_path().parent.mkdir(parents=True)
    profile_file(cpu_profile_path())
    copied = demo.calibrated_profile(tmp_path, fresh=False)
    assert copied.read_bytes() == cpu_profile_path().read_bytes()


def test_a_calibration_that_fails_stops_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.sys, "executable", "/bin/false")
    with pytest.raises(WindtunnelError, match="exit code 1"):
        demo.calibrated_profile(tmp_path, fresh=True)


def test_demo_folders_are_numbered_and_never_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [demo._folder(None).name for _ in range(2)] == ["demo-0001", "demo-0002"]
    assert demo._folder("mine") == tmp_path / "mine"
    (tmp_path / "mine" / "x").write_text("")
    with pytest.raises(InputError, match="not an empty folder"):
        demo._folder("mine")


@pytest.mark.slow
def test_the_loop_with_an_unchanged_profile(tmp_path: Path, run_file: Call) -> None:
    train = {"steps": 4}
    one = run_file("one.yaml", train=train)
    pipeline = {"tensor_parallel": 1, "sequence_parallel": False, "pipeline_parallel": 2, "global_batch_size": 2}
    two = run_file("two.yaml", train=train, plan=pipeline)
    profile = profile_file(tmp_path / "p.yaml")
    before = profile.read_bytes()
    found = demo.demonstrate(tmp_path, profile, [one, two])
    assert profile.read_bytes() == before
    assert found.profile_hash_before == found.profile_hash_after
    obeys("demo", output.plain(found))
    for run in found.runs:
        assert run.measured_s > 0
        assert run.error == pytest.approx(run.predicted_s / run.measured_s - 1)
        assert (Path(run.run_dir) / "trace.json").exists()
