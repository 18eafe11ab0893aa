"""Tables and numbers as people read them: three digits and a unit, errors with a sign, never wider than the page.

`render` turns paragraphs and rich tables into one text, so that a report can be printed, saved and tested alike.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float | None) -> str:
    """`31.4 s`, `12.3 ms`, `4.56 µs`; minutes and more stay in seconds."""
    if value is None or value != value:
        return "-"
    for size, unit in TIME_UNITS:
        if abs(value) >= size:
            return f"{digits(value / size)} {unit}"
    return "0" if value == 0 else f"{value * 1e9:.0f} ns"


def milliseconds(value: float | None) -> str:
    """A column of times in milliseconds, without the unit: `12.345`."""
    return "-" if value is None or value != value else f"{value * 1e3:,.3f}"


def digits(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)
    if 0 < size < 1:
        return f"{value:.{min(9, 2 - math.floor(math.log10(size)))}f}"
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{places}f}"


def duration(value_s: float) -> str:
    """A long time in the unit people plan in: `95.2 days`, `3.40 h`, `12.0 min`, `21.6 s`."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if abs(value_s) >= size:
            return f"{digits(value_s / size)} {unit}"
    return seconds(value_s)


def percent(value: float | None, signed: bool = False) -> str:
    """A fraction as a percentage: `12.3 %`, or `+12.3 %`."""
    if value is None or value != value:
        return "-"
    return f"{value * 100:+.1f} %" if signed else f"{value * 100:.1f} %"


def count(value: float) -> str:
    """`175.0 B`, `8.03 B`, `3.4 M`: parameters and tokens."""
    for size, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{digits(value / size)}{unit}"
    return f"{value:,.0f}" if float(value).is_integer() else digits(value)


def gib(value: float) -> str:
    """GiB with as many digits as matter: `59.3`, `0.021`."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, last_left: bool = False
) -> RenderableType:
    """A table whose first `left` columns (and the last, if `last_left`) are text, and whose others are numbers."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=any(columns), box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(columns):
        if place < left or (last_left and place == len(columns) - 1):
            made.add_column(Text(name), overflow="fold")
        else:
            made.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return Group(Text(title, style="bold"), made) if title else made


def spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    """The parts with an empty line between each two."""
    return [item for part in parts for item in (part, "")][:-1]


def render(parts: Iterable[RenderableType], width: int = 100, colour: bool = False) -> str:
    """Paragraphs and tables, one below the other, as text of `width` columns."""
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
