"""The shipped profiles are what the stated rows give, and stay within the residuals they state."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibration import fit_framework_host, fit_published, honesty, published, workspace
from calibration.collectives import Geometry
from calibration.fit_sections import EAGER, H100_FP8, PCIE, TREE, ranges
from calibration.frameworks import FRAMEWORKS
from calibration.profile import load_profile
from calibration.profile_paths import shipped_profiles
from calibration.traffic import eager_table
from plan import presets
from plan.compile import compile_run
from plan.program import KernelCall
from plan.run import load
from simulator.flight import fly
from simulator.memory import fly_memory

MEASURED = Path(__file__).parents[2] / "calibration" / "measured"
MAKERS = {"a100-80gb": fit_published.a100, "h100": fit_published.h100, "h200-published": fit_published.h200}
# Mean absolute relative error a fit may have, by source.
BOUNDS = {
    "gemm": 0.08,
    "gemm-shapes": 0.04,
    "gemm-weight": 0.05,
    "attention": 0.02,
    "attention-cudnn": 0.06,
    "attention-triton": 0.01,
    "network": 0.09,
}


def test_the_three_cards_are_shipped_and_what_one_h200_measured() -> None:
    assert shipped_profiles() == sorted([*MAKERS, "h200"])
    assert load_profile("h200").provenance["here"].kind == "measured"


@pytest.mark.parametrize("name", MAKERS)
def test_a_shipped_file_is_what_its_rows_give(name: str) -> None:
    fresh = yaml.safe_load(yaml.safe_dump(MAKERS[name]()))
    shipped = yaml.safe_load((fit_published.FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert_close(fresh, shipped, name)


def assert_close(a: Any, b: Any, where: str) -> None:
    """Equal, numbers to 1 %: a simplex may end a hair elsewhere on another machine."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_close(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_close(x, y, f"{where}[{index}]")
    elif isinstance(a, float):
        assert math.isclose(a, b, rel_tol=0.01, abs_tol=1e-12), f"{where}: {a} against {b}"
    else:
        assert a == b, where


@pytest.mark.parametrize("name", MAKERS)
def test_residuals_are_within_bounds_and_every_fit_has_fewer_parameters_than_rows(name: str) -> None:
    profile = load_profile(name)
    for key, source in profile.provenance.items():
        if source.residuals:
            assert source.residuals["mean"] < BOUNDS[key], (name, key)
            fitted = set(source.parameters) - {"back", "share", "sustained_over_short", "efficiency_bf16"}
            assert len(fitted) <= source.residuals["rows"]
        if source.kind == "published":
            assert source.rows or "arXiv" in source.text
    assert profile.free_parameters <= 20


@pytest.mark.parametrize("name", MAKERS)
def test_every_source_is_used_and_every_row_exists(name: str) -> None:
    profile = load_profile(name)
    for source in profile.provenance.values():
        for entry in source.rows:
            first, _, last = entry.partition("..")
            ids = published.between(first, last or first)
            table = "gemm.csv" if first.startswith("gemm") else "nccl.csv"
            assert [row["id"] for row in published._pick(table, ids)] == ids


def test_a100_sustains_what_its_rows_say() -> None:
    profile = load_profile("a100-80gb")
    call = KernelCall("gemm", (8192, 8192, 8192), "bf16", "nt")
    rate = 2 * 8192**3 / profile.kernel_s(call)
    assert rate == pytest.approx(253.7e12, rel=1e-3)  # gemm-0024
    assert profile.covers(call).status == "inside"


def test_a_weight_gradient_that_accumulates_is_a_little_slower() -> None:
    profile = load_profile("a100-80gb")
    shape = (12288, 6144, 2048)
    plain = profile.kernel_s(KernelCall("gemm", shape, "bf16", "tn"))
    accumulating = profile.kernel_s(KernelCall("gemm", shape, "bf16", "tn+acc32"))
    assert 1.0 < accumulating / plain < 1.2


@pytest.mark.parametrize(("ranks", "row"), [(2, "nccl-0475"), (4, "nccl-0497"), (8, "nccl-0541")])
def test_in_node_all_reduce_is_the_published_table(ranks: int, row: str) -> None:
    measured = published.collective_rows([row])[0]
    assert (measured.ranks, measured.bytes) == (ranks, 64 * 2**20)
    cost = load_profile("a100-80gb").collective("all_reduce", measured.bytes, "bf16", Geometry(ranks))
    assert cost.seconds == pytest.approx(measured.seconds, rel=2e-3)


def test_a_ring_over_nodes_reaches_the_published_rate() -> None:
    profile = load_profile("a100-80gb")
    cost = profile.collective("all_reduce", 2**32, "bf16", Geometry(32, nodes=4))
    bus = cost.bus_bytes / cost.seconds
    assert bus == pytest.approx(192e9, rel=0.03)  # nccl-0260, 8 NICs of 200 Gb/s


def test_hopper_scans_over_nodes_are_met_at_large_sizes() -> None:
    profile = load_profile("h100")
    large = [row for row in published.collective_rows(TREE) if row.bytes >= 2**30]
    assert len(large) > 20
    for row in large:
        cost = profile.collective("all_reduce", row.bytes, "bf16", Geometry(row.ranks, nodes=row.nodes))
        assert cost.seconds == pytest.approx(row.seconds, rel=0.12), row.id


def test_cudnn_is_faster_than_flash_on_hopper() -> None:
    profile = load_profile("h200-published")
    shape = (2, 32, 32, 8192, 128)
    flash, cudnn = (profile.kernel_s(KernelCall("attention_forward", shape, "bf16", v)) for v in ("flash", "cudnn"))
    assert 1.5 < flash / cudnn < 2.2
    assert 2 * 2 * 2 * 32 * 8192**2 * 128 / 2 / flash == pytest.approx(317e12, rel=0.1)


def test_memory_bound_operators_run_at_their_share_of_the_copy() -> None:
    profile = load_profile("h200-published")
    call = KernelCall("swiglu_forward", (16384, 14336), "bf16")
    bandwidth = 3 * 16384 * 14336 * 2 / profile.kernel_s(call)
    assert 0.96 * 4.27e12 < bandwidth < 4.27e12


def test_eager_operators_are_priced_by_what_their_references_move_and_launch() -> None:
    counted = eager_table()
    assert counted.keys() == EAGER.keys()
    for op, (launches, ratio, alive) in counted.items():
        assert (launches, pytest.approx(ratio, abs=0.006)) == EAGER[op], op
        assert workspace.EAGER.get(op, 0.0) == pytest.approx(alive, abs=0.006), op
    profile = load_profile("h100")
    call = KernelCall("rmsnorm_forward", (8192, 8192), "bf16")
    eager, compiled = profile.for_kernels("eager"), profile.for_kernels("compiled")
    assert 9 < eager.kernel_s(call) / compiled.kernel_s(call) < 12
    assert eager.host_issue_s("F", [call]) > 9 * 6.6e-6 > compiled.host_issue_s("F", [call]) > 6.6e-6


@pytest.mark.parametrize(("model", "measured_s"), [("small", 0.21438), ("large", 0.24725)])
def test_eager_training_on_one_h200_is_forecast_from_counted_traffic(model: str, measured_s: float) -> None:
    """No eager kernel was measured for it: calibration/measured/h200-training.json against references counted."""
    overrides = ["plan.kernels=eager", "cluster.profile=h200-published"]
    run = load(Path(__file__).parents[2] / "examples" / f"h200-llama-{model}.yaml", overrides)
    flight = fly(compile_run(run), run, load_profile("h200-published"))
    assert flight.step_time_s == pytest.approx(measured_s, rel=0.05)
    assert flight.interval.low_s < measured_s < flight.interval.high_s


@pytest.mark.parametrize("model", ["small", "large"])
@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
def test_peaks_of_training_on_one_h200_are_forecast(model: str, kernels: str) -> None:
    """Eager ones from temporaries counted on the references; compiled ones hold one fp32 copy of the logits."""
    measured = json.loads((MEASURED / "h200-training.json").read_text(encoding="utf-8"))["runs"][f"{model}-{kernels}"]
    run = load(Path(__file__).parents[2] / "examples" / f"h200-llama-{model}.yaml", [f"plan.kernels={kernels}"])
    profile = load_profile("h200")
    (stage,) = compile_run(run).classes
    memory = fly_memory(stage, profile.allocator, profile.workspace(kernels))
    assert memory.peak_allocated_bytes / 2**30 == pytest.approx(measured[0]["peak_allocated_gib"], rel=0.006)


def test_a_framework_is_priced_by_its_own_launches_and_passes() -> None:
    """Its SwiGLU moves 5 passes where one kernel moves 3, and adds weight gradients in a kernel apart."""
    profile = load_profile("h100")
    theirs = profile.with_kernels_of(FRAMEWORKS["nanotron"])
    act = KernelCall("swiglu_forward", (16384, 8192), "bf16")
    one_pass = profile.for_kernels("eager").kernel_s(KernelCall("add", (16384, 8192), "bf16"))  # 3 passes
    assert theirs.kernel_s(act) == pytest.approx(5 / 3 * one_pass, rel=0.02)
    launch_s = profile.file.framework_host.per_kernel_s  # type: ignore[union-attr]
    assert theirs.host_issue_s("F", [act]) - theirs.host_issue_s("F") == pytest.approx(2 * launch_s)
    shape = (16384, 4096, 8192)
    apart, fused = (p.kernel_s(KernelCall("gemm", shape, "bf16", "tn+acc32")) for p in (theirs, profile))
    assert apart > fused
    assert theirs.for_kernels("eager") is theirs
    attention = KernelCall("attention_forward", (1, 32, 32, 4096, 64), "bf16", "flash")
    assert theirs.kernel_s(attention) == profile.kernel_s(attention)
    back = KernelCall("attention_backward", attention.shape, "bf16", "flash")
    assert theirs.host_issue_s("F", [back]) == pytest.approx(3 * theirs.host_issue_s("F", [attention]))


def test_fsdp_joins_the_gradients_of_a_flat_parameter_in_another_kernel() -> None:
    """4 bytes an element where gradients stay in bf16, 10 where they are widened for the reduction."""
    profile = load_profile("a100-80gb")
    theirs = profile.with_kernels_of(FRAMEWORKS["llm-foundry"])
    shape, one_pass = (8192, 8192, 8192), profile.for_kernels("eager").kernel_s(KernelCall("add", (8192**2,), "bf16"))
    plain, flat, wide = (
        theirs.kernel_s(KernelCall("gemm", shape, "bf16", variant)) for variant in ("tn", "tn+acc16", "tn+acc32")
    )
    assert flat - plain == pytest.approx(one_pass * 4 / 6, rel=0.05)
    assert wide - plain == pytest.approx(one_pass * 10 / 6, rel=0.05)


def test_the_host_of_a_framework_is_priced_by_gpt_fast_and_one_h200_machine() -> None:
    """50 kernels a layer at 25.5 tokens/s of 32 layers are 24.5 µs each; recording a graph makes it 33."""
    kernel_s, collective_s = fit_framework_host.measured()
    assert kernel_s == pytest.approx((2729.2 / 63.6 + 4056.1 / 105.6) / 2 * 1e-6, rel=1e-3)
    assert collective_s == pytest.approx((4213.0 - 2729.2) / 10 * 1e-6, rel=1e-3)
    profile = load_profile("a100-80gb")
    theirs = profile.of_a_framework()
    add = KernelCall("add", (1024,), "bf16")
    assert theirs.host_issue_s("F", [add]) == pytest.approx(1 / 25.5 / 32 / 50 * 1.36, rel=1e-3)
    assert theirs.host_issue_s("AR") == pytest.approx(
        theirs.host_issue_s("F", [add]) * collective_s / kernel_s, rel=1e-3
    )
    assert theirs.of_a_framework() is theirs
    assert theirs.kernel_s(add) == profile.kernel_s(add)
    eager = profile.for_kernels("eager")
    norm = KernelCall("rmsnorm_forward", (1024, 1024), "bf16")
    assert eager.of_a_framework().host_issue_s("F", [norm]) == pytest.approx(
        9 * theirs.host_issue_s("F", [add]), rel=1e-3
    )
    assert theirs.scaled(3).host_issue_s("F", [add]) == pytest.approx(3 * theirs.host_issue_s("F", [add]))


def test_a_framework_attends_by_the_kernel_that_it_calls() -> None:
    """llm-foundry's FlashAttention-1 in Triton takes about twice as long as FlashAttention-2: 72 and 113 TFLOP/s at
    4096 on A100 (gemm-1090, gemm-1085)."""
    profile = load_profile("a100-80gb")
    theirs = profile.with_kernels_of(FRAMEWORKS["llm-foundry"])
    shape = (4, 48, 48, 4096, 64)
    forward, backward = (KernelCall(f"attention_{way}", shape, "fp16", "flash") for way in ("forward", "backward"))
    assert theirs.kernel_s(forward) == pytest.approx(2 * 2 * 4 * 48 * 4096**2 * 64 / 2 / 112.87e12, rel=0.01)
    assert theirs.kernel_s(backward) == pytest.approx(5 * 2 * 4 * 48 * 4096**2 * 64 / 2 / 71.72e12, rel=0.06)
    assert theirs.kernel_s(backward) > 1.8 * profile.kernel_s(backward)
    gemm = KernelCall("gemm", (4096, 4096, 4096), "fp16", "nt")
    assert theirs.kernel_s(gemm) == profile.kernel_s(gemm)


def test_sigmas_are_how_far_the_procedure_missed_what_one_h200_measured() -> None:
    """Derived entries are held against measurements that did not make them; a fit's residuals would flatter them."""
    found = honesty.kernel_sigmas(fit_published._h200())
    for part in load_profile("h100").file.attention:
        assert part.sigma >= 0.99 * found[part.op]
    h100 = {part.op: part.sigma for part in load_profile("h100").file.memory if part.kernels == "compiled"}
    for op in ("rmsnorm_backward", "swiglu_backward", "ce_loss"):
        assert h100[op] == pytest.approx(found[op], rel=0.01)
    assert h100["rope_forward"] >= 0.99 * found["one pass"] > found["rope_forward"]
    links = {part.source: part.sigma for part in load_profile("h100").file.collectives}
    assert links["reduce-derived"] == pytest.approx(math.log(319 / 249.8), rel=0.05)  # nccl-0693, against 319 GB/s


def test_h100_products_are_those_of_the_same_chip_where_arithmetic_binds_them() -> None:
    profile, rows = load_profile("h100"), honesty.points()["gemm"]["bf16 nt"]
    shape, seconds = next((tuple(row[:3]), row[3]) for row in rows if row[:3] == [8192, 4096, 4096])
    call = KernelCall("gemm", shape, "bf16", "nt")
    assert profile.kernel_s(call) == pytest.approx(seconds * 762 / 663, rel=1e-3)
    kept = {tuple(point[1:4]) for part in profile.file.gemm if part.layout == "nt" for point in part.points}
    assert (32768, 768, 768) not in kept  # near its bound by memory, and the H200 has faster memory


def test_row_ranges_are_written_short() -> None:
    assert ranges(PCIE) == ["gemm-0087..gemm-0269"]
    assert ranges([*H100_FP8[:2], "gemm-0500"]) == ["gemm-0029..gemm-0030", "gemm-0500"]


def test_an_unknown_row_is_an_error() -> None:
    with pytest.raises(KeyError, match="gemm-9999"):
        published.gemm_rows(["gemm-9999"])
    with pytest.raises(KeyError, match="no memory bandwidth"):
        published.memory_bytes_per_s("gemm-0021")


@pytest.mark.parametrize("shape", [(16384, 3072, 2048), (16384, 2048, 2048), (16384, 16384, 2048), (16384, 2048, 8192)])
def test_hopper_block_shapes_are_where_one_h200_measured_them(shape: tuple[int, int, int]) -> None:
    """Short runs gave 660 to 720 TFLOP/s on block shapes; the profile holds the sustained rate, 663/762 of it."""
    seconds = load_profile("h200-published").kernel_s(KernelCall("gemm", shape, "bf16", "nt"))
    short = 2 * math.prod(shape) / seconds * 762 / 663
    assert 0.95 * 660e12 < short < 1.05 * 720e12


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("dtype", "ratio"), [("fp32", 0.95), ("fp64", 0.95)])
def test_wide_products_stay_below_the_data_sheets_peak(name: str, dtype: str, ratio: float) -> None:
    """fp32 without tf32 is an order of magnitude slower than bf16 on a GPU; nobody published it by shape."""
    peak = presets.preset("gpus", name.removesuffix("-published"))["peak_tflops"][dtype] * 1e12
    for layout in ("nt", "nn", "tn+acc32"):
        seconds = load_profile(name).kernel_s(KernelCall("gemm", (8192, 8192, 8192), dtype, layout))
        rate = 2 * 8192**3 / seconds
        assert 0.5 * peak < rate < ratio * peak
