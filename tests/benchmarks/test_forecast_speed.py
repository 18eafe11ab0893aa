"""How fast the simulator is on GPT-3 175B: 1,024 GPUs, TP8 · PP16 · DP8, 192 micro-batches, full recompute.

    OMP_NUM_THREADS=1 python -m pytest tests/benchmarks/test_forecast_speed.py --benchmark-enable

Times are processor seconds where a bar is asserted, so that a busy machine does not fail them; the bars leave room for
slower processors than the ones they were set on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibration.profile import Profile, load_profile
from compiler import compile_run
from plan.run import load
from program import StepProgram
from program.cluster import Cluster
from simulator.simulation import simulate

ROOT = Path(__file__).parents[2]
GPT3 = ROOT / "examples" / "gpt3-175b.yaml"


@pytest.fixture(scope="module")
def gpt3() -> tuple[StepProgram, Cluster, Profile]:
    """Program, cluster and the profile its cluster names."""
    run = load(GPT3)
    return compile_run(run), run.cluster, load_profile(run.cluster.profile)


def processor_s(action: Callable[[], Any], tries: int = 3) -> float:
    """Least processor time of a few tries."""
    times = []
    for _ in range(tries):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark(group="175B")
def test_simulate(gpt3: tuple[StepProgram, Cluster, Profile], benchmark: Any) -> None:
    simulation = benchmark.pedantic(lambda: simulate(*gpt3), rounds=3, warmup_rounds=1)
    assert len(simulation.symmetry_classes) == 16


@pytest.mark.benchmark(group="175B")
def test_memory_of_every_stage(gpt3: tuple[StepProgram, Cluster, Profile], benchmark: Any) -> None:
    stages = benchmark.pedantic(lambda: simulate(*gpt3).memory, rounds=1)
    assert len(stages) == 16


def test_a_simulation_takes_less_than_its_share_of_a_second(gpt3: tuple[StepProgram, Cluster, Profile]) -> None:
    """0.4 s of the second that compile, proofs and simulation may take; twice that on a loaded machine."""
    assert processor_s(lambda: simulate(*gpt3)) < 0.8


def test_the_number_of_events_of_gpt3_is_known(gpt3: tuple[StepProgram, Cluster, Profile]) -> None:
    """One event for each transfer (15 edges, two ways, 192 micro-batches), each merged segment, and the instructions
    around a step."""
    simulation = simulate(*gpt3, skip=False)
    transfers, segments = 2 * 15 * 2 * 192, 2 * 16 * 2 * 192
    singles = simulation.events - transfers - segments
    assert 0 < singles < 2 * 16 * 60
    assert simulation.events == simulate(*gpt3, skip=False).events
    assert simulate(*gpt3).events < simulation.events / 2


def test_a_cold_forecast_fits_in_half_a_gigabyte() -> None:
    """A fresh process that compiles and simulates: no torch, under 500 MB."""
    code = (
        "import sys, resource\n"
        "from plan.run import load\nfrom compiler import compile_run\n"
        "from calibration.profile import load_profile\nfrom simulator.simulation import simulate\n"
        f"run = load({str(GPT3)!r}); profile = load_profile(run.cluster.profile)\n"
        "simulation = simulate(compile_run(run), run.cluster, profile)\n"
        "assert simulation.memory and simulation.interval.low_s < simulation.step_time_s < simulation.interval.high_s\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    kilobytes = int(done.stdout) // (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 500 * 1024
