"""Links measured on GPUs, from points to profile sections (the measurement itself: tests/gpu)."""

from calibration import comm_nccl, measured
from calibration.calibrate import LINKS, _with_links
from calibration.comm_bench import CommPoint
from calibration.timing import Timed


def test_measured_tables_replace_borrowed_ones_of_the_same_ranks(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 28, 9))
    points = [
        CommPoint(op, "*", size, Timed(8e-6 + size / 4e11, 0.01, 5, 5, 8e-6 + size / 4e11))
        for op in comm_nccl.INSTRUCTIONS
        for size in comm_nccl.SIZES
    ]
    lender = {"gemm": [], "sources": {"reduce": {}}}
    lender |= {"collectives": [{"source": "reduce", "op": "all_reduce", "ranks": ranks} for ranks in (2, 8)]}
    data = {"machine": {"gpu": "X"}, "sources": {"here": {"kind": "measured", "text": "", "date": "2026-11-30"}}}
    data |= {"host": [], "gemm": []}
    data = measured.borrowed(_with_links(data, 2, points, {"AR": 4e-5, "SEND": 6e-5, "RECV": 6e-5}), lender)
    ranks = sorted((entry["op"], entry["ranks"], entry["source"]) for entry in data["collectives"])
    assert ranks == sorted([("all_reduce", 8, "reduce"), *((op, 2, LINKS) for op in comm_nccl.INSTRUCTIONS)])
    reduce = next(entry for entry in data["collectives"] if entry["op"] == "all_reduce" and entry["ranks"] == 2)
    assert abs(reduce["bus_bytes_per_s"] / 4e11 - 1) < 0.05  # 2(n-1)/n = 1 for two ranks
    assert {entry["kind"]: entry["base_s"] for entry in data["host"]} == {"AR": 4e-5, "SEND": 6e-5, "RECV": 6e-5}
    assert "NCCL 2.28.9" in data["sources"][LINKS]["text"]


def test_the_slowest_rank_counts_in_every_batch() -> None:
    timed = comm_nccl._slowest([[1.0, 5.0, 3.0], [2.0, 1.0, 4.0]])
    assert timed.median_s == 4.0
