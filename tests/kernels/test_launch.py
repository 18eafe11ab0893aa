"""The short launch path with a kernel that records: compiled once for what matters, called directly after."""

from types import SimpleNamespace

import pytest
import torch

from kernels import direct as launch


class FakeKernel:
    """Stands for a Triton kernel: counts compilations, and hands out a compiled form that records its launches."""

    def __init__(self):
        names = ("x_ptr", "y_ptr", "width", "scale", "BLOCK")
        self.params = [SimpleNamespace(name=name, is_constexpr=name == "BLOCK") for name in names]
        self.compiled, self.direct = [], []

    def __getitem__(self, grid):
        def launch_through_triton(*arguments, **constants):
            self.compiled.append((grid, arguments, constants))
            return SimpleNamespace(
                run=lambda *a: self.direct.append(a), function="function", packed_metadata="metadata"
            )

        return launch_through_triton


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setattr(launch, "_current_device", lambda: 3, raising=False)
    monkeypatch.setattr(launch, "_current_stream", lambda device: 700 + device, raising=False)
    kernel = FakeKernel()
    return kernel, launch.Direct(kernel)


X, Y = torch.zeros(64), torch.zeros(64)


def test_the_second_launch_is_direct_with_addresses_numbers_and_constants(launched):
    kernel, direct = launched
    for _ in range(3):
        direct.launch((5, 2), (X, Y), (64, 0.5), {"BLOCK": 16, "num_warps": 4})
    assert len(kernel.compiled) == 1
    expected = (5, 2, 1, 703, "function", "metadata", None, None, None, X.data_ptr(), Y.data_ptr(), 64, 0.5, 16)
    assert kernel.direct == [expected, expected]


def test_a_kernel_without_scratch_memory_is_launched_by_the_c_function():
    calls = []
    run = SimpleNamespace(
        global_scratch_size=0,
        profile_scratch_size=0,
        launch_cooperative_grid=False,
        launch_pdl=True,
        launch=calls.append,
    )
    entry, head = launch._entry(SimpleNamespace(run=run, function="function", packed_metadata="metadata"))
    assert entry is run.launch
    assert head == ("function", False, True, None, None, "metadata", None, None, None)
    run.global_scratch_size = 16
    entry, head = launch._entry(SimpleNamespace(run=run, function="function", packed_metadata="metadata"))
    assert entry is run
    assert head == ("function", "metadata", None, None, None)


def test_what_does_not_change_the_code_is_not_compiled_again(launched):
    kernel, direct = launched
    for width, scale in ((64, 0.5), (128, 0.5), (2**20, 7.0), (64, 0.25)):
        direct.launch((1,), (X, Y), (width, scale), {"BLOCK": 16, "num_warps": 4})
    assert len(kernel.compiled) == 1
    assert [(call[11], call[12]) for call in kernel.direct] == [(128, 0.5), (2**20, 7.0), (64, 0.25)]


@pytest.mark.parametrize(
    "change",
    [
        (X.double(), Y, 64, 0.5, 16, 4),
        (X[1:], Y, 64, 0.5, 16, 4),  # 4 bytes off alignment
        (X, Y, 1, 0.5, 16, 4),
        (X, Y, 63, 0.5, 16, 4),
        (X, Y, 2**40, 0.5, 16, 4),
        (X, Y, 64, 0.5, 32, 4),
        (X, Y, 64, 0.5, 16, 8),
    ],
)
def test_what_changes_the_code_is_compiled(launched, change):
    kernel, direct = launched
    direct.launch((1,), (X, Y), (64, 0.5), {"BLOCK": 16, "num_warps": 4})
    x, y, *numbers, block, warps = change
    direct.launch((1,), (x, y), tuple(numbers), {"BLOCK": block, "num_warps": warps})
    assert len(kernel.compiled) == 2
    assert not kernel.direct


def test_the_memory_of_repeated_launches_is_bounded(launched, monkeypatch):
    monkeypatch.setattr(launch, "REMEMBERED", 10)
    _, direct = launched
    for step in range(100):
        direct.launch((1,), (X, Y), (64, float(step)), {"BLOCK": 16, "num_warps": 4})
    assert len(direct.repeated) <= 10
    assert len(direct.compiled) == 1


def test_remembered_constants_are_looked_up_by_identity_and_compiled_by_value(launched):
    kernel, direct = launched
    first, second = (launch.Constants(BLOCK=16, num_warps=4) for _ in range(2))
    assert first != second
    for constants in (first, first, second, second):
        direct.launch((1,), (X, Y), (64, 0.5), constants)
    assert len(kernel.compiled) == 1
    assert len(kernel.direct) == 3


def test_a_derived_shape_is_remembered_for_plain_calls_alone(monkeypatch):
    calls = []
    find = launch.remembered(lambda *key: calls.append(key) or key)
    for _ in range(2):
        assert find(launch.direct, 1, 2) == (1, 2)
        assert find(str, [1], 2) == ([1], 2)  # not even hashed
    assert calls == [(1, 2), ([1], 2), ([1], 2)]
    monkeypatch.setattr(launch, "REMEMBERED", 3)
    for size in range(10):
        find(launch.direct, size)
    assert find(launch.direct, 9) == (9,)


def test_pointers_come_first():
    kernel = FakeKernel()
    kernel.params.reverse()
    with pytest.raises(AssertionError, match="pointers come first"):
        launch.Direct(kernel)


def test_every_kernel_takes_pointers_then_numbers_then_constants():
    pytest.importorskip("triton")
    import importlib

    names = (
        "norms_kernels norms_wide activations_kernels residual rotary crossentropy_kernels adamw onebit checksum delta"
    )
    modules = names.split()
    kernels = {
        name: value
        for module in modules
        for name, value in vars(importlib.import_module(f"kernels.{module}")).items()
        if name.endswith("_kernel")
    }
    assert len(kernels) >= 20
    for name, kernel in kernels.items():
        kinds = [2 if p.is_constexpr else 0 if p.name.endswith("_ptr") else 1 for p in kernel.params]
        assert kinds == sorted(kinds), name
        assert set(kinds) >= {0, 1}, name
