"""How long a person waits: `windtunnel --help` (≤ 0.3 s) and a forecast of GPT-3 175B on 1,024 GPUs (≤ 2 s), cold
processes.

Run with `make bench`; without it each runs once and only has to work.
"""

import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).resolve().parents[2]


def cold(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`windtunnel …` in a new interpreter."""
    command = [sys.executable, "-m", "windtunnel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_help(benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(cold, args=("--help",), rounds=10).returncode == 0


def test_program_of_gpt3_175b(benchmark: BenchmarkFixture) -> None:
    done = benchmark.pedantic(cold, args=("program", "examples/gpt3-175b.yaml", "--csv"), rounds=5)
    assert done.returncode == 0, done.stderr


def test_forecast_of_gpt3_175b(benchmark: BenchmarkFixture) -> None:
    done = benchmark.pedantic(cold, args=("forecast", "examples/gpt3-175b.yaml", "--json"), rounds=5)
    assert done.returncode in (0, 1), done.stderr
