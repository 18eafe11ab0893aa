"""What every test shares: fixed random draws (many more under `make soak`, counted at its end) and a short run to start
from."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from plan.presets import merge
from plan.run import Run, load

_QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("fixed", derandomize=True, max_examples=30, database=None, **_QUIET)
settings.register_profile("soak", max_examples=2000, **_QUIET)
settings.load_profile("soak" if os.environ.get("WINDTUNNEL_SOAK") else "fixed")


TINY: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq_length": 32, "vocab_multiple": 16},
    "cluster": "cpu",
    "plan": {"precision": "fp32"},
}


@pytest.fixture
def tiny() -> Callable[..., Run]:
    """A 4-layer GPT on the CPU cluster, with sections overridden by keyword: tiny(plan={"tensor_parallel": 2})."""

    def build(**sections: Any) -> Run:
        return load(merge(TINY, sections))

    return build


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests counted with `record_property(what, number)`, over all of them; under `make soak` alone."""
    counted: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            counted.update({what: n for what, n in report.user_properties if isinstance(n, int)})
    if counted and os.environ.get("WINDTUNNEL_SOAK"):
        terminalreporter.section("counted")
        for what, n in sorted(counted.items()):
            terminalreporter.line(f"{n:8} {what}")
