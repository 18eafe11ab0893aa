"""The doctor: what is there, and above all whether our import names are ours."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windtunnel.commands import doctor

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., Any]


def states() -> dict[str, str]:
    return {finding.subject: finding.state for finding in doctor.examine().findings}


def test_what_a_forecast_needs_is_there(wt: Call) -> None:
    called = wt("doctor")
    assert called.code == 0, called.out
    found = states()
    assert found["python"] == found["numpy"] == found["pydantic"] == found["machine"] == "ok"


def test_a_missing_profile_is_a_note_and_a_damaged_one_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path))
    assert states()["cpu profile"] == "note"
    from calibration.profile_paths import cpu_profile_path

    cpu_profile_path().parent.mkdir(parents=True)
    cpu_profile_path().write_text("name: cpu\ngemm: [{source: x}]\n")
    assert states()["cpu profile"] == "bad"


@pytest.mark.parametrize("name", ["kernels", "trainer"])
def test_somebody_elses_package_under_our_name_is_bad(name: str, tmp_path: Path) -> None:
    """The way it happens: another distribution's folder comes first on the path."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import windtunnel; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from windtunnel.cli import main; main(['doctor', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 1, done.stderr
    bad = [finding for finding in json.loads(done.stdout)["findings"] if finding["state"] == "bad"]
    assert [finding["subject"] for finding in bad] == [name]
    assert str(tmp_path) in bad[0]["text"]


def test_a_check_that_fails_itself_is_a_finding() -> None:
    def broken() -> Any:
        raise OSError("no such thing")

    assert doctor._safely(broken) == [doctor.Finding("broken", "bad", "could not be examined: OSError: no such thing")]


def test_the_text_fits_the_page() -> None:
    assert max(map(len, doctor.text(doctor.examine()).splitlines())) <= 100
