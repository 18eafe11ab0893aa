"""Compile, prove and simulate GPT-3 175B on 1,024 GPUs (TP8 PP16 DP8, 192 micro-batches): the bar is 1 s inside."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from calibration.profile import load_profile
from compiler import compile_run
from plan.run import load
from program.proofs import prove
from simulator.simulation import Simulation, simulate

RUN = Path(__file__).parents[2] / "examples" / "gpt3-175b.yaml"


@pytest.mark.benchmark(group="175B inside")
def test_compile_prove_and_simulate(benchmark: Any) -> None:
    run, profile = load(RUN), load_profile("a100-80gb")

    def whole() -> Simulation:
        program = compile_run(run)
        prove(program)
        return simulate(program, run.cluster, profile)

    def tidy() -> None:
        gc.collect()  # its count would be taken for arguments

    simulation = benchmark.pedantic(whole, setup=tidy, rounds=5, warmup_rounds=1)
    assert simulation.program.degrees["microbatches"] == 192
    assert len(simulation.program.classes) == 16
