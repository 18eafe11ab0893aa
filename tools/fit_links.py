"""Sections of a published profile that are about links: in-node tables from rows, the network between nodes, copies.

A table is what was printed, by size and ranks. Where a GPU count or an operation was not published it is derived from
one that was, by the ratio of published peak bandwidths, and its source says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calibration import fits
from calibration.collectives import steps, wire_factor
from tools.fit_search import Fit, search
from tools.published_rows import CollectiveRow, collective_rows

Section = dict[str, Any]


def table(rows: Sequence[CollectiveRow], source: str, step_latency_s: float, sigma: float) -> Section:
    """One in-node table from rows of one operation and rank count."""
    op, ranks = rows[0].op, rows[0].ranks
    points = fits.monotone([(row.bytes, row.seconds) for row in rows])
    return _section(op, ranks, points, source, step_latency_s, sigma)


def scaled_table(base: Section, op: str, ranks: int, bus_bytes_per_s: float, source: str) -> Section:
    """A table that was not published: the shape of `base` with its bandwidth part scaled so that large messages reach
    `bus_bytes_per_s`, and its latency part scaled with the steps of the ring."""
    own_latency = base["step_latency_s"] * steps(base["op"], base["ranks"])
    latency = base["step_latency_s"] * steps(op, ranks)
    size, slowest = base["points"][-1]
    large = wire_factor(op, ranks) * size / bus_bytes_per_s
    scale = large / (slowest - own_latency)
    points = [(b, latency + max(0.0, t - own_latency) * scale) for b, t in base["points"]]
    return _section(op, ranks, fits.monotone(points), source, base["step_latency_s"], 2 * base["sigma"])


def _section(
    op: str, ranks: int, points: Sequence[tuple[float, float]], source: str, step_latency_s: float, sigma: float
) -> Section:
    size, slowest = points[-1]
    return {
        "source": source,
        "op": op,
        "ranks": ranks,
        "sigma": rounded(sigma),
        "step_latency_s": rounded(step_latency_s),
        "bus_bytes_per_s": rounded(wire_factor(op, ranks) * size / slowest),
        "points": [[float(b), rounded(t)] for b, t in points],
    }


def fit_tree(ids: Sequence[str], node_bytes_per_s: float, inside_latency_s: float) -> Fit:
    """Latency of a tree level, and the cost of pipelining chunks along it, from all-reduce rows across nodes.

    2 ceil(log2 nodes) levels, the ring's bytes over the node's NICs at `node_bytes_per_s`, and `tree_pipeline` times
    the geometric mean of the two.
    """
    rows = collective_rows(ids)

    def predicted(values: dict[str, float]) -> list[float]:
        times = []
        for row in rows:
            levels = 2 * math.ceil(math.log2(row.nodes)) * values["tree_latency_s"]
            transfer = wire_factor(row.op, row.ranks) * row.bytes / node_bytes_per_s
            times.append(inside_latency_s + levels + transfer + values["tree_pipeline"] * math.sqrt(levels * transfer))
        return times

    return search(
        predicted, [row.seconds for row in rows], {"tree_latency_s": (2e-6, 60e-6), "tree_pipeline": (0.0, 2.0)}
    )


def rounded(value: float) -> float:
    """Four significant digits: what a fit of published rows can claim."""
    return float(f"{value:.4g}")
