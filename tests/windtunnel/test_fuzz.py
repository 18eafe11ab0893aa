"""Whatever a file holds, a command ends in exit 0, 1 or 2: seeded mutations of every kind of input, in this process."""

import os
from pathlib import Path

import pytest

from tests.windtunnel.fuzz import Kinds, faults

SEEDS = 2000 if os.environ.get("WINDTUNNEL_SOAK") else 8
KINDS = tuple(name.removeprefix("of_") for name in dir(Kinds) if name.startswith("of_"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_fault(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDTUNNEL_DEBUG", "1")
    codes, wrong = faults(kind, range(SEEDS), tmp_path / kind)
    assert not wrong, f"{len(wrong)} of {SEEDS}: {wrong[0]}"
    assert codes[2], "every mutation was harmless: nothing was tried"
