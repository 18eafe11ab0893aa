"""Cross entropy of transposed logits (interpreter on a CPU, compiled on a GPU)."""

import pytest
import torch

from kernels import crossentropy_columns
from kernels.crossentropy_columns import GRADIENT, MOST_SPANS, STATISTICS, _tiles, cross_entropy_columns
from kernels.launch import KernelArgumentError
from tests.kernels.fidelity import DEVICE, EXP_UNITS, assert_faithful, error, randn

F = torch.nn.functional
SPAN = STATISTICS.words * STATISTICS.tiles
"""Words of one program of the statistics: more of them, and sums are joined."""


def targets(rows, vocab, ignored=0.0):
    generator = torch.Generator().manual_seed(rows + vocab)
    t = torch.randint(0, vocab, (rows,), generator=generator)
    t[torch.rand(rows, generator=generator) < ignored] = -100
    return t.to(DEVICE)


def by_autograd(logits, target, upstream, scale=1.0):
    """(loss, gradient like logits) of (vocab, rows)."""
    leaf = logits.detach().requires_grad_()
    loss = F.cross_entropy(leaf.t(), target, reduction="none", ignore_index=-100)
    return loss.detach(), torch.autograd.grad((loss * upstream.to(loss.dtype)).sum() * scale, leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 7), (16, 64), (5, SPAN + 123), (GRADIENT.rows + 16, 40)])
@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_columns_with_a_gradient_each(dtype, rows, vocab, ignored):
    logits, target, upstream = 3 * randn(vocab, rows, dtype=dtype), targets(rows, vocab, ignored), torch.ones(rows)
    exact = by_autograd(logits.double(), target, upstream.to(DEVICE), 0.25)
    low = by_autograd(logits, target, upstream.to(DEVICE), 0.25)
    loss = cross_entropy_columns(logits, target, scale=0.25)
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
    logits = randn(8, 4)
    cross_entropy_columns(logits, targets(4, 8))
    assert logits._version == 1


def test_other_arguments():  # each at a value that is not its default
    vocab, padded, rows = 300, 320, 6
    wide = 2 * randn(padded, 40)
    logits, before = wide[:, 8 : 8 + rows], wide.clone()
    target = targets(rows, vocab)
    target[1], target[2], target[3] = 7, vocab, -1
    used = torch.where((target == 7) | (target == vocab) | (target == -1), -100, target)
    exact = by_autograd(logits[:vocab].double(), used, torch.ones(rows, device=DEVICE), 0.5)
    loss = cross_entropy_columns(logits, target, scale=0.5, vocab_size=vocab, ignore_index=7)
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


def test_a_grid_s_second_axis_is_never_too_long():  # bug 3
    for words in (1, 7, 128_256, 524_281, 3_000_000):
        for config in (STATISTICS, GRADIENT):
            tiles = _tiles(config, words, 64)
            assert -(-words // (tiles["TILES"] * tiles["WORDS"])) <= MOST_SPANS
