"""The published measurements that fits are made of, as typed rows with their ids.

Matmul and attention rates are in `tools/published/gemm.csv`; collectives are in `calibration/published/nccl.csv`, which
`windtunnel validate` reads too. Every row names its own source; `calibration/published/README.md` says what the columns
mean and which rows to distrust. Fits select rows by id and record the ids; nothing is fitted on `runs.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from calibration.collectives import wire_factor

ROOT = Path(__file__).parents[1]
FOLDERS = {"gemm.csv": ROOT / "tools" / "published", "nccl.csv": ROOT / "calibration" / "published"}


@dataclass(frozen=True, slots=True)
class GemmRow:
    """One matmul: FLOP/s reached on (batch, m, n, k)."""

    id: str
    source: str
    gpu: str
    precision: str
    layout: str
    batch: int
    m: int
    n: int
    k: int
    flops_per_s: float

    @property
    def seconds(self) -> float:
        """Time the row stands for."""
        return 2.0 * self.batch * self.m * self.n * self.k / self.flops_per_s


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One attention measurement. `flops_per_s` as printed: causal rows of the flash-attention figures count half the
    square."""

    id: str
    gpu: str
    impl: str
    passes: str
    causal: bool
    b: int
    heads: int
    kv_heads: int
    s: int
    d: int
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective: seconds for `bytes` of the full tensor on `ranks` GPUs of `nodes` nodes."""

    id: str
    source: str
    gpu: str
    op: str
    ranks: int
    nodes: int
    bytes: int
    seconds: float


def between(first: str, last: str, without: Iterable[str] = ()) -> list[str]:
    """Row ids from `first` to `last`, inclusive: between("nccl-0001", "nccl-0032")."""
    stem, low = first.split("-")
    high = int(last.split("-")[1])
    left_out = set(without)
    ids = [f"{stem}-{number:0{len(low)}d}" for number in range(int(low), high + 1)]
    return [row for row in ids if row not in left_out]


def gemm_rows(ids: Iterable[str]) -> list[GemmRow]:
    """Matmul rows by id. Raises KeyError when a row is missing or is something else."""
    found = []
    for row in _pick("gemm.csv", ids):
        peak = float(row["peak_tflops_dense"] or 0)
        rate = float(row["tflops"]) if row["tflops"] else float(row["efficiency"]) * peak
        extents = (int(row["batch"] or 1), int(row["m"]), int(row["n"]), int(row["k"]))
        found.append(
            GemmRow(row["id"], row["source"], row["gpu"], row["precision"], row["layout"], *extents, rate * 1e12)
        )
    return found


def attention_rows(ids: Iterable[str]) -> list[AttentionRow]:
    """Attention rows by id."""
    found = []
    for row in _pick("gemm.csv", ids):
        peak = float(row["peak_tflops_dense"] or 0)
        rate = float(row["tflops"]) if row["tflops"] else float(row["efficiency"]) * peak
        heads, d = int(row["heads"]), int(row["head_dim"].split()[0])
        shape = (int(row["batch"]), heads, int(row["kv_heads"] or heads), int(row["seq_len"]), d)
        causal = "yes" in row["causal"]
        found.append(AttentionRow(row["id"], row["gpu"], row["impl"], row["pass"], causal, *shape, rate * 1e12))
    return found


def collective_rows(ids: Iterable[str]) -> list[CollectiveRow]:
    """Collective rows by id; the time from the printed time, else from the printed bandwidth."""
    found = []
    for row in _pick("nccl.csv", ids):
        ranks, bytes_ = int(row["n_gpus"]), int(row["size_bytes"])
        if row["time_us"]:
            seconds = float(row["time_us"]) * 1e-6
        elif row["algbw_gbytes_s"]:
            seconds = bytes_ / (float(row["algbw_gbytes_s"]) * 1e9)
        else:
            seconds = wire_factor(row["collective"], ranks) * bytes_ / bus_bytes_per_s(row["id"])
        head = (row["id"], row["source"], row["gpu"], row["collective"])
        found.append(CollectiveRow(*head, ranks, int(row["n_nodes"] or 1), bytes_, seconds))
    return found


def bus_bytes_per_s(row_id: str) -> float:
    """Printed bus bandwidth of a row of nccl.csv (copies: their rate)."""
    row = next(iter(_pick("nccl.csv", [row_id])))
    return float(row["busbw_gbytes_s"]) * 1e9


def memory_bytes_per_s(row_id: str) -> float:
    """Measured device memory bandwidth of a row of gemm.csv, which prints it in the notes as '1.61 TB/s measured
    ...'."""
    row = next(iter(_pick("gemm.csv", [row_id])))
    if row["kind"] != "hbm_bandwidth":
        raise KeyError(f"{row_id} is no memory bandwidth but {row['kind']}")
    number, unit = row["notes"].split()[:2]
    if unit != "TB/s":
        raise ValueError(f"{row_id} prints its bandwidth in {unit}, not TB/s")
    return float(number) * 1e12


def _pick(name: str, ids: Iterable[str]) -> Iterator[dict[str, str]]:
    table = _table(name)
    for row_id in ids:
        if row_id not in table:
            raise KeyError(f"{name} has no row {row_id}")
        yield table[row_id]


@cache
def _table(name: str) -> dict[str, dict[str, str]]:
    lines = (FOLDERS[name] / name).read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in csv.DictReader(lines)}
