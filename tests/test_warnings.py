"""A warning of ours is an error; one of torch is none, also where torch attributes it to our line."""

import sys
import warnings
from types import ModuleType

import pytest

TORCH = """
import warnings
from typing_extensions import deprecated

def old(category):
    warnings.warn("soon gone", category, stacklevel=2)

@deprecated("soon gone")
def older():
    pass
"""


@pytest.fixture
def newer_torch() -> ModuleType:
    """A module of torch that warns of every use."""
    module = ModuleType("torch.newer")
    exec(compile(TORCH, "newer.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, UserWarning])
def test_torch_may_warn_of_our_line(newer_torch: ModuleType, category: type[Warning]) -> None:
    newer_torch.old(category)
    newer_torch.older()


def test_torch_may_warn_from_its_compiled_part() -> None:
    warnings.warn(
        "an operator is beta\n(Triggered internally at /pytorch/aten/Context.cpp:5.)", UserWarning, stacklevel=1
    )


def test_a_warning_of_ours_is_an_error_at_our_line() -> None:
    with pytest.raises(DeprecationWarning, match="of ours"):
        warnings.warn("of ours", DeprecationWarning, stacklevel=1)
    with pytest.warns(DeprecationWarning, match="of ours") as caught:
        warnings.warn("of ours", DeprecationWarning, stacklevel=1)
    assert (caught[0].filename, caught[0].lineno) == (__file__, sys._getframe().f_lineno - 1)
