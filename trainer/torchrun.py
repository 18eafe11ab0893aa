"""A rank that the user's own torchrun started: it meets the others in torchrun's store, and waits for rank 0 to prepare
the run folder.

No rank touches the folder before rank 0 has said that it is this job's, and nothing is said in a file: torchrun shows
what a rank prints.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path

import torch.distributed as dist

from calibration.loopback import loopback_variables
from program import StepProgram
from program.errors import InputError
from trainer.launch import kernels_cache, unwritten, where
from trainer.run import Told, main

PREPARED_S = 600.0  # a large plan is proved in minutes
SHARED_S = 60.0
_FOLDER = "windtunnel/folder"
_REFUSED = ""


def join(
    needed: int, program: Callable[[], StepProgram], folder: Path, prepare: Callable[[], object], told: Told
) -> int:
    """Train as one rank of `needed` what is `told`; its exit code. Rank 0 calls `prepare`, which makes the folder this
    job's and writes what is told there, or raises InputError. `program` is asked only where a rank has failed. Raises
    InputError, on rank 0 alone for what all ranks would say."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
        os.environ.update(loopback_variables())
    os.environ.update(kernels_cache())
    store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=PREPARED_S)))
    if rank == 0:
        _prepare(needed, folder, world, prepare, store)
    elif not _prepared(folder, rank, store):
        return InputError.exit_code
    ranks = dist.PrefixStore("windtunnel/ranks", store)
    return main(folder, ranks, lambda text: _say(program, folder, rank, text, store), told)


def _prepare(needed: int, folder: Path, world: int, prepare: Callable[[], object], store: dist.Store) -> None:
    token = _REFUSED
    try:
        if needed != world:
            raise InputError(
                f"the plan needs {needed} ranks and torchrun started {world}; "
                "start as many, or change the plan's degrees"
            )
        prepare()
        token = secrets.token_hex(8)
        (folder / "status" / f"ready-{token}").touch()
    finally:
        store.set(_FOLDER, token)


def _prepared(folder: Path, rank: int, store: dist.Store) -> bool:
    """Whether rank 0 has prepared the folder; it says why not. Raises InputError when this node does not see it."""
    token = store.get(_FOLDER).decode()
    if token == _REFUSED:
        return False
    limit = time.monotonic() + SHARED_S
    while not (folder / "status" / f"ready-{token}").exists():
        if time.monotonic() > limit:
            raise InputError(
                f"rank {rank} does not see what rank 0 wrote into {folder}; is it on a file system that all nodes"
                " share? Give one with --output"
            )
        time.sleep(0.1)
    return True


def _say(program: Callable[[], StepProgram], folder: Path, rank: int, text: str, store: dist.Store) -> None:
    """Print why this rank failed; what several ranks say alike, one of them prints."""
    kind, _, what = text.partition(": ")
    if kind in ("input", "stop"):  # every rank found the same
        with suppress(RuntimeError):  # the store is gone: better twice than never
            if store.add(f"windtunnel/said/{blake2b(text.encode()).hexdigest()}", 1) > 1:
                return
        said = what
    elif kind == "disk":
        said = unwritten(folder, rank, what)
    else:
        said = f"rank {rank} failed ({what}); {where(folder, rank, program())}"
    print(f"error: {said}", file=sys.stderr, flush=True)
