"""`windtunnel train`: starts a process a rank on this machine, or joins the job when torchrun (or a cluster's launcher
through it) started us.

    windtunnel train run.yaml                 # this machine; a new folder under runs/
    torchrun --nnodes 2 --nproc-per-node 8 … -m windtunnel train run.yaml --output /shared/run

Under torchrun each rank runs this command; rank 0 prepares the folder, the others wait for it.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

from plan.run import Run
from program.errors import InputError
from windtunnel import output
from windtunnel.folders import RunFolder, held, new_folder
from windtunnel.results import Trained
from windtunnel.source import RunSource


def train_command(source: RunSource, target: str | None, as_json: bool) -> int:
    """Train and print the folder (the last line of stdout), or the result as JSON."""
    run = source.load()
    for text in source.warnings:
        output.note(f"warning: {text}")
    if under_torchrun():
        return _join(run, target)
    _alone()
    folder = launch(run, _folder(target))
    result = trained(RunFolder.open(folder))
    if as_json:
        output.emit_json(result)
    else:
        output.emit(_text(result))
    return 0


COUNTS = {"OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun", "SLURM_STEP_NUM_TASKS": "srun"}
"""What other launchers than torchrun say of the processes they started."""


def _alone() -> None:
    """Raises InputError when another launcher started several of this command: each would start a job of its own."""
    for name, launcher in COUNTS.items():
        if (count := os.environ.get(name, "1")) not in ("0", "1", ""):
            raise InputError(
                f"{launcher} started {count} processes of this command ({name}={count}), and each would train alone:"
                " RANK, WORLD_SIZE and LOCAL_RANK come from torchrun. Start one `windtunnel train` a machine, or"
                " torchrun --nnodes N --nproc-per-node G -m windtunnel train RUN --output DIR, one a node"
            )


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(run: Run, folder: Path | None = None) -> Path:
    """Train `run` with one process a rank on this machine and return its folder. Raises InputError, or
    WindtunnelError naming the rank that failed and its instruction."""
    try:
        _data_is_there(run)
        folder = new_folder() if folder is None else folder
        with held(folder) as lock:
            start = _trainer()
            _enough_devices(run)
            _start(start, run, folder, lock)
    except InputError:
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()  # nothing was started: leave no empty folder behind
        raise
    return folder


def _start(start: ModuleType, run: Run, folder: Path, lock: int) -> None:
    what = f"{run.model.name} on {run.plan.world} ranks for {run.train.steps} steps"
    output.progress(f"training {what}; folder {folder}")
    try:
        start.launch(run, folder, (lock,))
    finally:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # after the line that shows the steps


def _data_is_there(run: Run) -> None:
    """Raises InputError before torch is imported, which takes seconds, when no file is where the tokens should be."""
    path = Path(run.data.path)
    if run.data.path != "builtin" and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"data.path {path} {what}; give a .npy file of integers, or builtin")


def _enough_devices(run: Run) -> None:
    """Raises InputError before anything starts when this machine cannot hold the run's ranks."""
    if run.cluster.device != "cuda":
        return
    import torch

    found, world = torch.cuda.device_count(), run.plan.world
    if found < world:
        have = f"{found} CUDA devices that torch can use" if found else "no CUDA device that torch can use"
        raise InputError(
            f"the run needs {world} ranks on {run.cluster.name} and this machine has {have}; start it with torchrun on "
            "enough nodes (torchrun ... -m windtunnel train RUN --output DIR), or train a small model with cluster: cpu"
        )


def trained(folder: RunFolder) -> Trained:
    """What a finished run's folder says about it."""
    from reports.measured import measure, read_steps

    steps = read_steps(folder.path / "steps.jsonl")
    found = measure([float(step["step_time_s"]) for step in steps])
    losses = [step.get("loss") for step in steps]
    return Trained(
        run_dir=str(folder.path),
        steps=len(steps),
        first_loss=losses[0],
        last_loss=losses[-1],
        step_time_s=found.median_s,
        step_time_quartiles_s=found.quartiles_s,
        tokens_per_s=folder.run().tokens_per_step / found.median_s,
        program_hash=folder.timeline().header.program_hash,
    )


def _text(result: Trained) -> str:
    from reports.tables import count, seconds

    losses = "" if result.last_loss is None else f"loss {result.first_loss:.4f} to {result.last_loss:.4f}; "
    speed = f"{seconds(result.step_time_s)} a step (median after warm-up), {count(result.tokens_per_s)} tokens/s"
    return f"{result.steps} steps; {losses}{speed}\n{result.run_dir}"


def _folder(target: str | None) -> Path | None:
    """The folder asked for; None for the next free one."""
    if target is None:
        return None
    folder = Path(target)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the run")
    return folder


def _join(run: Run, target: str | None) -> int:
    """This process is one rank of a job."""
    _trainer()
    from trainer.torchrun import join
    from windtunnel.job import compile_run, prepare, told

    job, rank = os.environ["TORCHELASTIC_RUN_ID"], int(os.environ.get("RANK", "0"))
    folder = _folder(target) or Path("runs") / f"torchrun-{job}"
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # the same job, restarted after a failure
    with ExitStack() as stack:

        def own() -> None:
            stack.enter_context(held(folder, reuse=again))
            prepare(run, folder)

        code = join(run.plan.world, partial(compile_run, run), folder, own, told)
    if rank == 0 and code == 0:
        output.emit(str(folder))
    return code


def _trainer() -> ModuleType:
    """What starts ranks. Imported here: it imports torch."""
    try:
        from windtunnel import job as start
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}: pip install 'windtunnel[train]'") from None
    return start
