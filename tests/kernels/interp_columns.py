"""Cross entropy of transposed logits, and the head that keeps its logits in its weight gradient's memory (interpreter
on a CPU, compiled on a GPU)."""

import pytest
import torch

from kernels import crossentropy_columns, linear_crossentropy
from kernels.crossentropy_columns import GRADIENT, MOST_SPANS, STATISTICS, _tiles, cross_entropy_columns
from kernels.launch import KernelArgumentError
from kernels.linear_crossentropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
    rows_inside,
    words_per_block,
)
from tests.kernels.fidelity import DEVICE, EXP_UNITS, assert_faithful, error, randn

F = torch.nn.functional
SPAN = STATISTICS.words * STATISTICS.tiles
"""Words of one program of the statistics: more of them, and sums are joined."""


def targets(rows, vocab, ignored=0.0):
    generator = torch.Generator().manual_seed(rows + vocab)
    t = torch.randint(0, vocab, (rows,), generator=generator)
    t[torch.rand(rows, generator=generator) < ignored] = -100
    return t.to(DEVICE)


def by_autograd(logits, target, upstream, scale=1.0, z_loss=0.0):
    """(loss, gradient like logits) of (vocab, rows)."""
    leaf = logits.detach().requires_grad_()
    loss = F.cross_entropy(leaf.t(), target, reduction="none", ignore_index=-100)
    loss = loss + torch.where(target != -100, z_loss * torch.logsumexp(leaf, 0).square(), 0.0).to(loss.dtype)
    return loss.detach(), torch.autograd.grad((loss * upstream.to(loss.dtype)).sum() * scale, leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 7), (16, 64), (5, SPAN + 123), (GRADIENT.rows + 16, 40)])
@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_columns_with_a_gradient_each(dtype, rows, vocab, ignored):
    logits, target, upstream = 3 * randn(vocab, rows, dtype=dtype), targets(rows, vocab, ignored), randn(rows, seed=9)
    exact = by_autograd(logits.double(), target, upstream, 0.25)
    low = by_autograd(logits, target, upstream, 0.25)
    loss = cross_entropy_columns(logits, target, row_weight=upstream, scale=0.25)
    assert_faithful(loss, low[0], exact[0], "loss", units=EXP_UNITS[dtype])
    assert_faithful(logits, low[1], exact[1], "gradient", units=EXP_UNITS[dtype])


def test_more_spans_than_are_joined_at_once(monkeypatch):
    monkeypatch.setattr(crossentropy_columns, "STATISTICS", STATISTICS._replace(tiles=1))
    vocab = 17 * STATISTICS.words
    logits, target = 3 * randn(vocab, 2), targets(2, vocab)
    exact = by_autograd(logits.double(), target, torch.ones(2, device=DEVICE))
    loss = cross_entropy_columns(logits, target)
    assert error(loss, exact[0]) < 1e-5
    assert error(logits, exact[1]) < 1e-6


def test_the_largest_logits_lie_anywhere(monkeypatch):
    """In the last span, which is joined later than sixteen others; all of them far below zero."""
    monkeypatch.setattr(crossentropy_columns, "STATISTICS", STATISTICS._replace(tiles=1))
    vocab = 17 * STATISTICS.words
    logits, target = randn(vocab, 2), targets(2, vocab)
    logits += torch.arange(vocab, device=DEVICE)[:, None] * 2.0 - 600
    exact = by_autograd(logits.double(), target, torch.ones(2, device=DEVICE))
    loss = cross_entropy_columns(logits, target)
    assert error(loss, exact[0]) < 1e-4
    assert error(logits, exact[1]) < 1e-4


def test_overwritten_logits_count_as_another_version():  # bug 11
    for gradient in (True, False):
        logits = randn(8, 4)
        cross_entropy_columns(logits, targets(4, 8), gradient=gradient)
        assert logits._version == 1


def test_other_arguments():  # each at a value that is not its default
    vocab, padded, rows = 300, 320, 6
    wide = 2 * randn(padded, 40)
    logits, before = wide[:, 8 : 8 + rows], wide.clone()
    target = targets(rows, vocab)
    target[1], target[2], target[3] = 7, vocab, -1
    used = torch.where((target == 7) | (target == vocab) | (target == -1), -100, target)
    exact = by_autograd(logits[:vocab].double(), used, torch.ones(rows, device=DEVICE), 0.5, 0.01)
    loss = cross_entropy_columns(logits, target, scale=0.5, z_loss=0.01, vocab_size=vocab, ignore_index=7)
    assert error(loss, exact[0]) < 1e-5
    assert error(logits[:vocab], exact[1]) < 1e-6
    assert not bool(logits[vocab:].any())
    assert torch.equal(wide[:, :8], before[:, :8])
    assert torch.equal(wide[:, 8 + rows :], before[:, 8 + rows :])


def test_nan_stays_in_its_column():  # bugs 7, 19
    logits = randn(60, 4)
    logits[4, 1] = logits[9, 2] = float("nan")
    logits[:50, 0] = float("-inf")
    target = torch.tensor([55, 2, -100, 3], device=DEVICE)
    exact = by_autograd(logits.double(), target, torch.ones(4, device=DEVICE))
    loss = cross_entropy_columns(logits, target)
    assert bool(loss[1].isnan())
    assert error(loss[[0, 2, 3]], exact[0][[0, 2, 3]]) < 1e-5
    assert error(logits[:, [0, 3]], exact[1][:, [0, 3]]) < 1e-6
    assert not bool(logits[:, 2].any())


@pytest.mark.parametrize("p", [0.9, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_confident_columns_keep_their_gradient(p, dtype):  # bug 9
    logits = torch.zeros(101, 1, dtype=dtype, device=DEVICE)
    logits[17, 0] = torch.log(torch.tensor(p / (1 - p) * 100)).item()
    target = torch.tensor([17], device=DEVICE)
    _, exact = by_autograd(logits.double(), target, torch.ones(1, device=DEVICE))
    cross_entropy_columns(logits, target)
    assert float(((logits.double() - exact) / exact).abs().max()) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_only_lines_along_the_rows():
    with pytest.raises(KernelArgumentError, match=r"logits has strides \(1, 8\); accepted: unit stride along the rows"):
        cross_entropy_columns(randn(4, 8).t(), targets(4, 8))


CASES = {"all inside": (40, 24, None), "inside, then chunks": (160, 60, 64), "a ragged line": (37, 24, None)}


@pytest.mark.parametrize("case", CASES)
def test_logits_in_the_weight_gradient(monkeypatch, case):
    rows, hidden, chunk = CASES[case]
    vocab = 300  # several blocks of words, the last one short
    if chunk:
        monkeypatch.setattr(linear_crossentropy, "rows_per_chunk", lambda *_: chunk)
    assert 0 < rows_inside(rows, chunk or rows, hidden, torch.bfloat16, torch.float32) <= rows
    x, w = randn(rows, hidden, dtype=torch.bfloat16), randn(vocab, hidden, dtype=torch.bfloat16, seed=1)
    assert words_per_block(vocab, hidden, x.device) * 2 < vocab
    target, upstream = targets(rows, vocab, 0.2), randn(rows, seed=9)
    exact = linear_cross_entropy_reference(x.double(), w.double(), target, 0.01, upstream)
    low = linear_cross_entropy_reference(x, w, target, 0.01, upstream)
    ours = linear_cross_entropy(x, w, target, scale=0.01, row_weight=upstream)
    assert ours.dweight.dtype == torch.float32
    assert ours.dweight.is_contiguous()
    for name in ("loss", "dx", "dweight"):
        assert_faithful(getattr(ours, name), getattr(low, name), getattr(exact, name), name)
    chunks = linear_cross_entropy(x, w, target, scale=0.01, row_weight=upstream, chunk_rows=16)
    torch.testing.assert_close(ours.loss, chunks.loss)
    torch.testing.assert_close(ours.dweight, chunks.dweight, atol=1e-6, rtol=1e-4)


def bytes_of(t):
    """Range of addresses that a tensor lies in."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return range(t.data_ptr(), t.data_ptr() + (last + 1) * t.itemsize)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logits_are_read_before_the_weight_gradient_is_written_over_them(monkeypatch, dtype):
    """By addresses: the references widen what they multiply, and would hide it."""
    written, form = [], linear_crossentropy.accumulate_product

    def watched(into, a, b, *, add):
        written.append(bytes_of(into))
        read = bytes_of(a)
        assert not any(w.start < read.stop and read.start < w.stop for w in written)
        return form(into, a, b, add=add)

    monkeypatch.setattr(linear_crossentropy, "accumulate_product", watched)
    rows, hidden, vocab = 20, 24, 400
    x, w, target = randn(rows, hidden, dtype=dtype), randn(vocab, hidden, dtype=dtype, seed=1), targets(rows, vocab)
    ours = linear_cross_entropy(x, w, target)
    assert len(written) > 2
    inside = bytes_of(ours.dweight)
    assert all(inside.start <= block.start < block.stop <= inside.stop for block in written)
    exact = linear_cross_entropy_reference(x.double(), w.double(), target, 1.0, None)
    assert error(ours.dweight, exact.dweight) < (0.1 if dtype == torch.bfloat16 else 1e-4)


def test_where_logits_lie():
    bf16, fp32, fp64 = torch.bfloat16, torch.float32, torch.float64
    assert rows_inside(8192, 2048, 4096, bf16, fp32) == 8192
    assert rows_inside(9000, 2048, 4096, bf16, fp32) == 8192
    assert rows_inside(32768, 5248, 768, bf16, fp32) == 0  # 1,536 rows would make a thinner chunk than the buffer
    assert rows_inside(1000, 128, 700, fp64, fp64) == 700


def test_the_loss_alone_leaves_the_main_gradient():
    x, w, target, main = randn(37, 24), randn(300, 24, seed=1), targets(37, 300), torch.ones(300, 24, device=DEVICE)
    alone = linear_cross_entropy(x, w, target, weight_grad=main, gradient=False)
    assert alone.dx is alone.dweight is None
    assert bool((main == 1).all())
    torch.testing.assert_close(alone.loss, linear_cross_entropy(x, w, target).loss)


def test_weights_and_targets_of_rows_in_any_layout():
    x, w, target, upstream = randn(40, 24), randn(50, 24, seed=1), targets(40, 50, 0.2), randn(40, seed=9)
    base = linear_cross_entropy(x, w, target, row_weight=upstream, chunk_rows=16)
    strided = [torch.stack((t, t), 1)[:, 0] for t in (target, upstream)]
    for rows in (None, 16):
        ours = linear_cross_entropy(
            x, w, strided[0], row_weight=strided[1].clone().requires_grad_() if rows else strided[1], chunk_rows=rows
        )
        torch.testing.assert_close(ours.loss, base.loss)
        torch.testing.assert_close(ours.dweight, base.dweight)
        assert not ours.loss.requires_grad


def test_a_grid_s_second_axis_is_never_too_long():  # bug 3
    for words in (1, 7, 128_256, 524_281, 3_000_000):
        for config in (STATISTICS, GRADIENT):
            tiles = _tiles(config, words, 64)
            assert -(-words // (tiles["TILES"] * tiles["WORDS"])) <= MOST_SPANS


def test_chunks_accumulate_in_fp32_under_autocast():  # bug 17
    x, w = (randn(*shape, dtype=torch.bfloat16, seed=seed) for shape, seed in (((40, 24), 0), ((77, 24), 1)))
    plain = linear_cross_entropy(x, w, targets(40, 77), chunk_rows=16)
    with torch.autocast(DEVICE, torch.bfloat16):
        cast = linear_cross_entropy(x, w, targets(40, 77), chunk_rows=16)
    assert torch.equal(cast.dweight, plain.dweight)
