"""Run files drawn over every key of the language are refused by name, or compile, prove and can be simulated: nothing
else. Here some dozens, under `make soak` as many as give 5,000 accepted plans; what was counted is told at the end.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler import compile_run
from plan.run import Run, load
from program.errors import InputError, NotYetForecast
from program.proofs import prove
from tests.draws import KEYS, LATER, SHAPE, VALUES, draw, values
from tests.program.plain_proof import prove_expanded
from tests.soak import soaking
from tests.windtunnel.run_folders import profile_file
from windtunnel import api

SOAK = soaking()
SLICES, ACCEPTED = (25, 200) if SOAK else (2, 15)
APART = 100_000  # numbers of one slice


def test_every_key_is_drawn() -> None:
    """A key that is new in the schema is drawn, or this names it; a word of the schema is drawn by itself."""
    assert {key for key in KEYS if key not in SHAPE and not values(key)} == set()
    assert (set(VALUES) | set(LATER) | SHAPE) - set(KEYS) == set()


@pytest.mark.scaled
@pytest.mark.scaled
def test_every_key_stands_in_a_plan_that_is_accepted() -> None:
    """Under `make soak` at every value but those that are not forecast yet."""
    wanted = {(key, str(value)) for key in KEYS for value in values(key) if value not in LATER.get(key, [])}
    missing, number = wanted if SOAK else {(key, "") for key in KEYS}, 0
    while missing and number < 4_000:
        raw = draw(number)
        number += 1
        said = {(key, str(value) if SOAK else "") for key, value in _stated(raw)}
        if said & missing and not isinstance(_verdict(raw), str):
            missing = missing - said
    assert missing == set()


def _stated(raw: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every key that a run file states, with its value: of a mapping the keys in it."""
    found: list[tuple[str, Any]] = []
    for key, value in raw.items():
        name = f"{path}{key}"
        inside = _stated(value, f"{name}.") if isinstance(value, dict) and name not in VALUES else []
        found += inside or [(name, value)]
    return found


def _verdict(raw: Any) -> Run | str:
    """The run of a file, or how it is refused."""
    try:
        return load(raw)
    except NotYetForecast:
        return "not yet forecast"
    except InputError:
        return "refused by a rule"


@pytest.fixture(scope="session")
def cpu_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU profile of round numbers."""
    return profile_file(tmp_path_factory.mktemp("profile") / "cpu.yaml")


@pytest.mark.scaled
@pytest.mark.scaled
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(SLICES))
def test_a_drawn_run_is_refused_or_sound(part: int, cpu_profile: Path, soak_count: Callable[[str, int], None]) -> None:
    verdicts: Counter[str] = Counter()
    number = part * APART
    while verdicts["proved"] < ACCEPTED:
        try:
            verdicts.update(_judged(number, cpu_profile))
        except BaseException as error:
            error.add_note(f"draw({number}) = {draw(number)}")
            raise
        number += 1
    for verdict, count in verdicts.items():
        soak_count(f"drawn plans {verdict}", count)


def _judged(number: int, cpu_profile: Path) -> list[str]:
    """What became of a drawn file. One in four is proved by the plain proofs too, one in four is simulated."""
    run = _verdict(draw(number))
    if isinstance(run, str):
        return [run]
    program = compile_run(run)
    prove(program)
    if number % 4 == 0:
        prove_expanded(program)
        return ["proved", "proved twice"]
    if number % 4 == 1:
        return ["proved", _simulated(run, cpu_profile)]
    return ["proved"]


def _simulated(run: Run, cpu_profile: Path) -> str:
    try:
        simulated = api.simulate(run, profile=cpu_profile if run.cluster.device == "cpu" else None)
    except InputError:
        return "refused by the forecast"  # for the profile's sake: none of the card, or none of its links
    assert api.forecast_of(simulated).step_time_s > 0
    assert len(simulated.timeline()) > 0
    return "simulated"
