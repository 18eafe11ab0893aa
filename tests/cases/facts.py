"""Reads the cases in `data/` and forecasts what they describe: shared by every `test_cases_*`.

A forecast here is compiled and simulated as by `windtunnel forecast`; cards that have no preset are described by their
data-sheet numbers and priced with the a100-80gb profile, so that only what does not depend on their speed is asserted
of them.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibration.profile import load_profile
from compiler import compile_run
from plan.run import load
from program.errors import NotYetForecast
from reports.forecast import Forecast
from simulator.simulation import simulate
from windtunnel.api import SimulatedRun, forecast_of

DATA = Path(__file__).parent / "data"
JEAN_ZAY = {"count": 4, "bandwidth_gb_s": 12.5}
"""NICs of the nodes BLOOM trained on: 4 × Omni-Path 100 Gb/s."""


def case(number: str) -> dict[str, Any]:
    """A case by its number: id, summary, source, input, observed, expect."""
    (path,) = DATA.glob(f"{number}-*.yaml")
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def forecast(**sections: Any) -> Forecast:
    """The forecast of a run given by its sections."""
    return _forecast(json.dumps(sections, sort_keys=True))


@lru_cache(maxsize=64)
def _forecast(text: str) -> Forecast:
    run = load(json.loads(text))
    program, profile = compile_run(run), load_profile(run.cluster.profile)
    return forecast_of(SimulatedRun(run, program, profile, simulate(program, run.cluster, profile)))


def not_yet(*words: str, **sections: Any) -> None:
    """The run is refused as not yet forecast: one sentence holds all the words and names a nearest supported plan, and
    the exit code is 2."""
    with pytest.raises(NotYetForecast) as error:
        load(sections)
    assert error.value.exit_code == 2
    sentences = [text for text in error.value.problems if all(word in text for word in words)]
    assert sentences, str(error.value)
    assert all("not yet forecast; nearest supported: " in text for text in error.value.problems)


def card(gpu: str, memory_gib: float, gpus: int, gpus_per_node: int = 8) -> dict[str, Any]:
    """A cluster of cards without a preset. Its peak is that of the profile's card: a forecast beyond the peak is
    refused, and nothing here asks for a speed."""
    tflops = 312.0
    return {
        "gpu": gpu, "gpus": gpus, "gpus_per_node": gpus_per_node, "gpu_memory_gib": memory_gib, "profile": "a100-80gb",
        "peak_tflops": {"fp16": tflops, "bf16": tflops}, "nvlink": {"bandwidth_gb_s": 150, "latency_us": 2},
        "nics": JEAN_ZAY | {"latency_us": 5}, "pcie_gb_s": 12, "host": {"cores": 64, "memory_gib": 512},
    }  # fmt: skip


def bloom_like(layers: int, hidden: int, heads: int = 96, vocab: int = 250000) -> dict[str, Any]:
    """A model of the BLOOM family, as its topology benchmarks vary it."""
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq_length": 2048, "positions": "alibi",
        "embedding_norm": True, "dropout": 0.1, "attention_dropout": 0.1,
    }  # fmt: skip
