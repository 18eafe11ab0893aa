"""The public API: the same answers as the command line, from Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from plan.run import load
from program.errors import InputError
from tests.windtunnel.conftest import TINY
from tests.windtunnel.run_folders import profile_file, run_folder
from tests.windtunnel.test_cli import python

Call = Callable[..., Any]


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(callable(getattr(windtunnel, name)) for name in windtunnel.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'fligh'"):
        windtunnel.fligh  # noqa: B018


def test_importing_windtunnel_imports_nothing_of_ours_or_others() -> None:
    code = (
        "import sys, windtunnel\n"
        "print({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'__main__'})"
    )
    found = python(code).stdout
    assert "windtunnel" in found
    for name in ("plan", "numpy", "pydantic", "typer", "rich", "torch"):
        assert f"'{name}'" not in found


def test_forecast_takes_a_file_or_a_run_and_a_profile_by_path_or_value(run_file: Call, tmp_path: Path) -> None:
    from calibration.profile import load_profile

    path, profile = run_file(), str(profile_file(tmp_path / "p.yaml"))
    by_file = windtunnel.forecast(path, ["plan.recompute=full"], profile=profile)
    by_run = windtunnel.forecast(load(path, ["plan.recompute=full"]), profile=load_profile(profile))
    assert by_file == by_run
    assert by_file.time.recompute > 0


def test_a_slower_profile_gives_a_slower_forecast(run_file: Call, tmp_path: Path) -> None:
    from calibration.profile import load_profile

    profile = load_profile(str(profile_file(tmp_path / "p.yaml")))
    once, thrice = (windtunnel.forecast(run_file(), profile=profile.scaled(factor)) for factor in (1.0, 3.0))
    assert thrice.step_time_s == pytest.approx(3 * once.step_time_s, rel=1e-6)
    assert thrice.profile_hash != once.profile_hash


def test_overrides_of_a_run_are_refused(run_file: Call) -> None:
    with pytest.raises(InputError, match=r"dataclasses\.replace"):
        windtunnel.forecast(load(run_file()), ["plan.recompute=full"])


def test_an_unknown_convention_is_refused(run_file: Call, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exact, megatron, palm"):
        windtunnel.forecast(run_file(), profile=str(profile_file(tmp_path / "p.yaml")), flops="linpack")


def test_compare_and_check_take_folders(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", TINY, profile_file(tmp_path / "p.yaml"), steps=40)
    assert windtunnel.compare(folder).step_time.error == pytest.approx(0, abs=1e-9)
    assert windtunnel.check(folder, folder).passed
