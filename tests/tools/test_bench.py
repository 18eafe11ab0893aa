"""What the benchmark makes of its measurements; the measuring itself needs a GPU."""

import pytest
import torch

from calibration.timing import Time
from tools import bench
from tools.bench_case import Case


@pytest.fixture
def clock(monkeypatch):
    """Each call is the number of ms that it is said to take; what remains is scheduling and arithmetic."""
    asked = []

    def kernel_ms(call, *, budget_ms):
        asked.append((call(), budget_ms))
        return Time(call() * 0.9, float(call()), call() * 1.1)

    monkeypatch.setattr(bench, "kernel_ms", kernel_ms)
    monkeypatch.setattr(bench, "peak_gib", lambda call: 0.5)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return asked


def test_share_of_the_copy_and_target(clock):
    case = Case("norm", "2x2", {"ours": lambda: 2, "eager": lambda: 4}, bytes=8e9, target=0.95)
    ours, eager = bench.measure(case, copy=4.2)
    assert ours["tb_s"] == pytest.approx(4.0)
    assert ours["of_copy"] == pytest.approx(4.0 / 4.2)
    assert ours["met"] is True
    assert "met" not in eager
    assert "95%: met" in bench.show(ours)
    assert "MISSED" in bench.show(bench.measure(case, copy=4.3)[0])


def test_contestants_take_turns(clock):
    calls = {"ours": lambda: 41, "peer": lambda: 50}
    case = Case("head", "8x8", calls, flops=41e9, target=40.0, target_ms=True, memory=True, budget_ms=800.0, rounds=2)
    ours, _ = bench.measure(case, copy=4.0)
    assert clock == [(41, 400.0), (50, 400.0), (41, 400.0), (50, 400.0)]
    assert (ours["p50_ms"], ours["tflops"], ours["peak_gib"], ours["met"]) == (41.0, 1.0, 0.5, False)
    assert "40 ms: MISSED" in bench.show(ours)


def test_a_contestant_without_memory_is_left_out(clock, capsys):
    def starved():
        raise torch.OutOfMemoryError("none left")

    case = Case("head", "8x8", {"ours": lambda: 1, "peer": starved}, flops=1e9, rounds=3)
    assert [row["who"] for row in bench.measure(case, copy=4.0)] == ["ours"]
    assert capsys.readouterr().out == "  head 8x8 peer: out of memory\n"


def test_small_calls_are_judged_unless_in_brackets(clock, monkeypatch, capsys):
    calls = {"norm": lambda: 1, "slow": lambda: 2, "(torch: add)": lambda: 3}
    monkeypatch.setattr(bench, "small_calls", lambda: calls)
    monkeypatch.setattr(bench, "host_us", lambda call: 30.0 if call() == 1 else 50.0)
    monkeypatch.setattr(bench, "warm_ms", lambda call: 0.002)
    result = {"small_calls": []}
    bench.run_small_calls(result)
    lines = capsys.readouterr().out.splitlines()
    assert [("met" in line, "MISSED" in line) for line in lines] == [(True, False), (False, True), (False, False)]
    assert [row["device_us"] for row in result["small_calls"]] == [2.0] * 3
