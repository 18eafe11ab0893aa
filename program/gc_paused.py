"""No garbage collection while a program is compiled, proved or simulated.

Each makes many small objects that live until its end and form no cycles worth finding; every full collection meanwhile
would walk the whole program (a third to a half of the time for GPT-3 175B).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collection off inside, and as it was afterwards."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
