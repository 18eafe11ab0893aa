"""Warnings are errors here, but not those that torch raises: what a newer torch warns of is no fault of ours.

A filter by module is not enough: `stacklevel` attributes a warning to the line that called torch, which is ours. So the
frame that warns is looked at. (Warnings of torch's C++ carry "Triggered internally at": a filter in pyproject.toml.)
"""

import sys
import warnings
from types import FrameType
from typing import Any

_warn = warnings.warn


def drop() -> None:
    """From now on a warning raised by torch is none."""
    warnings.warn = warn  # type: ignore[assignment]


def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
    """As warnings.warn, unless torch calls it."""
    if not _of_torch(sys._getframe(1)):
        _warn(message, category, stacklevel + 1, source, **more)


def _of_torch(frame: FrameType) -> bool:
    """`@deprecated` warns from its own module, in a wrapper around the function of torch that it calls `arg`."""
    warner = frame.f_globals.get("__name__", "")
    if warner in ("typing_extensions", "warnings"):
        warner = getattr(frame.f_locals.get("arg"), "__module__", None) or ""
    return warner == "torch" or warner.startswith("torch.")
