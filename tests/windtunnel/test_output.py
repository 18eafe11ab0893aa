"""What goes where: results to stdout, the rest to stderr, progress only to a person."""

from pathlib import Path

import pytest

from program.errors import InputError
from windtunnel import output
from windtunnel.folders import RunFolder, new_folder


def test_a_pipe_gets_100_columns_no_colour_and_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.width() == 100
    assert not output.colour()
    output.progress("working")
    with output.waiting("working"):
        pass
    output.note("look")
    assert capsys.readouterr() == ("", "look\n")


def test_many_lines_are_written_in_blocks_and_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_lines(str(number) for number in range(4500))
    assert capsys.readouterr().out.splitlines() == [str(number) for number in range(4500)]


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "runs" / "0007").mkdir(parents=True)
    (tmp_path / "runs" / "0x").mkdir()
    assert [new_folder(tmp_path / "runs").name for _ in range(2)] == ["0008", "0009"]


def test_a_run_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        new_folder(tmp_path / "runs")


def test_a_folder_without_recorded_steps(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    for name in ("run.yaml", "steps.jsonl"):
        (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=r"no step was recorded \(train.record_every"):
        RunFolder.open(tmp_path).timeline()
