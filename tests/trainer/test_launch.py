"""A run on this machine: what it leaves behind, and what is said when a rank is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from compiler import compile_run
from plan.run import Run, load
from program import StepProgram, expand
from program.errors import InputError, UnsoundProgram
from program.timeline import load as load_timeline
from program.timeline import merge
from tests.listening import descendants
from tests.program.edit import drop_wait, find
from tests.trainer.ranks import LLAMA, make_run
from trainer.log import plain
from trainer.status import read
from windtunnel.job import launch, prepare

LAUNCH = """
import sys
from pathlib import Path
from program.errors import WindtunnelError
from plan.run import load
from windtunnel.job import launch
try:
    launch(load(sys.argv[1]), Path(sys.argv[2]))
except WindtunnelError as error:
    print(error); sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _start(run: Run, folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
    """The launcher in a process of its own; what it prints goes to FOLDER.said."""
    folder.mkdir()
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(plain(run.to_dict())))
    with folder.with_suffix(".said").open("w") as said:
        command = [sys.executable, "-c", LAUNCH, str(path), str(folder)]
        return subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | environment)


def _said(folder: Path) -> str:
    return folder.with_suffix(".said").read_text()


def _tiny(steps: int, **plan: Any) -> Run:
    return make_run(LLAMA, {"precision": "fp32", **plan}, train={"steps": steps})


@pytest.mark.slow
def test_a_run_leaves_its_resolved_file_a_line_a_step_and_timelines_of_every_rank(tmp_path: Path) -> None:
    run = _tiny(8, tensor_parallel=2, sequence_parallel=True)
    started = _start(run, tmp_path / "run")
    folder = tmp_path / "run"
    assert started.wait(100) == 0, _said(folder)
    assert load(folder / "run.yaml") == run
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(8))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {"grad_norm", "lr", "step_time_s", "tokens_per_s", "mfu", "peak_allocated_gib"} <= set(lines[0])
    files = sorted((folder / "timeline").iterdir())
    assert [f.name for f in files] == [f"step-{s:06d}.rank-{r:04d}.json.gz" for s in (5, 6, 7) for r in (0, 1)]
    timeline = merge([load_timeline(f) for f in files])
    program = compile_run(run)
    assert timeline.header.program_hash == program.hash
    ids = {placed.id for placed in expand(program.classes[0])}
    for row in timeline.rows():
        assert row.id in ids
        assert row.issued_s <= row.ready_s <= row.start_s <= row.end_s
    assert len(timeline) == len(ids) * 2 * 3


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_is_named_with_its_instruction(tmp_path: Path) -> None:
    run = _tiny(100_000, pipeline_parallel=2)
    started = _start(run, tmp_path / "run")
    status = tmp_path / "run" / "status" / "rank-1"
    _until(lambda: status.exists() and read(status)[0] >= 2, started, tmp_path / "run")
    os.kill(_pid_of_rank(1, tmp_path / "run"), signal.SIGKILL)
    killed = time.monotonic()
    assert started.wait(30) == 1
    assert time.monotonic() - killed < 30
    said = _said(tmp_path / "run")
    assert "rank 1 was killed by signal 9 (SIGKILL)" in said
    assert re.search(r"rank 1: step \d+, (\w+ stream )?(F|B|W|step) [A-Z]+\d[\d.]* \w", said), said


@pytest.mark.slow
def test_a_stopped_rank_is_found_by_its_silence_and_named_with_its_instruction(tmp_path: Path) -> None:
    """Its peer waits in a collective and beats on; the rank to blame is the silent one."""
    started = _start(_tiny(100_000, pipeline_parallel=2), tmp_path / "run", WINDTUNNEL_SILENT_S="5")
    status = tmp_path / "run" / "status" / "rank-1"
    _until(lambda: status.exists() and read(status)[0] >= 2, started, tmp_path / "run")
    os.kill(_pid_of_rank(1, tmp_path / "run"), signal.SIGSTOP)
    stopped = time.monotonic()
    code = started.wait(80)
    said = _said(tmp_path / "run")
    assert code == 1, said
    assert time.monotonic() - stopped > 5, said
    assert re.search(r"rank 1 gave no sign of life for \d+ s \(its process was stopped", said), said
    assert re.search(r"rank 1: step \d+, (\w+ stream )?(F|B|W|step) [A-Z]+\d[\d.]* \w", said), said


@pytest.mark.slow
def test_ctrl_c_ends_every_rank_with_one_line(tmp_path: Path) -> None:
    """Also while the ranks still import."""
    started = _start(_tiny(100_000, pipeline_parallel=2), tmp_path / "run")
    _until(lambda: (tmp_path / "run" / "run.yaml").exists(), started, tmp_path / "run")
    started.send_signal(signal.SIGINT)
    assert started.wait(30) == 130
    assert re.fullmatch(r"(stopped by SIGINT; \S+ holds what was trained|)\n?", _said(tmp_path / "run"))
    with pytest.raises(AssertionError, match="no process of rank"):
        _pid_of_rank(0, tmp_path / "run")


@pytest.mark.slow
def test_a_launcher_that_is_killed_ends_its_ranks_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    started = _start(_tiny(100_000, pipeline_parallel=2), tmp_path / "run", TMPDIR=str(tmp_path / "tmp"))
    _until(lambda: _step(tmp_path / "run") >= 2, started, tmp_path / "run")
    below = descendants(started.pid)[1:]
    assert len(below) == 3
    started.kill()
    started.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_folder_that_is_removed_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    started = _start(_tiny(100_000, pipeline_parallel=2), tmp_path / "run")
    _until(lambda: _step(tmp_path / "run") >= 2, started, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert started.wait(60) == 1
    said = r"rank 0 cannot go on: \S+/run/\S+: was removed; the job was stopped. Nothing is kept: \S+ holds no run any"
    assert re.fullmatch(f"{said} more\\n", _said(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def _step(folder: Path) -> int:
    status = folder / "status" / "rank-1"
    return read(status)[0] if status.exists() else -1


def test_what_cannot_train_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    run = make_run(
        LLAMA | {"positions": "alibi"},
        {"implementation": "megatron", "attention": "flash"},
        data={"path": "nowhere.npy"},
    )
    with pytest.raises(InputError) as error:
        launch(run, tmp_path)
    assert len(error.value.problems) == 2
    with pytest.raises(InputError, match=r"nowhere\.npy"):
        prepare(make_run(LLAMA, {}, data={"path": "nowhere.npy"}), tmp_path)
    with pytest.raises(InputError, match="set model.vocab to at least"):
        prepare(make_run(LLAMA | {"vocab": 64}, {}), tmp_path)


def _until(happened: Any, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + 90
    while not happened():
        assert process.poll() is None, _said(folder)
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError("the run did not reach its third step")
        time.sleep(0.05)


def _pid_of_rank(rank: int, folder: Path) -> int:
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().decode()
            if (
                str(folder) in command
                and "windtunnel.rank" in command
                and f"\0RANK={rank}\0" in "\0" + (process / "environ").read_bytes().decode()
            ):
                return int(process.name)
        except (OSError, ValueError):
            continue
    raise AssertionError(f"no process of rank {rank}")


def test_nothing_starts_when_the_program_is_not_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(run: Run) -> StepProgram:
        program = compile_run(run)
        block, local = find(program, 0, lambda _, i: i.stream == "compute" and bool(i.waits))[0]
        return drop_wait(program, 0, block, local)

    monkeypatch.setattr("compiler.compile_checked.compile_run", wrong)
    with pytest.raises(UnsoundProgram, match="race proof failed"):
        launch(make_run(LLAMA, {"data_parallel": 2, "zero_stage": 1}), tmp_path)
    assert not (tmp_path / "run.yaml").exists()
