"""`windtunnel train` on two ranks, once, and what the folder it leaves is good for."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from program.errors import InputError, WindtunnelError
from tests.listening import Listened, named, outside_address, watch
from tests.windtunnel.conftest import TINY
from tests.windtunnel.run_folders import profile_file
from tests.windtunnel.test_schemas import obeys
from trainer.data import builtin_file
from windtunnel import output, training
from windtunnel.folders import RunFolder, held

ROOT = Path(__file__).resolve().parents[2]
WINDTUNNEL = [sys.executable, "-m", "windtunnel"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.endswith("_SOCKET_IFNAME")} | {"OMP_NUM_THREADS": "1"}
Call = Callable[..., Any]
STEPS = 4


@dataclass(frozen=True)
class Command:
    """A training command that was watched: its folder, what listened, and the temporary folder that it had."""

    folder: Path
    listened: Listened
    temporary: Path


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Four steps of many micro-batches, so that each is seen, on a machine whose name is an address that others reach
    (where the test may rename it); the profile named in the run file."""
    root = tmp_path_factory.mktemp("train")
    profile = str(profile_file(root / "p.yaml"))
    many = {"plan": {**TINY["plan"], "global_batch_size": 32}, "train": {"steps": STEPS, "record_every": 1}}  # type: ignore[dict-item]
    (root / "run.yaml").write_text(yaml.safe_dump({**TINY, **many, "cluster": {"preset": "cpu", "profile": profile}}))
    (root / "tmp").mkdir()
    started = subprocess.Popen(
        named(outside_address(), [*WINDTUNNEL, "train", str(root / "run.yaml"), "--output", str(root / "run")]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT | {"TMPDIR": str(root / "tmp")},
    )
    return Command(root / "run", watch(started, root / "run"), root / "tmp")


@pytest.fixture(scope="module")
def trained(command: Command) -> Path:
    """A run folder of four steps."""
    assert command.listened.code == 0, command.listened.said
    return command.folder


@pytest.mark.slow
def test_nothing_listens_to_another_machine(command: Command, trained: Path) -> None:
    """Neither the launcher nor a rank, before, during and after step 0."""
    for when, sockets in command.listened.when.items():
        assert not [socket for socket in sockets if socket.outside], when
    during = {socket.who for socket in command.listened.when["during"] if socket.address.startswith("127.")}
    assert during == {"rank 0", "rank 1"}  # the test does see sockets, and gloo's are there
    assert not any(socket.who == "launcher" for socket in command.listened.sockets())
    if not outside_address():
        pytest.skip("held where the machine's name is its own; it has no address that others reach, to be named by")


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder_and_nothing_private_in_the_run_s(command: Command) -> None:
    assert not list(command.temporary.iterdir())
    left = {path.name for path in command.folder.iterdir()}
    assert left == {"log.txt", "run.yaml", "status", "steps.jsonl", "timeline"}


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
def test_the_gate_cannot_tell_from_four_steps_of_a_real_run(trained: Path, wt: Call) -> None:
    called = wt("check", trained, trained)
    assert called.code == 2
    assert "cannot tell: the baseline has 4 steps" in called.err
    assert "train both for at least 29 steps" in called.err


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


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.slow
def test_under_torchrun_a_disk_that_is_full_is_printed_with_what_was_kept(tmp_path: Path) -> None:
    """No file may grow beyond 8 KiB, some thirty steps."""
    builtin_file()
    path, folder = tmp_path / "run.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump({**TINY, "train": {"steps": 10_000}}))
    command = [sys.executable, "-c", LIMITED, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "windtunnel", "train", str(path), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False, env=ENVIRONMENT)
    assert done.returncode == 1
    steps = len(RunFolder.open(folder).step_times_s())  # every line of the file is whole
    assert 0 < steps < 200
    said = f"error: rank 0 cannot go on: {folder}/steps.jsonl: File too large; the job was stopped. Kept in {folder}: "
    assert f"{said}log.txt, {steps} steps in steps.jsonl, timelines of 0 steps\n" in done.stderr


def test_a_folder_that_holds_something_is_refused(run_file: Call, tmp_path: Path, wt: Call) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").write_text("")
    called = wt("train", run_file(), "--output", tmp_path / "used")
    assert called.code == 2
    assert "is not empty" in called.err
    assert {path.name for path in (tmp_path / "used").iterdir()} == {"x"}
    assert "is a file" in wt("train", run_file(), "--output", tmp_path / "used" / "x").err


def test_a_folder_holds_one_job(run_file: Call, tmp_path: Path, wt: Call) -> None:
    """The second is refused before it writes a byte, and told who has the folder; a killed job's folder is free, unless
    a rank of it, which holds the lock too, is still there."""
    folder, trained = tmp_path / "run", tmp_path / "trained"
    trained.mkdir()
    with held(folder) as lock:
        rank = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))
        before = {path.name: path.stat() for path in (folder, *folder.iterdir())}
        called = wt("train", run_file(), "--output", folder)
        assert (called.code, f"is in use by process {os.getpid()} on" in called.err) == (2, True)
        assert {path.name: path.stat() for path in (folder, *folder.iterdir())} == before
        (trained / "lock").hardlink_to(folder / "lock")  # as a launcher that was killed leaves it
        (trained / "steps.jsonl").touch()
    assert not folder.exists() or not any(folder.iterdir())
    with pytest.raises(InputError, match="is in use"), held(trained):
        pass
    rank.kill()
    rank.wait()
    with held(trained):
        pass
    with pytest.raises(InputError, match="is not empty"), held(trained):  # that job has ended as it should
        pass


def test_what_cannot_train_is_refused_before_anything_starts(run_file: Call, tmp_path: Path, wt: Call) -> None:
    for options, said in (
        (("--cluster", "dgx-h100", "--nodes", 4), "32 ranks on dgx-h100"),
        (("--set", "plan.implementation=megatron"), "implementation: windtunnel"),
        (("--set", f"data.path={tmp_path / 'none.npy'}"), "none.npy"),
        (("--profile", "nvtx"), "--profile nvtx marks CUDA's work, and the run's cluster is cpu"),
        (("--profile", "nsys"), "--profile nsys: give nvtx"),
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
        def launch(run: object, folder: Path, keeps: object) -> Path:
            raise WindtunnelError("rank 1 was killed by signal 9 (SIGKILL); the job was stopped")

    monkeypatch.setattr(training, "_trainer", Launcher)
    called = wt("train", run_file(), "--output", tmp_path / "run")
    assert called.code == 1
    assert "rank 1 was killed" in called.err
