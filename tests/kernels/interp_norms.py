"""RMSNorm and LayerNorm kernels against fp64: in Triton's interpreter on a CPU, compiled on a GPU (see
test_interpreter.py)."""

import pytest
import torch

from kernels import norms
from kernels.norms_config import PERSISTENT_WIDTH
from kernels.random import NO_DROPOUT, Dropout, keep_mask
from tests.kernels.fidelity import DEVICE, ON_GPU, assert_faithful, randn

BF16, FP32 = torch.bfloat16, torch.float32


def run_both(kind, rows, width, x_type, w_type, stream_type, p, rounding, seed=0):
    """Kernel, reference in the same types, and reference in fp64 (of the same stored inputs), forward and backward."""
    x, w = randn(rows, width, dtype=x_type, seed=seed), randn(width, dtype=w_type, seed=1)
    bias = randn(width, dtype=w_type, seed=2) if kind == "layer" else None
    residual = randn(rows, width, dtype=stream_type, seed=3) if stream_type is not None else None
    dy, dstream = randn(rows, width, dtype=x_type, seed=4), randn(rows, width, dtype=stream_type or x_type, seed=5)
    dropout = Dropout.at(p, seed=3, step=1, layer=2, site=0, token_first=2**32 - 2) if p else NO_DROPOUT
    factor = 4 if rounding == "llama" and not ON_GPU else 2  # the interpreter truncates where that order rounds
    y, stream, rstd, mean = norms.norm_forward(
        kind, x, w, bias, eps=1e-5, residual=residual, dropout=dropout, rounding=rounding
    )
    low = norms.norm_forward_reference(kind, x, w, bias, 1e-5, residual, dropout, rounding)[1]
    wide = None if residual is None else residual.double()
    exact = norms.norm_forward_reference(kind, x.double(), w.double(), None, 1e-5, wide, dropout, "fp32")[1]
    assert stream.dtype == low.dtype
    assert_faithful(stream, low, exact, "stream")
    at_stream = kind, stream, w, bias, 1e-5, None, NO_DROPOUT, rounding  # the rest judged from the stream as stored
    low = norms.norm_forward_reference(*at_stream)
    wide = None if bias is None else bias.double()
    exact = norms.norm_forward_reference(kind, stream.double(), w.double(), wide, 1e-5, None, NO_DROPOUT, "fp32")
    assert y.dtype == x_type
    assert rstd.dtype == FP32
    assert_faithful(y, low[0].to(x_type), exact[0], "y", factor)
    assert_faithful(rstd, low[2], exact[2], "rstd")
    if kind == "layer":
        assert_faithful(mean, low[3], exact[3], "mean")
    arguments = {"has_bias": bias is not None, "dstream": dstream, "dropout": dropout, "rounding": rounding}
    ours = norms.norm_backward(kind, dy, stream, w, rstd, mean, **arguments)
    low = norms.norm_backward_reference(kind, dy, stream, w, rstd, mean, dstream, dropout, rounding)
    exact = norms.norm_backward_reference(
        kind, dy.double(), stream.double(), w.double(), rstd.double(), mean.double(), dstream.double(), dropout, "fp32"
    )
    slopes = float((dy * w).abs().max() * rstd.max())  # what is left of them at width 1 is their rounding
    for name, a, b, c in zip(("dresidual", "dx", "dweight", "dbias"), ours, low, exact, strict=True):
        if a is not None:
            assert a.dtype == b.dtype, name
            assert_faithful(a, b, c, name, factor, terms=slopes if name in ("dresidual", "dx") else 0.0)


@pytest.mark.parametrize("width", [1, 7, 123, 300, 1024, 3000, 4097])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_widths(kind, width):  # bug 12: odd widths
    run_both(kind, 3, width, FP32, FP32, FP32, 0.0, "fp32")


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_narrow(kind, rows):  # bug 19: M = 1; several rows a tile, more rows than programs
    run_both(kind, rows, 40, FP32, FP32, None, 0.0, "fp32")


@pytest.mark.parametrize("w_type", [BF16, FP32])
@pytest.mark.parametrize("stream_type", [None, BF16, FP32])
@pytest.mark.parametrize(("p", "rounding"), [(0.0, "fp32"), (0.3, "fp32"), (0.0, "llama")])
def test_type_grid(w_type, stream_type, p, rounding):  # bugs 18, 20: every type and flag
    run_both("rms", 6, 72, BF16, w_type, stream_type, p, rounding)
    run_both("layer", 6, 72, BF16, w_type, stream_type, p, "fp32")


# Minutes of the interpreter go into rows this wide: `make test` has one test of them, `make soak` the others.
WIDTHS = [48, pytest.param(PERSISTENT_WIDTH + 8, marks=pytest.mark.soak)]


@pytest.mark.parametrize("kind", [pytest.param("rms", marks=pytest.mark.soak), "layer"])
def test_rows_too_wide_for_registers(kind):
    run_both(kind, 1, PERSISTENT_WIDTH + 300, FP32, FP32, FP32, 0.2, "fp32")


def test_persistent_loop_covers_every_row():
    """Many more row tiles than programs: 4 processors in the interpreter."""
    run_both("rms", 60, 2000, FP32, FP32, None, 0.0, "fp32")


def test_weight_gradient_is_bitwise_repeatable():  # bug 15
    x, dy, w = randn(70, 96), randn(70, 96, seed=1), randn(96)
    _, _, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5)
    first = norms.norm_backward("rms", dy, x, w, rstd)[2]
    for _ in range(3 if DEVICE == "cpu" else 100):
        assert torch.equal(first, norms.norm_backward("rms", dy, x, w, rstd)[2])


def test_weight_gradient_accumulates_into_the_main_gradient():
    x, dy, w, b = randn(9, 33), randn(9, 33, seed=1), randn(33), randn(33, seed=2)
    _, _, rstd, mean = norms.norm_forward("layer", x, w, b, eps=1e-5)
    fresh = norms.norm_backward("layer", dy, x, w, rstd, mean, has_bias=True)
    main_w, main_b = torch.ones(33, device=DEVICE), torch.ones(33, device=DEVICE)
    into = norms.norm_backward("layer", dy, x, w, rstd, mean, has_bias=True, weight_grad=main_w, bias_grad=main_b)
    assert into[2] is main_w
    assert into[3] is main_b
    torch.testing.assert_close(main_w, fresh[2] + 1)
    torch.testing.assert_close(main_b, fresh[3] + 1)
    assert norms.norm_backward("layer", dy, x, w, rstd, mean, need_weight=False)[2] is None


def test_inputs_are_not_changed():  # bug 11
    x, r, w, dy = randn(4, 50), randn(4, 50, seed=1), randn(50), randn(4, 50, seed=2)
    before = [t.clone() for t in (x, r, w, dy)]
    _, stream, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5, residual=r)
    kept = stream.clone()
    norms.norm_backward("rms", dy, stream, w, rstd, dstream=r)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, r, w, dy), strict=True))
    assert torch.equal(kept, stream)


def test_expanded_and_transposed_gradients():  # bug 4
    x, w = randn(6, 40), randn(40)
    _, _, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5)
    for dy in (
        torch.ones((), device=DEVICE).expand(6, 40),
        randn(40, 6).t(),
        randn(6, 1).expand(6, 40),
        randn(6, 80)[:, ::2],
    ):
        same = norms.norm_backward("rms", dy.contiguous(), x, w, rstd)
        for a, b in zip(norms.norm_backward("rms", dy, x, w, rstd), same, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_nan_and_infinity_stay_in_their_row():  # bug 19
    x, w = randn(4, 64), randn(64)
    clean, _, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5)
    dirty = x.clone()
    dirty[1, 3], dirty[2, 5] = float("nan"), float("inf")
    y, _, dirty_rstd, _ = norms.norm_forward("rms", dirty, w, eps=1e-5)
    assert torch.equal(y[[0, 3]], clean[[0, 3]])
    assert bool(y[1].isnan().all())
    dx = norms.norm_backward("rms", x, dirty, w, dirty_rstd)[1]
    assert torch.equal(dx[[0, 3]], norms.norm_backward("rms", x, x, w, rstd)[1][[0, 3]])


def test_empty_input_and_huge_epsilon():  # bug 19
    w = randn(16)
    y, _, rstd, _ = norms.norm_forward("rms", randn(0, 16), w, eps=1e-5)
    assert y.shape == (0, 16)
    dx, _, dw, _ = norms.norm_backward("rms", randn(0, 16), randn(0, 16), w, rstd)
    assert dx.shape == (0, 16)
    assert torch.equal(dw, torch.zeros_like(dw))
    x = randn(3, 16)
    low, exact = (
        norms.norm_forward_reference("rms", t, w.to(t.dtype), None, 1e6, None, NO_DROPOUT, "fp32")[0]
        for t in (x, x.double())
    )
    assert_faithful(norms.norm_forward("rms", x, w, eps=1e6)[0], low, exact)


def test_dropout_is_the_exported_mask():  # bug 16
    x, r, w = randn(8, 48), randn(8, 48, seed=1), randn(48)
    dropout = Dropout.at(0.4, seed=11, step=5, layer=3, site=1, token_first=100)
    stream = norms.norm_forward("rms", x, w, eps=1e-5, residual=r, dropout=dropout)[1]
    mask = keep_mask(dropout, 8, 48, DEVICE)
    torch.testing.assert_close(stream, r + torch.where(mask, x * dropout.scale, 0.0))
    part = norms.norm_forward(
        "rms", x[3:5], w, eps=1e-5, residual=r[3:5], dropout=Dropout(0.4, dropout.key_low, dropout.key_high, 103)
    )[1]
    assert torch.equal(part, stream[3:5])  # the same bits when the rows are split over ranks or micro-batches


@pytest.mark.parametrize("width", WIDTHS)
def test_dropout_follows_the_token_in_position_sample_order(width):
    """Rows ordered (position, sample) and (sample, position) drop the same elements of the same tokens."""
    length, samples = 3, 2
    x, w = randn(samples * length, width), randn(width)
    by_sample = Dropout.at(0.4, seed=11, step=5, layer=3, site=1, token_first=2**33)
    by_position = Dropout.at(
        0.4, seed=11, step=5, layer=3, site=1, token_first=2**33, samples=samples, sample_stride=length
    )
    order = torch.arange(samples * length, device=DEVICE).view(samples, length).t().reshape(-1)
    expected = norms.norm_forward("rms", x, w, eps=1e-5, dropout=by_sample)[1][order]
    assert torch.equal(norms.norm_forward("rms", x[order], w, eps=1e-5, dropout=by_position)[1], expected)
    dy, rstd = randn(samples * length, width, seed=1), torch.ones(samples * length, device=DEVICE)
    expected = norms.norm_backward("rms", dy, x, w, rstd, dropout=by_sample)[1][order]
    assert torch.equal(norms.norm_backward("rms", dy[order], x[order], w, rstd, dropout=by_position)[1], expected)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("width", WIDTHS)
def test_backward_without_the_stream_s_gradient_or_the_weight_s(kind, width):  # bug 20: flags off as well as on
    x, w, dy = randn(5, width), randn(width, seed=1), randn(5, width, seed=2)
    _, stream, rstd, mean = norms.norm_forward(kind, x, w, w if kind == "layer" else None, eps=1e-5)
    exact = norms.norm_backward_reference(
        kind, dy.double(), stream.double(), w.double(), rstd.double(), mean.double(), None, NO_DROPOUT, "fp32"
    )
    ds, dx, dw, db = norms.norm_backward(kind, dy, stream, w, rstd, mean, has_bias=True, need_weight=False)
    assert dw is None
    assert_faithful(ds, exact[0].float(), exact[0], "dresidual", 4)
    assert_faithful(db, exact[3].float(), exact[3], "dbias", 4)
    assert dx is ds


@pytest.mark.parametrize("width", WIDTHS)
def test_dropout_of_a_later_column(width):  # a rank that holds columns from element_first on
    x, w, dy = randn(3, width), randn(width, seed=1), randn(3, width, seed=2)
    dropout = Dropout.at(0.4, seed=3, step=1, layer=2, site=0, element_first=1000)
    kept = keep_mask(dropout, 3, width, DEVICE)
    _, stream, rstd, mean = norms.norm_forward("rms", x, w, eps=1e-5, dropout=dropout)
    torch.testing.assert_close(stream, torch.where(kept, x * dropout.scale, 0.0))
    ds, dx, _, _ = norms.norm_backward("rms", dy, stream, w, rstd, mean, dropout=dropout)
    torch.testing.assert_close(dx, torch.where(kept, ds * dropout.scale, 0.0))
