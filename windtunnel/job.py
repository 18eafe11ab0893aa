"""A run as the trainer takes it: its program, what the ranks are told beside it, its text; and the ranks started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from compiler import compile_run
from compiler.compile_checked import compile_checked
from plan.flops import model_flops_per_step
from plan.run import Optimizer, Run, load
from plan.trainable import check_trainable
from program import StepProgram
from trainer import launch as ranks
from trainer import marks
from trainer.data import TokenFile, open_data
from trainer.job import Job
from trainer.log import plain
from trainer.loss_scale import Scaling
from trainer.schedule_lr import Rate


def job_of(run: Run) -> Job:
    """What the ranks of a run are told."""
    peak = run.cluster.peak_flops(run.plan.precision)
    return Job(
        cluster=run.cluster,
        steps=run.train.steps,
        seed=run.train.seed,
        rate=rate_of(run.optimizer),
        scaling=None if (scale := run.plan.loss_scale) is None else Scaling(**asdict(scale)),
        nonfinite=run.train.nonfinite,
        records=run.records,
        name=run.model.name,
        parameters=run.model.parameters(),
        flops_per_step=model_flops_per_step(run),
        tokens_per_step=run.tokens_per_step,
        peak_flops=None if peak is None else peak * run.plan.world,
        run=run.to_dict(),
        marks=os.environ.get(marks.VARIABLE) == "nvtx",
    )


def rate_of(optimizer: Optimizer) -> Rate:
    """The learning rates of an optimizer."""
    given = optimizer.schedule
    last = (given.anneal_steps, given.anneal)
    return Rate(optimizer.lr, given.kind, given.warmup_steps, given.decay_steps, given.min_lr, *last)


def text_of(run: Run) -> TokenFile:
    """The text a run trains on. Raises InputError when it is missing, too short or not of the vocabulary."""
    batch, data = run.plan.global_batch_size, run.data
    return open_data(data.path, run.model.seq_length, batch, run.train.seed, run.model.vocab, data.tokenizer)


def told(folder: Path) -> tuple[StepProgram, Job, TokenFile]:
    """What a rank trains, from the run file that `prepare` wrote into its folder. Raises InputError."""
    run = load(folder / "run.yaml")
    check_trainable(run)
    return compile_run(run), job_of(run), text_of(run)


def prepare(run: Run, folder: Path) -> StepProgram:
    """Check what can be checked before ranks start, the program's soundness included, and write the run's file where
    they read it. What an earlier run left in the folder is removed. Raises InputError."""
    check_trainable(run)
    program = compile_checked(run)
    text_of(run).batch(0, tuple(range(min(4, run.plan.global_batch_size))))
    ranks.make_ready(folder)
    with ranks.written(folder):
        text = yaml.safe_dump(plain(run.to_dict()), sort_keys=False, allow_unicode=True)
        (folder / "run.yaml").write_text(text)
    return program


def launch(run: Run, folder: Path, keeps: Sequence[int] = ()) -> Path:
    """Prepare a run and train it with one process a rank on this machine; see `trainer.launch`."""
    return ranks.launch([sys.executable, "-m", "windtunnel.rank"], prepare(run, folder), run.cluster, folder, keeps)
