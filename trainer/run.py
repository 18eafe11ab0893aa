"""What one rank of a training run does (its process is `windtunnel.rank`, the launcher `trainer.launch`).

Reads RUN_FOLDER/run.yaml, compiles the step program, makes sure that every rank compiled the same one, trains, and
writes the folder: steps.jsonl and log.txt (rank 0), timeline/ (every rank). A rank that fails says so in one sentence
and exits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from program import StepProgram
from program.cluster import Cluster
from program.errors import InputError
from trainer.clocks import clocks
from trainer.data import TokenFile
from trainer.executor import Executor, StepResult
from trainer.groups import Communicators
from trainer.heartbeat import Heartbeat
from trainer.job import Job
from trainer.log import RunLog
from trainer.nonfinite import NotFinite, explain
from trainer.recorder import Recorder
from trainer.startup import StartUp
from trainer.status import Status
from trainer.streams import StreamError

WAIT_S = 300.0
JOIN_S = 120.0
PEER_S = 3.0  # a rank whose neighbour vanished waits this long, so that the launcher finds the neighbour first
PROBE_S = 1.5
UNTRACED = ("TORCH_FR_BUFFER_SIZE", "0")
"""torch would keep a traceback of every collective, at the host's cost; where a rank stands is in its status file."""


Told = Callable[[Path], tuple[StepProgram, Job, TokenFile]]
"""What a rank trains, from its run folder."""


def train(program: StepProgram, job: Job, data: TokenFile, folder: Path, rank: int, start: StartUp) -> None:
    """Train on this rank; the default process group exists. Collective over it."""
    _agree(program, job, rank)
    start.phase("communicators")
    device = _device(job.cluster)
    os.environ.setdefault(*UNTRACED)
    backend = "nccl" if device.type == "cuda" else "gloo"
    made = Communicators(backend, WAIT_S)
    communicators = made.join(program, rank)
    if device.type == "cuda":
        made.warm_up(program, rank, device)
    status = Status(folder / "status" / f"rank-{rank}")
    executor = Executor(program, job, rank, communicators, data, device, status=status, wait_s=WAIT_S, start=start)
    start.phase("clocks")
    recorder = Recorder(executor, clocks(rank, program.world), _probe(job.cluster, rank, device))
    log = RunLog(job, folder, program) if rank == 0 else None
    ready = start.done()
    if log is not None:
        log.say(ready)
    try:
        _steps(job, executor, data, recorder, log)
    finally:
        recorder.write(folder / "timeline")
        if log is not None:
            log.close()
    dist.barrier()
    executor.close()


def _steps(job: Job, executor: Executor, data: TokenFile, recorder: Recorder, log: RunLog | None) -> None:
    with data.checks_ahead(job.steps) as checked:
        for step in range(job.steps):
            recorded = job.records(step)
            checked(step)
            result = executor.step(step, recorded)
            if recorded:
                recorder.keep(step, result)
            if log is not None:
                line = log.step(step, result, executor.peak_bytes(), recorded)
                _progress(line, job.steps, log)
            if result.overflow:
                _overflowed(executor, step, result, log)
            elif not result.finite and job.nonfinite != "continue":
                _leave_out(job, executor, step, result, log)


def _overflowed(executor: Executor, step: int, result: StepResult, log: RunLog | None) -> None:
    """A step whose gradients were too large under the loss scale, left out on every rank."""
    if log is not None and executor.scaling is not None:
        log.say(
            f"step {step} was left out: gradients overflowed under loss scale {result.loss_scale:g}; the next has"
            f" {executor.scaling.scale:g} ({result.skipped} so far)"
        )


def _leave_out(job: Job, executor: Executor, step: int, result: StepResult, log: RunLog | None) -> None:
    """A step that the optimizer left out on every rank: the run ends or goes on as it asks. Raises NotFinite on all
    ranks alike."""
    if job.nonfinite == "skip":
        if log is not None:
            log.say(f"step {step} was left out: its loss or gradient norm is not finite ({result.skipped} so far)")
        return
    why = explain(executor, step, result)
    if log is not None:
        log.say(f"stopped: {why}")
    raise NotFinite(f"{why}. Weights and optimizer state are those before the step (train.nonfinite: stop)")


def _progress(line: dict[str, object], steps: int, log: RunLog) -> None:
    loss, norm = (float("nan") if line[name] is None else line[name] for name in ("loss", "grad_norm"))
    text = f"step {line['step']} of {steps}: loss {loss:.4f}, norm {norm:.3f}, {line['step_time_s']:.4f} s"
    log.say(text)
    if sys.stderr.isatty():
        print(f"\r{text}   ", end="", file=sys.stderr, flush=True)


def _agree(program: StepProgram, job: Job, rank: int) -> None:
    """Every rank must run the same program of the same run; a difference is found here and not as a hang."""
    mine = (program.hash, json.dumps(dict(job.run), sort_keys=True))
    found: list[tuple[str, str]] = [mine] * program.world
    dist.all_gather_object(found, mine)
    others = [r for r, theirs in enumerate(found) if theirs != found[0]]
    if others:
        raise InputError(
            f"ranks {others} compiled another program or run than rank 0 ({found[0][0]}): "
            "give all ranks one run.yaml and one version"
        )


def _device(cluster: Cluster) -> torch.device:
    if cluster.device == "cpu":
        from calibration.heap import keep_freed_memory

        keep_freed_memory()
        torch.set_num_threads(cluster.threads_per_rank)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            f"the run's cluster {cluster.name} has CUDA devices and this machine has none that torch can use; "
            "set cluster: cpu"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _probe(cluster: Cluster, rank: int, device: torch.device) -> dict[str, float]:
    """How fast the machine is today: rank 0 measures while the others wait."""
    found = {}
    if rank == 0 and device.type == "cpu":
        from calibration.microbench import machine_probe

        found = machine_probe(PROBE_S, cluster.threads_per_rank)
    dist.barrier()
    return found


def main(folder: Path, store: dist.Store, say: Callable[[str], None], told: Told) -> int:
    """Join the job, whose ranks meet in `store`, and train what is `told`; what went wrong is said in one sentence,
    after its kind."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=JOIN_S)
    start = StartUp(shows=rank == 0)
    start.phase("program")
    try:
        Heartbeat(folder / "status" / f"rank-{rank}.alive", os.getppid()).start()
        program, job, data = told(folder)
        start.phase("meeting")
        store.set_timeout(limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        train(program, job, data, folder, rank, start)
    except InputError as error:
        say(f"input: {error}")
        return error.exit_code
    except NotFinite as error:
        say(f"stop: {error}")
        dist.barrier()  # the launcher ends the others with the first that leaves: all have written their files by now
        return error.exit_code
    except (StreamError, dist.DistBackendError, RuntimeError) as error:
        peer = isinstance(error, StreamError) or "Connection" in str(error) or "timed out" in str(error).lower()
        say(f"{'peer' if peer else 'own'}: {type(error).__name__}: {error}")
        if peer:
            time.sleep(PEER_S)
        return 1
    except OSError as error:
        say(f"disk: {error.filename or folder}: {error.strerror or error}")
        return 1
    dist.destroy_process_group()
    return 0
