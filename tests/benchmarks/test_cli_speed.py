"""How long a person waits: `windtunnel --help` (≤ 0.3 s) and a forecast of GPT-3 175B on 1,024 GPUs (≤ 2 s, ≤ 500
MB), cold processes.

Run with `make bench`; without it each runs once and only has to work, and to stay within its memory. Wall times
depend on what else the machine does, so each process's own CPU time is reported beside them (`extra_info.cpu_s`,
the least of all rounds).
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import resource, sys
from windtunnel.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(ended.code or 0, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
"""


def cold(benchmark: BenchmarkFixture, rounds: int, *arguments: str) -> tuple[int, float]:
    """Benchmark `windtunnel …` in new interpreters. Returns the last exit code and the largest memory in MiB."""
    seen: list[list[str]] = []

    def call() -> None:
        command = [sys.executable, "-c", CODE, *arguments]
        done: Any = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=True)
        seen.append(done.stderr.splitlines()[-1].split())

    benchmark.pedantic(call, rounds=rounds)
    benchmark.extra_info["cpu_s"] = min(float(cpu_s) for _, cpu_s, _ in seen)
    benchmark.extra_info["max_rss_mib"] = max(float(mib) for _, _, mib in seen)
    return int(seen[-1][0]), benchmark.extra_info["max_rss_mib"]


def test_help(benchmark: BenchmarkFixture) -> None:
    assert cold(benchmark, 10, "--help")[0] == 0


def test_program_of_gpt3_175b(benchmark: BenchmarkFixture) -> None:
    assert cold(benchmark, 5, "program", "examples/gpt3-175b.yaml", "--csv")[0] == 0


def test_forecast_of_gpt3_175b(benchmark: BenchmarkFixture) -> None:
    code, mib = cold(benchmark, 5, "forecast", "examples/gpt3-175b.yaml", "--json")
    assert code == 0
    assert mib <= 500
