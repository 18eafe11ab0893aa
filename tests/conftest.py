"""What every test shares: fixed random draws (many more under `make soak`, counted at its end) and a short run to start
from."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from plan.presets import merge
from plan.run import Run, load
from tests import torch_warnings
from tests.soak import Counts, mark_scaled, soaking, summary

_QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("fixed", derandomize=True, max_examples=30, database=None, **_QUIET)
settings.register_profile("soak", max_examples=2000, **_QUIET)
settings.load_profile("soak" if soaking() else "fixed")
_counts = Counts()
torch_warnings.drop()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_scaled(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _counts.begin(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if soaking():
        reports = [report for found in terminalreporter.stats.values() for report in found]
        for line in summary(reports):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def soak_count() -> Counts:
    """soak_count(kind, n): adds `n` draws of a kind ("random plans") to the line that `make soak` ends with.

    It counts for the test now running, so a property test may ask for it too.
    """
    return _counts


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
