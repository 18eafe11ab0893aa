"""Checks that are made once for a signature: a call like an earlier one skips them, and nothing else does."""

import itertools

import pytest
import torch

from kernels import activations, adamw, crossentropy, norms, residual, rotary
from kernels import direct as launch
from kernels import launch as arguments
from kernels.random import Dropout
from kernels.reference_layer import Mask


def test_what_is_derived_is_remembered_by_signature_and_flags():
    derived = []
    find = launch.checked_once(lambda *arguments: derived.append(arguments) or len(derived))
    x, wide = torch.zeros(4, 4), torch.zeros(4, 8)
    variants = [  # tensors, flag
        ((x, None), 1), ((x, None), 2), ((None, x), 1), ((x, x), 1), ((x.double(), None), 1), ((x[:2], None), 1),
        ((wide[:, :4], None), 1), ((x.t(), None), 1), ((x.to("meta"), None), 1), ((x, None), [1]), ((x, 5), 1),
    ]  # fmt: skip
    for expected, (tensors, flag) in enumerate(variants, 1):
        assert find(tensors, flag) == expected
    for expected, (tensors, flag) in enumerate(variants[:9], 1):
        again = [
            t if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for t in tensors
        ]
        assert find(tuple(again), flag) == expected
    assert find(*variants[9]) == 12  # what has no hash, or is no tensor, is checked every time
    assert find(*variants[10]) == 13


def test_what_raises_is_never_remembered():
    def derive(x):
        if x.dtype is not torch.float32:
            raise ValueError("dtype")
        return "good"

    find = launch.checked_once(derive)
    for _ in range(3):
        assert find((torch.zeros(2),)) == "good"
        with pytest.raises(ValueError, match="dtype") as caught:
            find((torch.zeros(2).double(),))
        assert caught.value.__context__ is None


def test_a_compiler_and_a_subclass_of_tensors_derive_each_time(monkeypatch):
    derived = []
    find = launch.checked_once(lambda *arguments: derived.append(arguments) or len(derived))
    x = torch.zeros(2)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "is_compiling", lambda: True)
        assert [find((x,)) for _ in range(2)] == [1, 2]

    class Other(torch.Tensor):
        pass

    assert [find((x.as_subclass(Other),)) for _ in range(2)] == [3, 4]
    assert [find((t,)) for t in (x, torch.nn.Parameter(x))] == [5, 5]


def test_the_memory_of_signatures_is_bounded_and_can_be_emptied(monkeypatch):
    derived = []
    find = launch.checked_once(lambda x: derived.append(x))
    monkeypatch.setattr(launch, "REMEMBERED", 3)
    for size in range(10):
        find((torch.zeros(size),))
    find((torch.zeros(9),))
    assert len(derived) == 10
    assert len(launch._SIGNATURES[-1]) <= 3
    monkeypatch.setattr(launch, "_DIRECT", {})
    launch.forget()
    assert not any(launch._SIGNATURES)
    find((torch.zeros(9),))
    assert len(derived) == 11


def test_a_row_s_stride_is_that_of_the_view_that_torch_finds():
    """Every order of strides of a small tensor, with expanded and single dimensions."""
    for sizes in itertools.product((1, 2, 3), repeat=3):
        for strides in itertools.product((0, 1, 2, 3, 6, 7), repeat=3):
            x = torch.empty_strided(sizes, strides)
            try:
                rows = x.view(-1, sizes[-1])
                expected = rows.stride(0) if sizes[-1] == 1 or strides[-1] == 1 else None
            except RuntimeError:
                expected = None
            found = arguments.row_stride(x)
            if expected is None or x.numel() > sizes[-1]:  # a single row has no next one
                assert found == expected, (sizes, strides)


def float_like(*shape):
    return torch.rand(*shape) + 0.5


X, W, ROWS, TOKENS = float_like(3, 8), float_like(8), float_like(3), torch.arange(3)[:, None]
Q, COS, FLAT, TARGET = float_like(1, 3, 2, 8), float_like(3, 4), float_like(2048), torch.tensor([1, 2, 3])
BYTES, CODES, ONE = torch.ones(2048, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8), float_like(1)
STEP = adamw.AdamWStep(0.1, 1)


def masked(tokens):
    return Mask(Dropout(0.5), tokens, torch.arange(8), 0)


CALLS = {
    "norm forward": (
        lambda x, w, b, r: norms.norm_forward("layer", x, w, b, eps=1e-5, residual=r), (X, W, W, X)
    ),
    "norm backward": (
        lambda dy, s, w, rstd, mean, ds, wg, bg: norms.norm_backward(
            "layer", dy, s, w, rstd, mean, has_bias=True, dstream=ds, weight_grad=wg, bias_grad=bg
        ), (X, X, W, ROWS, ROWS, X, W, W),
    ),
    "swiglu forward": (activations.swiglu_forward, (X, X)),
    "swiglu backward": (
        lambda dh, gate, up, dgate, dup, h: activations.swiglu_backward(dh, gate, up, dgate=dgate, dup=dup, h_out=h),
        (X, X, X, X, X, X),
    ),
    "gelu forward": (activations.gelu_forward, (X, W)),
    "gelu backward": (
        lambda dh, x, b, bg, h: activations.gelu_backward(dh, x, b, bias_grad=bg, h_out=h), (X, X, W, W, X)
    ),
    "residual forward": (
        lambda r, z, b, tokens: residual.residual_forward(r, z, b, masked(tokens)), (X, X, W, TOKENS)
    ),
    "residual backward": (lambda d, bg, tokens: residual.residual_backward(d, bg, masked(tokens)), (X, W, TOKENS)),
    "rotary": (
        lambda q, k, cos, sin, qo, ko: rotary.rotary_forward(q, k, cos, sin, q_out=qo, k_out=ko),
        (Q, Q, COS, COS, Q, Q),
    ),
    "cross entropy": (
        lambda x, target, weight, a, b, c, out: crossentropy.cross_entropy(
            x, target, row_weight=weight, stats=crossentropy.RowStatistics(a, b, c), out=out
        ), (X, TARGET, ROWS, ROWS, ROWS, ROWS, X),
    ),
    "row maximum": (crossentropy.row_max, (X,)),
    "exp target": (crossentropy.exp_target, (X, ROWS, TARGET)),
    "adamw": (
        lambda p, m, v, g, copy, mask, codes, scale, inf: adamw.adamw_step(
            p, m, v, g, STEP, decay=adamw.DecayMask(mask, codes), copy=copy, grad_scale=scale, found_inf=inf
        ), (FLAT, FLAT, FLAT, FLAT, FLAT, BYTES, CODES, ONE, ONE),
    ),
}  # fmt: skip


def variants(x):
    """Tensors like x but for one thing: width, length, strides, type, device, and no tensor at all."""
    spread = torch.stack((x, x), -1)[..., 0]
    expanded = x[..., :1].expand(x.shape)
    others = [x[..., :-1], x[:-1], x[None], spread, expanded, x.bool(), x.double(), x.to("meta"), None, 0.5, "x"]
    return [*others, x.transpose(0, -1).contiguous().transpose(0, -1)]


def outcome(call, arguments):
    """The error's type and message, or None."""
    try:
        call(*[x.clone() if isinstance(x, torch.Tensor) and x.is_contiguous() else x for x in arguments])
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_as_at_first_after_any_number_of_good_calls(name):
    call, good = CALLS[name]
    refused = 0
    for place, x in enumerate(good):
        for bad in variants(x):
            changed = [*good[:place], bad, *good[place + 1 :]]
            launch.forget()
            first = outcome(call, changed)
            launch.forget()
            assert [outcome(call, good) for _ in range(2)] == [None, None]
            assert [outcome(call, changed) for _ in range(2)] == [first, first], (place, bad)
            refused += first is not None and issubclass(first[0], arguments.KernelArgumentError)
    assert refused >= 4 * len(good)


def test_a_mask_whose_columns_begin_elsewhere_is_refused_every_time():
    """What values are is in no signature."""
    elements = torch.arange(8)
    mask = Mask(Dropout(0.5), TOKENS, elements, 0)
    for _ in range(2):
        residual.residual_forward(X, X, W, mask)
        elements += 5
        with pytest.raises(arguments.KernelArgumentError, match="begins with 5"):
            residual.residual_forward(X, X, W, mask)
        elements -= 5


def test_flags_are_checked_after_good_calls_too():
    for _ in range(2):
        norms.norm_forward("rms", X, W, eps=1e-5)
        crossentropy.cross_entropy(X, TARGET)
        for call in (
            lambda: norms.norm_forward("rms", X, W, eps=1e-5, rounding="gemma"),
            lambda: norms.norm_forward(["rms"], X, W, eps=1e-5),
            lambda: activations.gelu_forward(X, W, approximate="erf"),
            lambda: crossentropy.cross_entropy(X, TARGET, vocab_first=8),
            lambda: crossentropy.cross_entropy(X, TARGET, vocab_size=12),
        ):
            with pytest.raises(arguments.KernelArgumentError):
                call()
