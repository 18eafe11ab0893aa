"""`make soak` repeats with many more random draws what `make test` draws a few of, and says at the end how many.

    draws = 5000 if soaking() else 60        # in a test marked `scaled`: it runs in both
    soak_count("random plans", draws)        # the fixture: adds to the line `make soak` ends with

A test marked `soak` runs under `make soak` alone; one with `@given` is `scaled` by itself.
"""

import os
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

PROPERTY = "soak"


def soaking() -> bool:
    """Whether this is `make soak`."""
    return bool(os.environ.get("WINDTUNNEL_SOAK"))


class Counts:
    """What the test now running drew, by kind. It travels in the test's report, so that workers' counts add up."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None

    def begin(self, item: pytest.Item) -> None:
        """`item` runs now."""
        self._item = item

    def __call__(self, kind: str, n: int = 1) -> None:
        assert self._item is not None
        properties = self._item.user_properties
        found = next((value for name, value in properties if name == PROPERTY), None)
        if found is None:
            properties.append((PROPERTY, found := {}))
        found[kind] = found.get(kind, 0) + n  # type: ignore[attr-defined]


def mark_scaled(items: Iterable[pytest.Item]) -> None:
    """A property test draws as many examples as the profile says, so it is `scaled`."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.scaled)


def crossed(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize over every combination of the axes, two or more.

        @crossed(layout=LAYOUTS, model=MODELS)

    `make test` runs as many as its longest axis has values, so that every value of every axis stands in one at least;
    `make soak` runs the others.
    """
    values = [list(axis) for axis in axes.values()]
    chosen = {tuple(axis[i % len(axis)] for axis in values) for i in range(max(map(len, values)))}
    return pytest.mark.parametrize(
        tuple(axes), [pytest.param(*v, marks=[] if v in chosen else pytest.mark.soak) for v in product(*values)]
    )


def summary(reports: Iterable[Any]) -> list[str]:
    """The last lines of a soak: the draws of every kind, and the tests that failed."""
    totals: dict[str, int] = {}
    failed = []
    for report in reports:
        failed += [report.nodeid] if getattr(report, "failed", False) else []  # it may fail before it counts
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY and report.when == "call":
                totals |= {kind: totals.get(kind, 0) + n for kind, n in value.items()}
    if not totals:
        return []
    end = f"failures in {', '.join(failed)}" if failed else "none at exit 3"
    return ["; ".join(f"{n:,} {kind}" for kind, n in sorted(totals.items())) + f": {end}"]
