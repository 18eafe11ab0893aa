"""What a kernel would read or write wrongly is refused by name on every path: strides, short buffers, arguments
without effect."""

import pytest
import torch

from kernels import activations, adamw, crossentropy, norms, residual, rotary
from kernels.launch import KernelArgumentError
from kernels.random import Dropout
from kernels.reference_layer import Mask

X, W, R = torch.randn(3, 8), torch.randn(8), torch.rand(3)
SPREAD, SHORT = torch.randn(16)[::2], torch.zeros(3)
LOGITS, TARGET = torch.randn(3, 8), torch.tensor([1, 2, 3])
STATS = crossentropy.RowStatistics(R, R, R)
MASK = Mask(Dropout(0.5), torch.arange(3)[:, None], torch.arange(8), 0)

CASES = {
    "a strided weight": (lambda: norms.norm_forward("rms", X, SPREAD, eps=1e-5), "weight"),
    "an expanded weight": (lambda: norms.norm_forward("rms", X, W[:1].expand(8), eps=1e-5), "weight"),
    "a strided bias": (lambda: norms.norm_forward("layer", X, W, SPREAD, eps=1e-5), "bias"),
    "another kind": (lambda: norms.norm_forward("RMS", X, W, eps=1e-5), "kind"),
    "another rounding": (lambda: norms.norm_forward("rms", X, W, eps=1e-5, rounding="gemma"), "rounding"),
    "no width": (lambda: norms.norm_forward("rms", X[:, :0], W[:0], eps=1e-5), "width"),
    "a strided rstd": (lambda: norms.norm_backward("rms", X, X, W, torch.rand(6)[::2]), "rstd"),
    "a bf16 rstd": (lambda: norms.norm_backward("rms", X, X, W, R.bfloat16()), "rstd"),
    "a short mean": (lambda: norms.norm_backward("layer", X, X, W, R, R[:2]), "mean"),
    "a short dstream": (lambda: norms.norm_backward("rms", X, X, W, R, dstream=X[:2]), "dstream"),
    "a strided weight gradient": (lambda: norms.norm_backward("rms", X, X, W, R, weight_grad=SPREAD), "weight_grad"),
    "a bias gradient without bias": (lambda: norms.norm_backward("layer", X, X, W, R, R, bias_grad=W), "has_bias"),
    "gelu: a short bias gradient": (lambda: activations.gelu_backward(X, X, W, bias_grad=SHORT), "bias_grad"),
    "gelu: a bias gradient without bias": (lambda: activations.gelu_backward(X, X, bias_grad=W), "bias is None"),
    "gelu: a strided bias": (lambda: activations.gelu_forward(X, SPREAD), "bias"),
    "swiglu: an expanded output": (
        lambda: activations.swiglu_backward(X, X, X, dgate=X[:1].expand(3, 8), dup=X.clone()), "dgate",
    ),
    "residual: a strided bias": (lambda: residual.residual_forward(X, X, SPREAD), "bias"),
    "residual: a strided bias gradient": (lambda: residual.residual_backward(X, SPREAD), "bias_grad"),
    "residual: columns that begin elsewhere": (
        lambda: residual.residual_forward(X, X, None, Mask(MASK.dropout, MASK.tokens, MASK.elements, 5)),
        "first_element",
    ),
    "a dropout of no samples": (lambda: Dropout(0.5, samples=0), "samples"),
    "a vocabulary beyond the logits": (lambda: crossentropy.cross_entropy(LOGITS, TARGET, vocab_size=12), "vocab_size"),
    "expanded row weights": (
        lambda: crossentropy.cross_entropy(LOGITS, TARGET, row_weight=R[:1].expand(3)), "row_weight",
    ),
    "short statistics": (
        lambda: crossentropy.cross_entropy(LOGITS, TARGET, stats=crossentropy.RowStatistics(R, R[:2], R)), "others",
    ),
    "a transposed gradient": (
        lambda: crossentropy.cross_entropy(LOGITS, TARGET, out=torch.zeros(8, 3).t()), "out",
    ),
    "expanded logits in place": (
        lambda: crossentropy.cross_entropy(LOGITS[:1].expand(3, 8), TARGET, in_place=True), "logits",
    ),
    "rotary: an expanded output": (
        lambda: rotary.rotary_forward(
            *[torch.randn(1, 3, 2, 4)] * 2, *rotary.rotary_table(3, 4), q_out=torch.zeros(1, 1, 1, 4).expand(1, 3, 2, 4)
        ), "q_out",
    ),
    "adamw: a beta of one": (lambda: adamw.AdamWStep(1e-3, 1, beta1=1.0), "beta1"),
    "adamw: a learning rate that is none": (lambda: adamw.AdamWStep(float("nan"), 1), "lr"),
    "no tensor": (lambda: norms.norm_forward("rms", None, W, eps=1e-5), "x is NoneType"),
    "adamw: a number for a scale": (
        lambda: adamw.adamw_step(*[torch.rand(8) for _ in range(4)], adamw.AdamWStep(1e-3, 1), grad_scale=0.5),
        "grad_scale",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_layout_that_a_kernel_would_misread_is_named(name):
    call, said = CASES[name]
    with pytest.raises(KernelArgumentError, match=said):
        call()


def test_any_number_but_zero_decays():
    assert adamw.DecayMask.of(torch.tensor([0, 255, 1], dtype=torch.uint8)).mask.tolist() == [0, 1, 1]


def test_a_saved_tensor_written_over_by_the_loss_is_noticed():
    """Bug 11: autograd's version counter moves, so a backward that still needs the logits refuses."""
    logits = LOGITS.clone()
    before = logits._version
    crossentropy.cross_entropy(logits, TARGET, in_place=True)
    assert logits._version > before


def test_negative_targets_are_ignored_by_the_parts_too():
    from kernels import registry

    logits, target = torch.randn(3, 8), torch.tensor([1, -100, 3])
    top = registry.op("ce_max")(logits, 8)
    sums, loss = registry.op("ce_exp")(logits, top, target, 0, 8), torch.zeros(1)
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    gradient = registry.op("ce_loss")(logits.clone(), top, sums, target, loss, 0, 8, 1.0)
    torch.testing.assert_close(loss[0], expected)
    assert not gradient[1].any()
