"""Measuring this machine, on a sixteenth of the grid: the profile loads, answers and covers what a step can ask."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibration import grid
from calibration.calibrate import Effort, calibrate
from calibration.collectives import Geometry
from calibration.profile import Profile, load_profile
from calibration.profile_paths import cpu_profile_path
from program import KernelCall
from program.ops import OPERATORS, bytes_of

QUICK = Effort(0.01, 0.01, 0.005, 1, 0.05, 0.1, every=16)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("WINDTUNNEL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def measured(cache: Path, steps: list[tuple[str, int, int]]) -> Profile:
    path = calibrate(effort=QUICK, progress=lambda *step: steps.append(step))
    assert path == cpu_profile_path()
    assert path.is_relative_to(cache)
    return load_profile("cpu")


def test_the_grid_covers_every_operator_and_is_the_same_each_time() -> None:
    def all_calls() -> list[KernelCall]:
        return [*grid.gemm_calls(), *grid.attention_calls(), *grid.memory_calls()]

    assert {call.op for call in all_calls()} == set(OPERATORS)
    assert all_calls() == all_calls()
    assert len(set(all_calls())) == len(all_calls())
    assert all(bytes_of(call) > 0 for call in all_calls())


@pytest.mark.slow
def test_the_profile_answers_for_what_a_step_asks(measured: Profile) -> None:
    calls = [
        KernelCall("gemm", (256, 256, 256), "fp32", "nt"),
        KernelCall("attention_forward", (1, 4, 4, 256, 32), "fp32", "flash"),
        KernelCall("rmsnorm_forward", (256, 256), "fp32"),
        KernelCall("adamw", (100_000,), "fp32"),
    ]
    for call in calls:
        assert 1e-7 < measured.kernel_s(call) < 1.0
    small = measured.collective("all_reduce", 256, "fp32", Geometry(2))
    large = measured.collective("all_reduce", 2**26, "fp32", Geometry(2))
    assert 1e-6 < small.seconds < large.seconds < 60
    assert measured.host_issue_s("F") > 0
    assert measured.host_issue_s("AR") >= measured.host_issue_s("F")
    assert measured.cores is not None
    assert measured.cores.communication_demand > 0


@pytest.mark.slow
def test_a_saved_profile_is_read_back_unchanged(measured: Profile) -> None:
    digest = hashlib.sha256(cpu_profile_path().read_bytes()).hexdigest()
    again = load_profile("cpu")
    assert again.file == measured.file
    assert hashlib.sha256(cpu_profile_path().read_bytes()).hexdigest() == digest


@pytest.mark.slow
def test_progress_reaches_its_end_for_each_class(measured: Profile, steps: list[tuple[str, int, int]]) -> None:
    labels = {what for what, _, _ in steps}
    assert {what for what, done, of in steps if done == of} == labels
    assert len(labels) >= 5


@pytest.mark.slow
def test_threads_pick_their_table(measured: Profile) -> None:
    for count in measured.thread_counts:
        assert measured.for_threads(count).threads == count
    assert measured.for_threads(10**6).threads == max(measured.thread_counts)
