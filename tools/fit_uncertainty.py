"""How wrong the entries of a published profile may be: their sigmas, from measurements that did not make them.

A fit's own residuals say little of entries that were derived (a fraction of the copy bandwidth of another card, a
table of one operation for another). So the same procedure is held against what was measured apart:

* kernels: `h200-published`, which is made as the others are, against the points measured on one H200
  (calibration/measured/h200-points.json), by operator;
* in-node all-reduce: two publications of the same sizes, eight GPUs of a kind, from 1 MiB on;
* rings derived from it: against a publication of all-gather and reduce-scatter.

Sigmas are root mean squares of logs of price / measurement, bias included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from calibration import schema, tables
from calibration.collectives import Geometry
from calibration.kernel_times import KernelTimes
from calibration.lookup import Line
from program import KernelCall
from tools import published_rows as published

POINTS = Path(__file__).parents[1] / "calibration" / "measured" / "h200-points.json"
REDUCE = {  # two publications of all-reduce on eight GPUs
    "a100-80gb": (("nccl-0535", "nccl-0545"), ("nccl-0189", "nccl-0208")),
    "h100": (("nccl-0004", "nccl-0032"), ("nccl-0169", "nccl-0188")),
}
RINGS = ("nccl-0693", "nccl-0694")  # all-gather and reduce-scatter on eight H100
ONE_PASS = ("add", "add_backward", "bias_grad", "position_forward")  # priced as 0.90 of the copy bandwidth
LEAST_BYTES = 2**20  # of collectives; of kernels: what no longer is all launch
LEAST_KERNEL_BYTES = 2**25
ANY = {"kind": "derived", "text": ""}


def points() -> dict[str, Any]:
    """What one H200 measured: by class, `operator variant` → rows of extents (memory: bytes) and seconds."""
    found: dict[str, Any] = json.loads(POINTS.read_text(encoding="utf-8"))
    return found


def kernel_sigmas(data: dict[str, Any]) -> dict[str, float]:
    """Sigma of each operator of a profile made as the published ones are, against one H200.

    `*`: of all of them priced by bytes alone, as the class's fit prices what was not measured; `one pass`: of those
    among them that read and write once.
    """
    times = KernelTimes(tables.entries(schema.check(data, "published"), 0, "compiled"))
    logs: dict[str, list[float]] = {}
    measured = points()
    fit = next(part for part in data["memory"] if part["op"] == "*")
    by_bytes = Line(fit["launch_s"], 1.0 / fit["bytes_per_s"])
    for name, rows in measured["attention"].items():
        op, _, variant = name.partition(" ")
        for *shape, seconds in rows:
            _note(logs, op, times.seconds(KernelCall(op, tuple(shape), "bf16", variant)) / seconds)
    for name, rows in measured["memory"].items():
        op = name.partition(" ")[0]
        entry = times.find(KernelCall(op, _unit(op), "bf16"))[0]
        assert entry.memory is not None
        for bytes_, seconds in (row for row in rows if row[0] >= LEAST_KERNEL_BYTES):
            _note(logs, op, entry.memory.seconds(bytes_) / seconds)
            for name in ("*", "one pass") if op in ONE_PASS else ("*",):
                _note(logs, name, by_bytes.seconds(bytes_) / seconds)
    return {op: _rms(found) for op, found in logs.items()}


def _unit(op: str) -> tuple[int, ...]:
    """Extents an operator's entry may be asked for; which does not matter here."""
    if op in ("fill", "copy", "sqnorm", "adamw"):
        return (1,)
    return (1, 1, 1) if op.startswith(("rope", "embedding")) else (1, 1)


def reduce_sigma(name: str) -> float:
    """Between two publications of in-node all-reduce, at the sizes both have."""
    first, second = (
        {row.bytes: row.seconds for row in published.collective_rows(published.between(*ends))} for ends in REDUCE[name]
    )
    return _rms(math.log(first[size] / second[size]) for size in first.keys() & second.keys() if size >= LEAST_BYTES)


def ring_sigma(collectives: list[dict[str, Any]]) -> float:
    """Of derived all-gather and reduce-scatter tables, against a publication that did not make them."""
    file = schema.check(
        {
            "name": "links",
            "device": "cuda",
            "sources": {s["source"]: ANY for s in collectives},
            "collectives": collectives,
        },
        "links",
    )
    links, logs = tables.fabric(file), []
    for row in published.collective_rows(RINGS):
        priced = links.cost(row.op, row.bytes, "bf16", Geometry(row.ranks)).seconds
        logs.append(math.log(priced / row.seconds))
    return _rms(logs)


def _note(logs: dict[str, list[float]], op: str, ratio: float) -> None:
    logs.setdefault(op, []).append(math.log(ratio))


def _rms(logs: Iterable[float]) -> float:
    found = list(logs)
    return math.sqrt(sum(x * x for x in found) / len(found))
