"""The GPU's grid: what it must contain, checked where there is no GPU."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from calibration import calibrate, grid, microbench
from calibration.calibrate import calibrate_gpu
from calibration.microbench import Cuda, KernelPoint
from calibration.profile import load_profile
from calibration.timing import Timed
from kernels.registry import POINTWISE
from program import KernelCall
from program.errors import InputError
from program.ops import OPERATORS, bytes_of, flops_of


def test_every_memory_bound_operator_is_measured() -> None:
    measured = {call.op for call in grid.gpu_memory_calls(frozenset(POINTWISE))}
    assert measured == {name for name, operator in OPERATORS.items() if operator.kind == "memory"}


def test_products_come_in_the_three_layouts_of_a_step() -> None:
    calls = [c for c in grid.gpu_gemm_calls() if c.op == "gemm"]
    assert {c.variant for c in calls} == {"nt", "nn", "tn+acc32"}
    assert all(flops_of(c) <= grid.LARGEST_FLOPS for c in calls)
    assert len({(c.shape, c.dtype, c.variant) for c in calls}) == len(calls)


def test_compiled_operators_get_few_shapes() -> None:
    few = [c for c in grid.gpu_memory_calls(frozenset(POINTWISE)) if c.op == "swiglu_forward"]
    many = [c for c in grid.gpu_memory_calls(frozenset()) if c.op == "swiglu_forward"]
    assert len(few) == 3 < len(many)


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of a machine without a GPU")
def test_without_a_gpu_the_message_says_what_to_do() -> None:
    with pytest.raises(InputError, match="no GPU is visible.*calibrate.*doctor"):
        microbench.require_gpu()


SLOW = {"eager": 4.0, "compiled": 1.5, "triton": 1.0}


def pretend(gpu: Cuda, calls: Iterable[KernelCall]) -> Iterator[KernelPoint]:
    """A GPU of 1 TB/s and 100 TFLOP/s whose pointwise kernels are as good as its kind of kernels makes them."""
    for call in calls:
        factor = SLOW[gpu.kernels] if OPERATORS[call.op].kind == "memory" else 1.0
        seconds = (5e-6 + bytes_of(call) / 1e12 + flops_of(call) / 1e14) * factor
        yield KernelPoint(call, 0, Timed(seconds, 0.01, 7, 7, seconds))


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "points": pretend, "issue_costs": lambda gpu, calls: {call.op: 1e-6 * SLOW[gpu.kernels] for call in calls},
        "instruction_s": lambda gpu: 2e-6, "graph_node_s": lambda gpu: 5e-7, "context_bytes": lambda gpu: 2**29,
    }  # fmt: skip
    for name, answer in found.items():
        monkeypatch.setattr(Cuda, name, answer)
    about = {
        "versions": {}, "machine": {"gpu": "pretended", "units": 132}, "probe": {"launch_s": 7e-6},
        "copies": [{"source": "here", "kind": "h2d", "launch_s": 1e-5, "bytes_per_s": 5e10}],
    }  # fmt: skip
    monkeypatch.setattr(calibrate, "require_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(calibrate, "_about_gpu", lambda: about)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_a_gpu_is_measured_under_each_kind_of_kernels(a_gpu: None, tmp_path: Path) -> None:
    """Products and attention once; a plan's kernels choose among the others, on the device and on the host."""
    path = calibrate_gpu(tmp_path / "gpu.yaml", "h200-published", ("eager", "triton"))
    profile = load_profile(path)
    assert profile.kernel_kinds == ("triton", "eager")
    assert {part.kernels for part in (*profile.file.gemm, *profile.file.attention)} == {"*"}
    eager, fused = profile.for_kernels("eager"), profile.for_kernels("triton")
    norm = KernelCall("rmsnorm_forward", (8192, 4096), "bf16")
    assert eager.kernel_s(norm) == pytest.approx(4.0 * fused.kernel_s(norm), rel=1e-3)
    assert eager.host_issue_s("F", [norm]) - fused.host_issue_s("F", [norm]) == pytest.approx(3e-6)
    assert fused.replay_s([norm, norm]) == 2 * fused.replay_s() == 1e-6
    assert not load_profile("h200-published").prices_graphs
    assert load_profile("h200-published").replay_s([norm]) == 0.0
    shared = KernelCall("embedding_forward", (8192, 2048, 128_256), "bf16")
    assert eager.kernel_s(shared) == fused.kernel_s(shared)
    assert profile.for_kernels("compiled").priced_as == "triton"


def test_what_was_measured_survives_a_time_limit(a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(gpu: Cuda, calls: Iterable[KernelCall]) -> Iterator[KernelPoint]:
        if gpu.kernels == "triton":
            raise TimeoutError
        return pretend(gpu, calls)

    monkeypatch.setattr(Cuda, "points", cut_off)
    with pytest.raises(TimeoutError):
        calibrate_gpu(tmp_path / "gpu.yaml", "h200-published", ("compiled", "triton"))
    assert load_profile(tmp_path / "gpu.yaml").kernel_kinds == ("compiled",)


def test_attention_of_two_libraries_stays_apart(a_gpu: None, tmp_path: Path) -> None:
    profile = load_profile(calibrate_gpu(tmp_path / "gpu.yaml", "h200-published"))
    assert {part.variant for part in profile.file.attention} == {"flash", "cudnn"}
