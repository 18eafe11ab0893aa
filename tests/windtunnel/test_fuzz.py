"""Whatever a file holds, a command ends in exit 0, 1 or 2: seeded mutations of every kind of input, in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import soaking
from tests.windtunnel.fuzz import Kinds, faults

SEEDS = 2000 if soaking() else 8
KINDS = tuple(name.removeprefix("of_") for name in dir(Kinds) if name.startswith("of_"))


@pytest.mark.scaled
@pytest.mark.timeout(3600 if soaking() else 120)
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_fault(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak_count: Callable[[str, int], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDTUNNEL_DEBUG", "1")
    codes, wrong = faults(kind, range(SEEDS), tmp_path / kind)
    assert not wrong, f"{len(wrong)} of {SEEDS}: {wrong[0]}"
    assert codes[2], "every mutation was harmless: nothing was tried"
    soak_count("mutated files", SEEDS)
