"""The scoreboard as people read it: one line a source, then what was left out and why, then the worst rows."""

from __future__ import annotations

from collections.abc import Sequence

from reports.tables import gib, percent, render, seconds, spaced, table
from simulator.interval import LEVEL
from validation.feasibility import Feasibility
from validation.score import Errors, RowScore, Scoreboard, SourceScore

COLUMNS = ("source", "rows", "|e|", "median", "bias", "worst", "rank", "inside", "width", "mem |e|", "bias")
TITLE = (
    "Forecast against published measurements, in percent: e = (forecast − measured) / measured; "
    f"rows: scored of all; inside: share measured within the stated interval, which is meant to hold {LEVEL:.0%}, "
    "width: of that interval"
)
OUTCOMES = ("source", "ran", "fit", "borderline", "failed", "not fit", "borderline", "undecided")
MARKDOWN = ("source", "rows", "mean error of step time", "bias", "inside interval", "mean error of memory", "bias")


def text(board: Scoreboard, width: int = 100, worst: int = 10, rows: bool = False) -> str:
    """The whole scoreboard; `worst` rows named, or with `rows` every one."""
    scored = [source for source in board.sources if source.scored]
    lines = [line for source in scored for line in _lines(source)]
    parts: list[object] = [TITLE, table("", COLUMNS, lines) if lines else "no row scored", _profiles(board)]
    if board.feasibility:
        counts = [_outcomes(found) for found in board.feasibility]
        parts.append(table("Runs by outcome", OUTCOMES, counts))
    left_out = [(source.source, why.reason, str(why.rows)) for source in board.sources for why in source.unscored]
    if left_out:
        parts.append(table("Rows not scored", ("source", "why", "rows"), left_out, left=2))
    read = [(source.source, note) for source in scored for note in (source.reading, *source.presumed)]
    if read:
        parts.append(table("How rows are read, and what was presumed", ("source", "what"), read, left=2))
    shown = list(board.rows) if rows else _worst(board.rows, worst)
    if shown:
        parts.append(_rows("Rows" if rows else "Worst rows", shown))
    return render(spaced(parts), width)  # type: ignore[arg-type]


def markdown(board: Scoreboard) -> str:
    """The table of a README: one line a source, with anomalous rows left out in brackets."""
    lines = [f"| {' | '.join(MARKDOWN)} |", f"|{' --- |' * len(MARKDOWN)}"]
    for source in (source for source in board.sources if source.scored):
        time, ordinary, memory = source.step_time, source.step_time_ordinary, source.memory
        cells = [source.source, f"{source.scored} of {source.rows}", "-", "-", "-", "-", "-"]
        if time is not None:
            apart = "" if ordinary is None else f" ({ordinary.rows} ordinary: {_percent(ordinary.mean_absolute)} %)"
            cells[2] = f"{_percent(time.mean_absolute)} %{apart}"
            cells[3:5] = [f"{_signed(time.bias)} %", f"{_percent(time.inside_interval)} %"]
        if memory is not None:
            cells[5:] = [f"{_percent(memory.mean_absolute)} %", f"{_signed(memory.bias)} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _lines(source: SourceScore) -> list[Sequence[str]]:
    lines = [_line(source.source, f"{source.scored}/{source.rows}", source.step_time, source.memory)]
    if source.step_time_ordinary is not None and source.step_time is not None:
        ordinary = f"{source.step_time_ordinary.rows}/{source.rows}"
        lines.append(_line("  ordinary", ordinary, source.step_time_ordinary, None))
    return lines


def _line(name: str, scored: str, time: Errors | None, memory: Errors | None) -> Sequence[str]:
    cells = ["-"] * 7
    if time is not None:
        rank = "-" if time.rank_correlation is None else f"{time.rank_correlation:.2f}"
        inside = [_percent(time.inside_interval), _percent(time.interval_width)]
        cells = [*_errors(time), _signed(time.worst), rank, *inside]
    sizes = ["-"] * 2 if memory is None else [_percent(memory.mean_absolute), _signed(memory.bias)]
    return [name, scored, *cells, *sizes]


def _errors(found: Errors) -> list[str]:
    return [_percent(found.mean_absolute), _percent(found.median_absolute), _signed(found.bias)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f}"


def _signed(value: float) -> str:
    return f"{value * 100:+.1f}"


def _outcomes(found: Feasibility) -> Sequence[str]:
    numbers = (
        *(found.ran, found.ran_forecast_to_fit, found.ran_borderline),
        *(found.failed, found.failed_forecast_not_to_fit, found.failed_borderline),
        found.undecided,
    )
    return [found.source, *(str(number) for number in numbers)]


def _profiles(board: Scoreboard) -> str:
    sentences = []
    for used in board.profiles:
        named = f"names {len(used.calibrated_on) or 'none'} of these rows as calibration data"
        sentences.append(f"profile {used.profile}: {used.free_parameters} free parameters; {named}")
    return "\n".join(sentences)


def _worst(rows: Sequence[RowScore], number: int) -> list[RowScore]:
    timed = [row for row in rows if row.step_time_error is not None]
    return sorted(timed, key=lambda row: -abs(row.step_time_error or 0.0))[:number]


def _rows(title: str, rows: Sequence[RowScore]) -> object:
    return table(title, ("row", "measured", "forecast", "e", "memory", "forecast", "e"), [_row(row) for row in rows])


def _row(row: RowScore) -> Sequence[str]:
    return [
        row.id + (" (anomalous)" if row.anomalous else ""),
        seconds(row.measured_step_time_s),
        seconds(row.predicted_step_time_s),
        percent(row.step_time_error, True),
        "-" if row.measured_memory_gib is None else gib(row.measured_memory_gib),
        gib(row.predicted_memory_gib),
        percent(row.memory_error, True),
    ]
