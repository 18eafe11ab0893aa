"""Numbers and tables as text."""

import json
from pathlib import Path

import pytest

from program.errors import InputError
from reports import tables
from reports.trace import write_trace
from tests.reports.simulations import measured, predicted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31.42, "31.4 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 µs"), (3e-9, "3 ns"), (0.0, "0"), (1234.5, "1,234 s"),
        (None, "-"),
    ],
)  # fmt: skip
def test_seconds_have_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert tables.seconds(value) == text


def test_percent_and_count() -> None:
    assert tables.percent(0.1234) == "12.3 %"
    assert tables.percent(-0.1, signed=True) == "-10.0 %"
    assert tables.percent(None) == "-"
    assert tables.count(175e9) == "175 B"
    assert tables.count(950) == "950"


def test_a_table_is_plain_text_within_the_width() -> None:
    text = tables.render([tables.table("T", ("name", "n"), [("x" * 200, "1.0")])], width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text


def test_brackets_in_a_cell_are_not_markup() -> None:
    assert "[bold]" in tables.render([tables.table("", ("a",), [("[bold]",)]), "[red]text"])


def test_a_trace_holds_both_timelines_and_one_step_of_each(tmp_path: Path) -> None:
    path = write_trace([predicted(), measured(steps=3)], tmp_path / "deep" / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 12
    assert {event["args"]["step"] for event in slices} == {0, 2}


def test_a_gzipped_trace_has_the_same_bytes_twice(tmp_path: Path) -> None:
    first = write_trace([predicted()], tmp_path / "a.json.gz").read_bytes()
    assert first[:2] == b"\x1f\x8b"
    assert write_trace([predicted()], tmp_path / "b.json.gz").read_bytes() == first


def test_a_trace_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace([predicted()], tmp_path / "file" / "trace.json")
