"""Starts a training run on this machine, one process a rank, watches it, and says where a rank was when it died.

    launch(run, folder)        # blocks; returns when every rank has finished

Ranks meet in a file that only the user can read and talk over the loopback: nothing listens to another host. They keep
their place in 64-byte status files (`trainer.status`), so a rank that is killed still leaves its step and instruction
behind. When one fails the others are ended; the message names the rank that failed first, and where every rank was. A
rank whose heartbeat stops is ended and named (`trainer.heartbeat`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from calibration.loopback import loopback_variables
from compiler import compile_run, stage_of
from compiler.sound import compile_proved
from plan.run import Run
from plan.trainable import check_trainable
from program import StepProgram, expand, label
from program.errors import InputError, Stopped, WindtunnelError
from trainer.data import cache_folder, open_data
from trainer.heartbeat import Silence, Watch, silent_s
from trainer.log import kept, plain
from trainer.nonfinite import NotFinite
from trainer.processes import run_processes
from trainer.status import read

MEETING = "rendezvous"


class RankFailed(WindtunnelError):
    """A rank failed and the job was stopped."""


def launch(run: Run, folder: Path, keeps: Sequence[int] = ()) -> Path:
    """Train `run` with one process a rank on this machine; fills and returns `folder`. `keeps`: file descriptors that
    every rank holds open, as that of the folder's lock.

    Raises InputError before anything is started (data missing, plan not trainable), or RankFailed naming rank and
    instruction.
    """
    watch = Watch(folder / "status", run.plan.world, silent_s())
    environments = [_environment(run, rank) for rank in range(run.plan.world)]
    prepare(run, folder)
    with _meeting_place(folder) as store, watch:
        command = [sys.executable, "-m", "trainer.rank", str(folder), str(store)]
        ended = run_processes([command] * run.plan.world, environments, keeps)
    if ended.stopped:
        name = signal.Signals(ended.stopped).name
        raise Stopped(f"stopped by {name}; {folder} holds what was trained", ended.stopped)
    if ended.exits:
        raise _explained(run, folder, dict(ended.exits), dict(ended.said), watch.found)
    return folder


def _environment(run: Run, rank: int) -> dict[str, str]:
    """What a rank is told."""
    world = str(run.plan.world)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    threads = {"OMP_NUM_THREADS": str(run.cluster.threads_per_rank)} if run.cluster.device == "cpu" else {}
    return place | threads | loopback_variables() | kernels_cache()


def kernels_cache() -> dict[str, str]:
    """Where torch.compile keeps what it compiled, unless the user has said so: with the user's other caches. Its own
    choice is the temporary folder, where anybody could have left code for it."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return {"TORCHINDUCTOR_CACHE_DIR": given or str(cache_folder().absolute() / "torchinductor")}


@contextmanager
def _meeting_place(folder: Path) -> Iterator[Path]:
    """A file for the ranks' store, in a folder of the run's that only this user may open: what is put into a store is
    unpickled by the ranks."""
    private = folder / MEETING
    with _written(folder):
        private.mkdir(mode=0o700)
    try:
        yield private / "store"
    finally:
        shutil.rmtree(private, ignore_errors=True)


def prepare(run: Run, folder: Path) -> None:
    """Check what can be checked before ranks start, the program's soundness included, and write the run's file where
    they read it. What an earlier run left in the folder is removed."""
    check_trainable(run)
    compile_proved(run)
    data = open_data(run)
    data.batch(0, tuple(range(min(4, run.plan.global_batch_size))))
    with _written(folder):
        for name in ("status", "timeline", MEETING):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        for name in ("status", "timeline"):
            (folder / name).mkdir(parents=True)
        (folder / "steps.jsonl").unlink(missing_ok=True)
        text = yaml.safe_dump(plain(run.to_dict()), sort_keys=False, allow_unicode=True)
        (folder / "run.yaml").write_text(text)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Writing here fails as an InputError: nothing has been trained yet."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def _explained(
    run: Run, folder: Path, exits: dict[int, int], said: dict[int, str], silence: Silence | None
) -> WindtunnelError:
    wrong = [text.removeprefix("input: ") for text in said.values() if text.startswith("input: ")]
    if wrong:
        return InputError(wrong)
    lost = next(((rank, text) for rank, text in said.items() if text.startswith("disk: ")), None)
    if lost is not None:
        return RankFailed(unwritten(folder, *lost))
    stopped = [text.removeprefix("stop: ") for text in said.values() if text.startswith("stop: ")]
    if stopped:  # every rank found the same
        return NotFinite(f"{stopped[0]}; {folder} holds what was trained")
    first = _first(exits, said) if silence is None else silence.rank
    how = _how(exits.get(first), said.get(first, "")) if silence is None else _silent(silence)
    places = [f"  {where(folder, rank, compile_run(run))}" for rank in range(run.plan.world)]
    return RankFailed(f"rank {first} {how}; the job was stopped. When it ended:\n" + "\n".join(places))


def unwritten(folder: Path, rank: int, said: str) -> str:
    """The sentence about a rank that could not write, and what there is of its run."""
    return f"rank {rank} cannot go on: {said.removeprefix('disk: ')}; the job was stopped. {kept(folder)}"


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
