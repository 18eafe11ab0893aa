"""`windtunnel train` on two ranks, once, and what the folder it leaves is good for."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plan.errors import WindtunnelError
from plan.run import load
from tests.windtunnel.conftest import TINY
from tests.windtunnel.flights import profile_file
from tests.windtunnel.test_schemas import obeys
from windtunnel import output, training
from windtunnel.folders import RunFolder

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., Any]
STEPS = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of four steps, its profile named in its run file."""
    root = tmp_path_factory.mktemp("train")
    profile = profile_file(root / "p.yaml")
    run = load({**TINY, "train": {"steps": STEPS, "record_every": 1}}, [f"cluster.profile={profile}"])
    return training.launch(run, root / "run")


@pytest.mark.slow
def test_the_folder_holds_every_step_and_the_run_as_resolved(trained: Path) -> None:
    folder = RunFolder.open(trained)
    result = training.trained(folder)
    obeys("train", output.plain(result))
    assert result.steps == STEPS == len(folder.step_times_s())
    assert result.last_loss is not None
    assert result.first_loss is not None
    assert result.last_loss < result.first_loss
    assert sorted(set(folder.timeline().ints("step"))) == list(range(STEPS))


@pytest.mark.slow
def test_forecast_and_measurement_are_of_the_same_instructions(trained: Path, wt: Call) -> None:
    called = wt("compare", trained, "--json")
    assert called.code == 0
    found = called.json
    obeys("compare", found)
    assert found["only_predicted"] == found["only_measured"] == 0
    assert found["ranks"] == [0, 1]
    assert found["predicted_by"] == "test"
    assert all(row["measured_s"] > 0 for row in found["classes"])


@pytest.mark.slow
def test_the_gate_judges_a_real_run(trained: Path, wt: Call) -> None:
    assert wt("check", trained, trained).code == 0


@pytest.mark.slow
def test_torchrun_may_start_the_command_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**TINY, "train": {"steps": 2}}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "windtunnel", "train", str(path), "--output", str(tmp_path / "run")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "run")
    assert len(RunFolder.open(tmp_path / "run").step_times_s()) == 2


def test_a_folder_in_use_is_refused(run_file: Call, tmp_path: Path, wt: Call) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").write_text("")
    called = wt("train", run_file(), "--output", tmp_path / "used")
    assert called.code == 2
    assert "is not empty" in called.err
    assert "is a file" in wt("train", run_file(), "--output", tmp_path / "used" / "x").err


def test_what_cannot_train_is_refused_before_anything_starts(run_file: Call, tmp_path: Path, wt: Call) -> None:
    for options, said in (
        (("--cluster", "dgx-h100", "--nodes", 4), "32 ranks on dgx-h100"),
        (("--set", "plan.implementation=megatron"), "implementation: windtunnel"),
        (("--set", f"data.path={tmp_path / 'none.npy'}"), "none.npy"),
    ):
        called = wt("train", run_file(), *options, "--output", tmp_path / "run")
        assert called.code == 2
        assert said in called.err
        assert not (tmp_path / "run" / "run.yaml").exists()


def test_a_rank_that_died_is_exit_1_with_its_words(
    run_file: Call, tmp_path: Path, wt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Launcher:
        @staticmethod
        def launch(run: object, folder: Path) -> Path:
            raise WindtunnelError("rank 1 was killed by signal 9 (SIGKILL); the job was stopped")

    monkeypatch.setattr(training, "_trainer", Launcher)
    called = wt("train", run_file(), "--output", tmp_path / "run")
    assert called.code == 1
    assert "rank 1 was killed" in called.err
