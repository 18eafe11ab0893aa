"""Cross entropy and the chunked head against fp64 autograd (interpreter on a CPU, compiled on a GPU)."""

import pytest
import torch

from kernels.crossentropy import RowConfig, RowStatistics, cross_entropy, exp_target, row_max
from tests.kernels.fidelity import DEVICE, EXP_UNITS, assert_faithful, error, randn

F = torch.nn.functional
SMALL = RowConfig(64, 4)


def targets(rows, vocab, ignored=0.0):
    generator = torch.Generator().manual_seed(rows + vocab)
    t = torch.randint(0, vocab, (rows,), generator=generator)
    t[torch.rand(rows, generator=generator) < ignored] = -100
    return t.to(DEVICE)


def by_autograd(logits, target, upstream):
    leaf = logits.detach().requires_grad_()
    loss = F.cross_entropy(leaf, target, reduction="none", ignore_index=-100)
    return loss.detach(), torch.autograd.grad((loss * upstream.to(loss.dtype)).sum(), leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 7), (5, 123), (4, 1000)])
@pytest.mark.parametrize("ignored", [0.0, 0.2, 0.95])
def test_rows_with_a_gradient_each(dtype, rows, vocab, ignored):  # bugs 5, 6, 8
    logits, target, upstream = 3 * randn(rows, vocab, dtype=dtype), targets(rows, vocab, ignored), randn(rows, seed=9)
    exact = by_autograd(logits.double(), target, upstream)
    low = by_autograd(logits, target, upstream)
    before = logits.clone()
    loss, gradient = cross_entropy(logits, target, row_weight=upstream, config=SMALL)
    assert torch.equal(before, logits)
    assert_faithful(loss, low[0], exact[0], "loss", units=EXP_UNITS[dtype])
    assert_faithful(gradient, low[1], exact[1], "gradient", units=EXP_UNITS[dtype])
    again, written = cross_entropy(logits, target, row_weight=upstream, in_place=True, config=SMALL)
    assert written.data_ptr() == logits.data_ptr()
    assert torch.equal(logits, gradient)
    assert torch.equal(again, loss)


def test_everything_ignored_is_exactly_zero():  # bug 7
    logits = randn(3, 50)
    logits[1, 2] = float("nan")
    loss, gradient = cross_entropy(logits, torch.full((3,), -100, device=DEVICE))
    assert not bool(loss.any())
    assert not bool(gradient.any())


@pytest.mark.parametrize("p", [0.9, 0.99, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_confident_rows_keep_their_gradient(p, dtype):  # bug 9
    logits = torch.zeros(1, 101, dtype=dtype, device=DEVICE)
    logits[0, 17] = torch.log(torch.tensor(p / (1 - p) * 100)).item()
    target = torch.tensor([17], device=DEVICE)
    _, exact = by_autograd(logits.double(), target, torch.ones(1, device=DEVICE))
    _, gradient = cross_entropy(logits, target)
    relative = ((gradient.double() - exact) / exact).abs().max()
    assert float(relative) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_targets_outside_the_vocabulary():  # bug 10
    vocab, padded = 100, 128
    logits = randn(5, padded)
    target = torch.tensor([3, vocab, padded - 1, -1, padded + 7], device=DEVICE)
    loss, gradient = cross_entropy(logits, target, vocab_size=vocab)
    exact = by_autograd(logits[:1, :vocab].double(), target[:1], torch.ones(1, device=DEVICE))
    assert error(loss[:1], exact[0]) < 1e-5
    assert error(gradient[:1, :vocab], exact[1]) < 1e-6
    assert not bool(loss[1:].any())
    assert not bool(gradient[1:].any())
    assert not bool(gradient[:, vocab:].any())


def test_minus_infinity_logits_and_nan_rows():  # bug 19
    logits = randn(3, 60)
    logits[0, :50] = float("-inf")
    logits[1, 4] = float("nan")
    target = torch.tensor([55, 2, 3], device=DEVICE)
    exact = by_autograd(logits.double(), target, torch.ones(3, device=DEVICE))
    loss, gradient = cross_entropy(logits, target)
    assert error(loss[[0, 2]], exact[0][[0, 2]]) < 1e-5
    assert error(gradient[[0, 2]], exact[1][[0, 2]]) < 1e-6
    assert bool(loss[1].isnan())


def test_z_loss():  # bug 20
    logits, target = 2 * randn(4, 90), targets(4, 90)
    leaf = logits.double().requires_grad_()
    exact = F.cross_entropy(leaf, target, reduction="none") + 0.01 * torch.logsumexp(leaf, -1).square()
    (exact_gradient,) = torch.autograd.grad(exact.sum() * 0.25, leaf)
    loss, gradient = cross_entropy(logits, target, z_loss=0.01, scale=0.25)
    assert error(loss, exact.detach()) < 1e-5
    assert error(gradient, exact_gradient) < 1e-6


@pytest.mark.parametrize("shards", [2, 3])
def test_split_vocabulary(shards):
    vocab, padded = 100, 120
    logits, target, upstream = 4 * randn(6, padded), targets(6, vocab, 0.2), randn(6, seed=9)
    exact = by_autograd(logits[:, :vocab].double(), target, upstream)
    width = padded // shards
    parts = [logits[:, i * width : (i + 1) * width].contiguous() for i in range(shards)]
    at = [{"vocab_first": i * width, "vocab_size": vocab} for i in range(shards)]
    top = torch.stack([row_max(part, **where) for part, where in zip(parts, at, strict=True)]).amax(0)
    sums = [exp_target(part, top, target, **where) for part, where in zip(parts, at, strict=True)]
    stats = RowStatistics(top, *(sum(parts) for parts in zip(*sums, strict=True)))
    for i, (part, where) in enumerate(zip(parts, at, strict=True)):
        loss, gradient = cross_entropy(part, target, stats=stats, row_weight=upstream, **where)
        assert error(loss, exact[0]) < 1e-5
        held = max(0, min(width, vocab - i * width))
        assert error(gradient[:, :held], exact[1][:, i * width : i * width + held]) < 1e-6
        assert not bool(gradient[:, held:].any())


def test_another_ignore_index():  # bug 20: a flag at a value that is not its default
    logits, target = 2 * randn(4, 90), targets(4, 90)
    target[1] = 7
    exact = by_autograd(logits.double(), torch.where(target == 7, -100, target), torch.ones(4, device=logits.device))
    loss, gradient = cross_entropy(logits, target, ignore_index=7)
    assert error(loss, exact[0]) < 1e-5
    assert error(gradient, exact[1]) < 1e-6
    assert not gradient[1].any()
