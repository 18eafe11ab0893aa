"""Ranks that the user's own torchrun started: who prepares the folder, who is told what, and that it is printed."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from compiler import compile_run
from plan.run import Run
from program.errors import InputError
from tests.trainer.ranks import LLAMA, make_run
from trainer import torchrun
from windtunnel import job, training
from windtunnel.job import prepare


@pytest.fixture
def run() -> Run:
    """A run of two ranks."""
    return make_run(LLAMA, {"precision": "fp32", "tensor_parallel": 2, "sequence_parallel": True})


def test_the_others_wait_for_what_rank_0_prepared(run: Run, tmp_path: Path) -> None:
    store = dist.HashStore()
    torchrun._prepare(2, tmp_path / "run", 2, partial(prepare, run, tmp_path / "run"), store)
    assert torchrun._prepared(tmp_path / "run", 1, store)
    assert (tmp_path / "run" / "run.yaml").exists()


def test_what_rank_0_refuses_it_alone_says_and_nobody_writes(run: Run, tmp_path: Path) -> None:
    """Too few ranks; a folder that is another job's; a plan that cannot train."""

    def taken() -> None:
        raise InputError("in use")

    untrainable = make_run(LLAMA, {"implementation": "megatron"})
    for plan, world, own, said in (
        (run, 4, None, "the plan needs 2 ranks and torchrun started 4"),
        (run, 2, taken, "in use"),
        (untrainable, 1, None, "implementation"),
    ):
        store = dist.HashStore()
        own = own or partial(prepare, plan, tmp_path / "run")
        with pytest.raises(InputError, match=said):
            torchrun._prepare(plan.plan.world, tmp_path / "run", world, own, store)
        assert not torchrun._prepared(tmp_path / "run", 1, store)
        assert not (tmp_path / "run").exists()


def test_a_node_that_does_not_see_the_folder_says_so(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when an earlier job has left a folder of that name on it."""
    monkeypatch.setattr(torchrun, "SHARED_S", 0.1)
    for folder in (tmp_path / "here", tmp_path / "there"):
        store = dist.HashStore()
        torchrun._prepare(2, folder, 2, partial(prepare, run, folder), store)
    with pytest.raises(InputError, match="rank 1 does not see what rank 0 wrote into .*here"):
        torchrun._prepared(tmp_path / "here", 1, store)


def test_a_failure_is_printed_and_what_all_say_is_printed_once(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    for rank, text in enumerate(("input: too large", "input: too large", "own: RuntimeError: x", "disk: f: No space")):
        torchrun._say(partial(compile_run, run), tmp_path, rank, text, store)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "error: too large"
    assert second == "error: rank 2 failed (RuntimeError: x); rank 2: before its first step"
    assert third == "error: rank 3 cannot go on: f: No space; the job was stopped. No step is kept"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("restarts", "reused"), [("0", False), ("1", True)])
def test_a_finished_run_is_kept_unless_the_same_job_starts_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, reused: bool
) -> None:
    """A second torchrun job with the folder of a finished run replaced that run."""

    def joined(needed: int, program: object, folder: Path, own: Callable[[], object], told: object) -> int:
        own()
        return 0

    (tmp_path / "steps.jsonl").write_text("{}")
    monkeypatch.setattr(torchrun, "join", joined)
    monkeypatch.setattr(job, "prepare", lambda run, folder: None)
    for name, value in (("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", restarts), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    with nullcontext() if reused else pytest.raises(InputError, match="is not empty"):
        training._join(run, str(tmp_path))
    assert (tmp_path / "steps.jsonl").read_text() == "{}"
