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


@pytest.fixture
def launches(launched, monkeypatch):
    """The kernel, and a maker of its `Launch`, on the short path."""
    kernel, _ = launched
    monkeypatch.setattr(launch, "SHORT", True)
    monkeypatch.setattr(launch, "_DIRECT", {})

    def make(*numbers, grid=(5,), copied=()):
        return launch.Launch(kernel, grid, numbers, {"BLOCK": 16, "num_warps": 4}, copied)

    return kernel, make


def test_a_launch_is_compiled_once_and_then_direct(launches):
    kernel, make = launches
    call = make(64, 0.5)
    for _ in range(4):
        call((X, Y))
    expected = (5, 1, 1, 703, "function", "metadata", None, None, None, X.data_ptr(), Y.data_ptr(), 64, 0.5, 16)
    assert len(kernel.compiled) == 1
    assert kernel.direct == [expected] * 3


def test_a_launch_is_given_the_addresses_of_each_call(launches):
    kernel, make = launches
    call, others = make(64, 0.5), [torch.zeros(64) for _ in range(4)]
    for other in others:
        call((X, other))
    assert [run[10] for run in kernel.direct] == [other.data_ptr() for other in others[1:]]


def test_an_unaligned_address_has_a_form_of_its_own(launches):
    kernel, make = launches
    call = make(64, 0.5)
    for x in (X, X[1:], X, X[1:], X, X[1:]):
        call((x, Y))
    assert len(kernel.compiled) == 2
    assert [run[9] - X.data_ptr() for run in kernel.direct] == [0, 4, 0, 4]
    assert len(call.forms) == 2


def test_floats_are_free_and_integers_are_compiled_by_what_they_are(launches):
    kernel, make = launches
    scaled = make(64)
    for scale in (0.5, 0.25, 0.125, 7.0):
        scaled((X, Y), (scale,))
    assert [run[12] for run in kernel.direct] == [0.25, 0.125, 7.0]
    assert (len(kernel.compiled), len(scaled.forms)) == (1, 1)
    keyed = make(0.5)
    for number in (32, 48, 33, 35, 1, 64, 37):
        keyed((X, Y), (), (number,))
    assert [run[12] for run in kernel.direct[3:]] == [48, 35, 64, 37]
    assert len(kernel.compiled) == 4  # a float above, and here a multiple of 16, a number that is none, and 1


def test_what_a_launch_leaves_out_gets_the_first_address(launches):
    kernel, make = launches
    call = make(64, 0.5)
    for _ in range(4):
        call((X, None))
    assert all(run[9:11] == (X.data_ptr(), X.data_ptr()) for run in kernel.direct)
    assert kernel.compiled[0][1][1] is X


def test_a_launch_of_nothing_does_nothing(launches):
    kernel, make = launches
    for _ in range(3):
        make(64, 0.5, grid=(0,))((X, Y))
    assert not kernel.compiled
    assert not kernel.direct


def test_what_a_kernel_cannot_read_is_copied_each_time(launches):
    kernel, make = launches
    call, odd = make(64, 0.5, copied=(1,)), torch.zeros(8, 8).t()
    for _ in range(4):
        call((X, odd))
    assert len(kernel.compiled) == 1
    assert len(kernel.direct) == 3
    assert all(run[10] != odd.data_ptr() for run in kernel.direct)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_a_tensor_without_memory_is_refused_however_often_its_like_was_launched(launches):
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel, make = launches
    call, freed = make(64, 0.5), torch.zeros(64)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.zeros(64)
    for _ in range(4):
        call((X, Y))
        for bad in (fake, freed):
            with pytest.raises(launch.KernelArgumentError, match="argument 1 holds no memory"):
                call((X, bad))
            with pytest.raises(launch.KernelArgumentError, match="argument 1 holds no memory"):
                launch.start(kernel, (5,), (X, bad), (64, 0.5), {"BLOCK": 16, "num_warps": 4})


def test_a_compiler_s_launch_goes_through_triton(launches, monkeypatch):
    kernel, make = launches
    monkeypatch.setattr(launch, "is_compiling", lambda: True)
    call = make(64)
    for _ in range(3):
        call((X, None), (0.5,))
    assert [c[0] for c in kernel.compiled] == [(5, 1, 1)] * 3
    assert not kernel.direct


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
