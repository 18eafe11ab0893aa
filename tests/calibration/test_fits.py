"""Lookups and fits on data whose answer is known."""

import math
import time

import pytest

from calibration import fits
from calibration.comm_steps import pooled_delay
from calibration.forms import AttentionForm, RooflineForm, Tile, TileForm
from calibration.lookup import Curve, Line, Scatter
from calibration.timing import in_turn, repeat, summary


def test_a_curve_is_exact_at_its_points_and_log_log_between() -> None:
    curve = Curve.of(Line(1e-6, 1e-9), [(1e3, 1e-5), (1e5, 1e-3)])
    assert curve.seconds(1e3) == 1e-5
    assert curve.seconds(1e5) == 1e-3
    assert curve.seconds(1e4) == pytest.approx(1e-4)


def test_a_curve_continues_with_its_line() -> None:
    curve = Curve.of(Line(1e-6, 1e-9), [(1e3, 2e-6), (1e6, 2e-3)])
    assert curve.seconds(1e7) == pytest.approx(2e-3 * (1e-6 + 1e-2) / (1e-6 + 1e-3))
    assert curve.seconds(0) == pytest.approx(2e-6 * 1e-6 / 2e-6)
    assert curve.overshoot(1e7) == pytest.approx(10)
    assert curve.overshoot(5e4) == 1


def test_a_curve_without_points_is_the_line() -> None:
    assert Curve.of(Line(2e-6, 1e-9)).seconds(1000) == pytest.approx(3e-6)


def test_a_scatter_is_exact_at_points_and_fades_with_distance() -> None:
    def form(m: float, n: float) -> float:
        return m * n

    scatter = Scatter.of([((4, 4), 32.0), ((64, 4), 128.0)], form)  # corrections 2 and 0.5
    assert scatter.correction((4, 4)) == pytest.approx(2.0, rel=1e-12)
    assert scatter.correction((64, 4)) == pytest.approx(0.5, rel=1e-12)
    assert scatter.correction((16, 4)) == pytest.approx(1.0)  # halfway between equal and opposite corrections
    assert scatter.correction((4, 2**40)) == pytest.approx(1.0, abs=1e-3)
    assert scatter.overshoot((128, 4)) == pytest.approx(2.0)
    assert scatter.overshoot((8, 4)) == 1.0


def test_relative_least_squares_recovers_a_line() -> None:
    points = [(float(size), 5e-6 + size / 3e12) for size in (1e4, 1e6, 1e8, 1e9)]
    found, residuals = fits.line(points)
    assert found.launch_s == pytest.approx(5e-6, rel=1e-6)
    assert 1 / found.seconds_per_unit == pytest.approx(3e12, rel=1e-6)
    assert max(map(abs, residuals)) < 1e-6


def test_coefficients_never_go_below_zero() -> None:
    found, _ = fits.line([(1.0, 1.0), (2.0, 4.0), (4.0, 9.0)])  # the free intercept would be negative
    assert found.launch_s == 0.0


def test_monotone_pools_what_is_out_of_order() -> None:
    points = fits.monotone([(1, 1.0), (2, 4.0), (3, 1.0), (4, 8.0), (4, 8.0)])
    assert [size for size, _ in points] == [1, 2, 3, 4]
    assert [time for _, time in points] == pytest.approx([1.0, 2.0, 2.0, 8.0])


def test_the_roofline_form_adds_its_parts() -> None:
    form = RooflineForm(1e-6, 1e12, 1e10)
    assert form.seconds(1e4, 1, 10, 10, 10) == pytest.approx(1e-6 + 2e3 / 1e12 + 1e-6)


def test_tiles_come_in_waves() -> None:
    form = TileForm(0.0, 108e12, 1e15, units=108, prologue_k=0.0, tiles=(Tile(128, 128, 1.0),), splits=(1,))
    one_wave = form.seconds(0, 1, 128 * 108, 128, 4096)
    assert form.seconds(0, 1, 128, 128, 4096) == pytest.approx(one_wave)  # one tile takes as long as 108
    assert form.seconds(0, 1, 128 * 109, 128, 4096) == pytest.approx(2 * one_wave)
    assert one_wave == pytest.approx(2 * 128 * 128 * 4096 / 1e12)


def test_a_deep_narrow_product_splits_its_depth() -> None:
    tiles = (Tile(128, 128, 1.0),)
    whole = TileForm(0.0, 108e12, 1e12, 108, 64, tiles, splits=(1,)).seconds(0, 1, 512, 512, 65536)
    split = TileForm(0.0, 108e12, 1e12, 108, 64, tiles).seconds(0, 1, 512, 512, 65536)
    assert split < whole / 3


def test_a_product_is_never_faster_than_its_bytes() -> None:
    form = TileForm(0.0, 1e15, 1e12, 100, 0, (Tile(128, 128, 1.0),))
    assert form.seconds(1e9, 1, 128, 128, 16) == pytest.approx(1e-3)


def test_attention_is_slower_on_short_sequences_and_few_blocks() -> None:
    form = AttentionForm(0.0, 1e12, short_s=128, units=100)
    assert form.seconds(1e9, 100, 1, 128, 64) == pytest.approx(2e-3)
    assert form.seconds(1e9, 10, 1, 128, 64) == pytest.approx(2e-2)


def test_a_summary_keeps_what_was_undisturbed() -> None:
    quiet = summary([1.0, 1.01, 1.02, 1.0, 1.01])
    assert quiet.best_s == quiet.median_s == 1.01
    assert quiet.kept == 5
    disturbed = summary([1.0, 1.1, 5.0, 5.0, 5.0, 1.0])
    assert disturbed.best_s == 1.0
    assert disturbed.kept == 3
    assert math.isclose(disturbed.median_s, 1.1)


def test_one_thread_is_timed_by_its_own_clock() -> None:
    def sleeps() -> None:
        time.sleep(2e-3)

    assert repeat([sleeps], 0.02, time.thread_time).best_s < 1e-3 < repeat([sleeps], 0.02).best_s


def test_calls_in_turn_alternate_and_rotate_their_inputs() -> None:
    """Each call is warmed up on every input, then they take turns."""
    order: list[str] = []
    runs = [[lambda name=name: order.append(name) for name in names] for names in (("a0", "a1"), ("b0",))]
    timed = in_turn(runs, 0.0, least=3, most=3)
    assert order == ["a0", "a1", "b0"] + ["a0", "b0", "a1", "b0", "a0", "b0"]
    assert [t.repetitions for t in timed] == [3, 3]


def test_a_delay_is_the_mean_of_a_round_and_a_disturbed_round_does_not_count() -> None:
    assert pooled_delay([[0.0, 4.0], [1.0, 3.0], [0.0, 90.0], [1.0, 2.0]]) == 2.0
    assert pooled_delay([[-1.0], [-2.0]]) == 0.0
