"""The search behind the fits of published rows."""

import pytest

from tools.fit_search import search


def test_a_search_finds_its_parameters_and_refuses_a_bound() -> None:
    sizes = [1.0, 10.0, 100.0, 1000.0]
    seconds = [2.0 + 0.5 * s for s in sizes]

    def model(values: dict[str, float]) -> list[float]:
        return [values["a"] + values["b"] * s for s in sizes]

    fit = search(model, seconds, {"a": (0.1, 10), "b": (0.01, 2)})
    assert fit.values == pytest.approx({"a": 2.0, "b": 0.5}, rel=1e-2)
    assert fit.mean_error < 1e-2
    with pytest.raises(ValueError, match="b = 0.3 sits on its bound"):
        search(model, seconds, {"a": (0.1, 10), "b": (0.01, 0.3)})
