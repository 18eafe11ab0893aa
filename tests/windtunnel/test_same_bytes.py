"""The same inputs give the same bytes: in every process, and whether ranks are folded or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FORECASTS = {
    "recompute": [str(EXAMPLES / "gpt3-175b.yaml"), "--set", "plan.recompute=selective"],
    "deepspeed": [str(EXAMPLES / "bloom-176b.sh")],
}


def forecast(arguments: list[str], seed: str = "0") -> bytes:
    command = [sys.executable, "-m", "windtunnel", "forecast", *arguments, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("name", FORECASTS)
def test_in_every_process(name: str) -> None:
    assert len({forecast(FORECASTS[name], seed) for seed in ("0", "1")}) == 1


def test_folded_and_unfolded() -> None:
    one = [str(EXAMPLES / "llama-3-8b.yaml")]
    assert forecast(one) == forecast([*one, "--unfold"])
