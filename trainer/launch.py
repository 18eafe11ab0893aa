"""Starts a training run on this machine through torchrun's own library, watches it, and says where a rank was when it
died.

    launch(run, folder)        # blocks; returns when every rank has finished

Ranks keep their place in 64-byte status files (`trainer.status`), so a rank that is killed still leaves its step and
instruction behind. torchrun stops the other ranks when one fails; the message names the rank that failed first, and
where every rank was. A rank whose heartbeat stops is ended and named (`trainer.heartbeat`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from plan.compile import compile_run, stage_of
from plan.errors import InputError, Stopped, WindtunnelError
from plan.program import StepProgram, expand, label
from plan.run import Run
from plan.sound import compile_proved
from plan.trainable import check_trainable
from trainer.data import open_data
from trainer.heartbeat import Silence, Watch, silent_s
from trainer.log import plain
from trainer.nonfinite import NotFinite
from trainer.run import main
from trainer.status import read

STOP_S = 5


class RankFailed(WindtunnelError):
    """A rank failed and the job was stopped."""


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(run: Run, folder: Path) -> Path:
    """Train `run` with one process a rank on this machine; fills and returns `folder`.

    Raises InputError before anything is started (data missing, plan not trainable), or RankFailed naming rank and
    instruction.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    watch = Watch(folder / "status", run.plan.world, silent_s())
    prepare(run, folder)
    _quiet("torch.distributed.elastic")  # what failed is said once, below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=run.plan.world,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        **_since_torch_2_13(LaunchConfig),
    )
    environment = {"OMP_NUM_THREADS": str(run.cluster.threads_per_rank)} if run.cluster.device == "cpu" else {}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with watch, _interrupts_blocked():
            elastic_launch(config, sys.executable)("-m", "trainer.rank", str(folder))
    except ChildFailedError as error:
        exits = {rank: failure.exitcode for rank, failure in error.failures.items()}
        raise _explained(run, folder, exits, watch.found) from None
    except SignalException as error:
        raise Stopped(f"stopped by {error.sigval.name}; {folder} holds what was trained", int(error.sigval)) from None
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return folder


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C is blocked in this thread, and so in the ranks it starts until they are ready for it (`trainer.rank`). The
    process still gets it, through the watch's thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet(package: str) -> None:
    """Silence every logger of a package; torch gives each of them a level of its own."""
    for name in (package, *logging.root.manager.loggerDict):
        if name == package or name.startswith(f"{package}."):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _since_torch_2_13(config: type) -> dict[str, Any]:
    """How long ranks get to stop, where this torch lets a launcher say so."""
    return {"shutdown_timeout": STOP_S} if "shutdown_timeout" in config.__dataclass_fields__ else {}  # type: ignore[attr-defined]


def prepare(run: Run, folder: Path) -> None:
    """Check what can be checked before ranks start, the program's soundness included, and write the run's file where
    they read it."""
    check_trainable(run)
    compile_proved(run)
    data = open_data(run)
    data.batch(0, tuple(range(min(4, run.plan.global_batch_size))))
    status = folder / "status"
    status.mkdir(parents=True, exist_ok=True)
    for old in status.iterdir():
        old.unlink()
    (folder / "run.yaml").write_text(yaml.safe_dump(plain(run.to_dict()), sort_keys=False, allow_unicode=True))


def join(folder: Path) -> int:
    """This process is a rank: train and return its exit code."""
    return main(folder)


def _explained(run: Run, folder: Path, exits: dict[int, int], silence: Silence | None) -> WindtunnelError:
    said = {rank: _said(folder, rank) for rank in range(run.plan.world)}
    wrong = [text.removeprefix("input: ") for text in said.values() if text.startswith("input: ")]
    if wrong:
        return InputError(wrong)
    stopped = [text.removeprefix("stop: ") for text in said.values() if text.startswith("stop: ")]
    if stopped:  # every rank found the same
        return NotFinite(f"{stopped[0]}; {folder} holds what was trained")
    first = _first(exits, said) if silence is None else silence.rank
    how = _how(exits.get(first), said.get(first, "")) if silence is None else _silent(silence)
    places = [f"  {where(folder, rank, compile_run(run))}" for rank in range(run.plan.world)]
    return RankFailed(f"rank {first} {how}; the job was stopped. When it ended:\n" + "\n".join(places))


def _first(exits: dict[int, int], said: dict[int, str]) -> int:
    """The rank to blame: one that was killed without a word, else one that failed by itself, else any."""
    killed = [rank for rank, code in exits.items() if code < 0 and not said.get(rank) and -code != signal.SIGTERM]
    own = [rank for rank in exits if not said.get(rank, "").startswith("peer: ")]
    return (killed or own or list(exits))[0]


def _how(code: int | None, said: str) -> str:
    if said:
        return f"failed ({said.partition(': ')[2]})"
    if code is not None and code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _silent(silence: Silence) -> str:
    state = " (its process was stopped, as by SIGSTOP or a debugger)" if silence.stopped else ""
    return f"gave no sign of life for {silence.for_s:.0f} s{state} and was ended"


def _said(folder: Path, rank: int) -> str:
    path = folder / "status" / f"rank-{rank}.error"
    return path.read_text() if path.exists() else ""


def where(folder: Path, rank: int, program: StepProgram) -> str:
    """Where a rank was: `rank 1: step 12, B I2.3 attn.core; tp stream B AR2.4 mlp.in`."""
    try:
        step, ids = read(folder / "status" / f"rank-{rank}")
    except OSError:
        return f"rank {rank}: before its first step"
    if step < 0:
        return f"rank {rank}: before its first step"
    names = {
        placed.id: label(
            placed.instruction.phase,
            placed.instruction.kind,
            placed.micro,
            placed.instruction.unit,
            placed.instruction.piece,
        )
        for placed in expand(stage_of(program, rank))
    }
    host = names.get(ids.pop("compute", -1), "no instruction yet")
    streams = "".join(f"; {stream} stream {names[i]}" for stream, i in ids.items() if i in names)
    return f"rank {rank}: step {step}, {host}{streams}"
