"""Numbers as people write them: 5e8, 1_000_000, "80 GiB", "2 us", "200 Gb/s".

YAML 1.1 reads `5e8` as a string and JSON writers emit `5.0e8` for counts, so every number of a run file passes
through here, once. Inside the program numbers are plain ints and floats in the unit their name says; this file is
the only place that knows units. Every function raises ValueError with a sentence that quotes the value.
"""

import math
import re

from program.nearest import LARGEST, TOO_LARGE, shown

_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d+)?", re.ASCII)

BYTES: dict[str, float] = {
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "PB": 1e15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
    "b": 1 / 8,
    "kb": 125,
    "Kb": 125,
    "Mb": 125e3,
    "Gb": 125e6,
    "Tb": 125e9,
}
SECONDS: dict[str, float] = {
    "ps": 1e-12,
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
BYTES_PER_S: dict[str, float] = {f"{unit}/s": factor for unit, factor in BYTES.items()} | {
    "Gbps": 125e6,
    "Mbps": 125e3,
    "Tbps": 125e9,
}


def number(value: object) -> float:
    """A finite number of at most LARGEST in size: an int or float, or a string such as '5e8' or '1_000_000'. Ints stay
    ints, so large counts stay exact."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    if isinstance(value, str):
        text = value.strip()
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"{shown(value)} is not a number (write 5e8, 1_000_000 or 0.1)")
        plain = text.replace("_", "")
        whole = re.fullmatch(r"[+-]?\d+", plain, re.ASCII) and len(plain) < 100
        value = int(plain) if whole else float(plain)
    if not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if abs(value) > LARGEST:
        raise ValueError(f"{shown(value)} {TOO_LARGE}")
    return value


def integer(value: object) -> int:
    """A whole number; 5e8 and 4.0 count as whole, 5.5 does not."""
    given = number(value)
    if given != int(given):
        raise ValueError(f"{value} is not a whole number; the nearest are {math.floor(given)} and {math.ceil(given)}")
    return int(given)


def quantity(value: object, unit: str, units: dict[str, float]) -> float:
    """A number in `unit`: a bare number is already in it, '80 GB' is converted. `units` maps each legal unit to its
    SI size."""
    if isinstance(value, str):
        text = value.strip()
        found = _NUMBER.match(text)
        suffix = text[found.end() :].strip() if found else ""
        if found and suffix:
            if suffix not in units:
                raise ValueError(f"{value!r} has an unknown unit {suffix!r}; use one of {', '.join(units)}")
            return number(found.group()) * units[suffix] / units[unit]
    return number(value)


def gib(value: object) -> float:
    """A memory in GiB; '80 GB' is 74.5."""
    return quantity(value, "GiB", BYTES)


def megabytes(value: object) -> float:
    """A size in MB (1e6 bytes)."""
    return quantity(value, "MB", BYTES)


def microseconds(value: object) -> float:
    """A time in µs; '1 ms' is 1000."""
    return quantity(value, "us", SECONDS)


def gb_per_s(value: object) -> float:
    """A bandwidth in GB/s (1e9 bytes); '200 Gb/s' is 25."""
    return quantity(value, "GB/s", BYTES_PER_S)
