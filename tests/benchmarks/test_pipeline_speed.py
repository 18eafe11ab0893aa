"""Compile, prove and fly GPT-3 175B on 1,024 GPUs (TP8 PP16 DP8, 192 micro-batches): the bar is 1 s inside."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from calibration.profile import load_profile
from compiler import compile_run
from plan.run import load
from program.proofs import prove
from simulator.flight import Flight, fly

RUN = Path(__file__).parents[2] / "examples" / "gpt3-175b.yaml"


@pytest.mark.benchmark(group="175B inside")
def test_compile_prove_and_fly(benchmark: Any) -> None:
    run, profile = load(RUN), load_profile("a100-80gb")

    def whole() -> Flight:
        program = compile_run(run)
        prove(program)
        return fly(program, run.cluster, profile)

    def tidy() -> None:
        gc.collect()  # its count would be taken for arguments

    flight = benchmark.pedantic(whole, setup=tidy, rounds=5, warmup_rounds=1)
    assert flight.program.degrees["microbatches"] == 192
    assert len(flight.program.classes) == 16
