"""The shipped profiles: residuals within bounds, and what they say of kernels, links and training that was measured."""

import json
import math
from pathlib import Path

import pytest

from calibration.collectives import Geometry
from calibration.profile import load_profile
from calibration.profile_paths import shipped_profiles
from compiler import compile_run
from plan import presets
from plan.run import load
from program import KernelCall
from simulator.memory import simulate_memory
from simulator.simulation import simulate

MEASURED = Path(__file__).parents[2] / "calibration" / "measured"
PUBLISHED = ("a100-80gb", "h100", "h200-published")
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
    assert shipped_profiles() == sorted([*PUBLISHED, "h200"])
    assert load_profile("h200").provenance["here"].kind == "measured"


@pytest.mark.parametrize("name", PUBLISHED)
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


def test_a_ring_over_nodes_reaches_the_published_rate() -> None:
    profile = load_profile("a100-80gb")
    cost = profile.collective("all_reduce", 2**32, "bf16", Geometry(32, nodes=4))
    bus = cost.bus_bytes / cost.seconds
    assert bus == pytest.approx(192e9, rel=0.03)  # nccl-0260, 8 NICs of 200 Gb/s


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


@pytest.mark.parametrize(("model", "measured_s"), [("small", 0.21438), ("large", 0.24725)])
def test_eager_training_on_one_h200_is_forecast_from_counted_traffic(model: str, measured_s: float) -> None:
    """No eager kernel was measured for it: calibration/measured/h200-training.json against references counted."""
    overrides = ["plan.kernels=eager", "cluster.profile=h200-published"]
    run = load(Path(__file__).parents[2] / "examples" / f"h200-llama-{model}.yaml", overrides)
    simulation = simulate(compile_run(run), run.cluster, load_profile("h200-published"))
    assert simulation.step_time_s == pytest.approx(measured_s, rel=0.05)
    assert simulation.interval.low_s < measured_s < simulation.interval.high_s


@pytest.mark.parametrize("model", ["small", "large"])
@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
def test_peaks_of_training_on_one_h200_are_forecast(model: str, kernels: str) -> None:
    """Eager ones from temporaries counted on the references; compiled ones hold one fp32 copy of the logits."""
    measured = json.loads((MEASURED / "h200-training.json").read_text(encoding="utf-8"))["runs"][f"{model}-{kernels}"]
    run = load(Path(__file__).parents[2] / "examples" / f"h200-llama-{model}.yaml", [f"plan.kernels={kernels}"])
    profile = load_profile("h200")
    (stage,) = compile_run(run).classes
    memory = simulate_memory(stage, profile.allocator, profile.workspace(kernels))
    assert memory.peak_allocated_bytes / 2**30 == pytest.approx(measured[0]["peak_allocated_gib"], rel=0.006)


def test_a_framework_is_priced_by_its_own_launches_and_passes() -> None:
    """Its SwiGLU moves 5 passes where one kernel moves 3, and adds weight gradients in a kernel apart."""
    profile = load_profile("h100")
    theirs = profile.for_kernels("nanotron")
    act = KernelCall("swiglu_forward", (16384, 8192), "bf16")
    one_pass = profile.for_kernels("eager").kernel_s(KernelCall("add", (16384, 8192), "bf16"))  # 3 passes
    assert theirs.kernel_s(act) == pytest.approx(5 / 3 * one_pass, rel=0.02)
    launch_s = profile.file.framework_host.per_kernel_s  # type: ignore[union-attr]
    assert theirs.host_issue_s("F", [act]) - theirs.host_issue_s("F") == pytest.approx(2 * launch_s)
    shape = (16384, 4096, 8192)
    apart, fused = (p.kernel_s(KernelCall("gemm", shape, "bf16", "tn+acc32")) for p in (theirs, profile))
    assert apart > fused
    assert theirs.for_kernels("nanotron") is theirs
    assert theirs.for_kernels("eager").kernel_s(act) == profile.for_kernels("eager").kernel_s(act)
    attention = KernelCall("attention_forward", (1, 32, 32, 4096, 64), "bf16", "flash")
    assert theirs.kernel_s(attention) == profile.kernel_s(attention)
    back = KernelCall("attention_backward", attention.shape, "bf16", "flash")
    assert theirs.host_issue_s("F", [back]) == pytest.approx(3 * theirs.host_issue_s("F", [attention]))


def test_fsdp_joins_the_gradients_of_a_flat_parameter_in_another_kernel() -> None:
    """4 bytes an element where gradients stay in bf16, 10 where they are widened for the reduction."""
    profile = load_profile("a100-80gb")
    theirs = profile.for_kernels("llm-foundry")
    shape, one_pass = (8192, 8192, 8192), profile.for_kernels("eager").kernel_s(KernelCall("add", (8192**2,), "bf16"))
    plain, flat, wide = (
        theirs.kernel_s(KernelCall("gemm", shape, "bf16", variant)) for variant in ("tn", "tn+acc16", "tn+acc32")
    )
    assert flat - plain == pytest.approx(one_pass * 4 / 6, rel=0.05)
    assert wide - plain == pytest.approx(one_pass * 10 / 6, rel=0.05)


def test_a_framework_attends_by_the_kernel_that_it_calls() -> None:
    """llm-foundry's FlashAttention-1 in Triton takes about twice as long as FlashAttention-2: 72 and 113 TFLOP/s at
    4096 on A100 (gemm-1090, gemm-1085)."""
    profile = load_profile("a100-80gb")
    theirs = profile.for_kernels("llm-foundry")
    shape = (4, 48, 48, 4096, 64)
    forward, backward = (KernelCall(f"attention_{way}", shape, "fp16", "flash") for way in ("forward", "backward"))
    assert theirs.kernel_s(forward) == pytest.approx(2 * 2 * 4 * 48 * 4096**2 * 64 / 2 / 112.87e12, rel=0.01)
    assert theirs.kernel_s(backward) == pytest.approx(5 * 2 * 4 * 48 * 4096**2 * 64 / 2 / 71.72e12, rel=0.06)
    assert theirs.kernel_s(backward) > 1.8 * profile.kernel_s(backward)
    gemm = KernelCall("gemm", (4096, 4096, 4096), "fp16", "nt")
    assert theirs.kernel_s(gemm) == profile.kernel_s(gemm)


@pytest.mark.parametrize("shape", [(16384, 3072, 2048), (16384, 2048, 2048), (16384, 16384, 2048), (16384, 2048, 8192)])
def test_hopper_block_shapes_are_where_one_h200_measured_them(shape: tuple[int, int, int]) -> None:
    """Short runs gave 660 to 720 TFLOP/s on block shapes; the profile holds the sustained rate, 663/762 of it."""
    seconds = load_profile("h200-published").kernel_s(KernelCall("gemm", shape, "bf16", "nt"))
    short = 2 * math.prod(shape) / seconds * 762 / 663
    assert 0.95 * 660e12 < short < 1.05 * 720e12


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("dtype", "ratio"), [("fp32", 0.95), ("fp64", 0.95)])
def test_wide_products_stay_below_the_data_sheets_peak(name: str, dtype: str, ratio: float) -> None:
    """fp32 without tf32 is an order of magnitude slower than bf16 on a GPU; nobody published it by shape."""
    peak = presets.preset("gpus", name.removesuffix("-published"))["peak_tflops"][dtype] * 1e12
    for layout in ("nt", "nn", "tn+acc32"):
        seconds = load_profile(name).kernel_s(KernelCall("gemm", (8192, 8192, 8192), dtype, layout))
        rate = 2 * 8192**3 / seconds
        assert 0.5 * peak < rate < ratio * peak
