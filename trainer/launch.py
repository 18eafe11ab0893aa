"""Starts a training run on this machine, one process a rank, watches it, and says where a rank was when it died.

    launch(command, program, cluster, folder)        # blocks; returns when every rank has finished

Ranks meet in a file that only the user can read and talk over the loopback: nothing listens to another host. They keep
their place in 64-byte status files (`trainer.status`), so a rank that is killed still leaves its step and instruction
behind. When one fails the others are ended; the message names the rank that failed first, and where every rank was. A
rank whose heartbeat stops is ended and named (`trainer.heartbeat`).
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from calibration.loopback import loopback_variables
from program import StepProgram, expand, label
from program.cluster import Cluster
from program.errors import InputError, Stopped, WindtunnelError
from trainer.data import cache_folder
from trainer.heartbeat import Silence, Watch, silent_s
from trainer.log import kept
from trainer.nonfinite import NotFinite
from trainer.processes import run_processes
from trainer.status import read

MEETING = "rendezvous"


class RankFailed(WindtunnelError):
    """A rank failed and the job was stopped."""


def launch(
    command: Sequence[str], program: StepProgram, cluster: Cluster, folder: Path, keeps: Sequence[int] = ()
) -> Path:
    """Run `command FOLDER STORE WORDS` for each rank of a program on this machine; fills and returns `folder`, which
    was made ready. `keeps`: file descriptors that every rank holds open, as that of the folder's lock.

    Raises what the ranks say: InputError, or RankFailed naming rank and instruction.
    """
    watch = Watch(folder / "status", program.world, silent_s())
    environments = [_environment(program, cluster, rank) for rank in range(program.world)]
    with _meeting_place(folder) as store, watch:
        ended = run_processes([[*command, str(folder), str(store)]] * program.world, environments, keeps)
    if ended.stopped:
        name = signal.Signals(ended.stopped).name
        raise Stopped(f"stopped by {name}; {folder} holds what was trained", ended.stopped)
    if ended.exits:
        raise _explained(program, folder, dict(ended.exits), dict(ended.said), watch.found)
    return folder


def _environment(program: StepProgram, cluster: Cluster, rank: int) -> dict[str, str]:
    """What a rank is told."""
    world = str(program.world)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    threads = {"OMP_NUM_THREADS": str(cluster.threads_per_rank)} if cluster.device == "cpu" else {}
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
    with written(folder):
        private.mkdir(mode=0o700)
    try:
        yield private / "store"
    finally:
        shutil.rmtree(private, ignore_errors=True)


def make_ready(folder: Path) -> None:
    """Make the folders that ranks write into; what an earlier run left there is removed."""
    with written(folder):
        for name in ("status", "timeline", MEETING):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        for name in ("status", "timeline"):
            (folder / name).mkdir(parents=True)
        (folder / "steps.jsonl").unlink(missing_ok=True)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Writing here fails as an InputError: nothing has been trained yet."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def _explained(
    program: StepProgram, folder: Path, exits: dict[int, int], said: dict[int, str], silence: Silence | None
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
    places = [f"  {where(folder, rank, program)}" for rank in range(program.world)]
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
        for placed in expand(program.classes[program.class_of[rank]])
    }
    host = names.get(ids.pop("compute", -1), "no instruction yet")
    streams = "".join(f"; {stream} stream {names[i]}" for stream, i in ids.items() if i in names)
    return f"rank {rank}: step {step}, {host}{streams}"
