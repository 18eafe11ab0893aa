"""Every operator of the cost table has a function and inputs of the shapes a call names; each backward agrees with
autograd."""

import pytest
import torch

from kernels import registry
from program import KernelCall
from program.ops import OPERATORS

CALLS = [
    *(KernelCall("gemm", (6, 8, 4), "fp32", v) for v in ("nt", "nn", "tn", "tn+acc32", "nt+bias")),
    *(KernelCall("bmm", (2, 6, 8, 4), "fp32", v) for v in ("nt", "nn", "tn")),
    *(KernelCall(f"attention_{way}", (2, 4, 2, 8, 8), "fp32", "flash") for way in ("forward", "backward")),
    *(
        KernelCall(f"softmax_{way}", (16, 8), "fp32", v)
        for way in ("forward", "backward")
        for v in ("causal", "causal+dropout")
    ),
    *(
        KernelCall(f"{n}_{w}", (6, 8), "fp32")
        for n in ("rmsnorm", "layernorm", "swiglu", "gelu")
        for w in ("forward", "backward")
    ),
    *(KernelCall(f"rope_{way}", (6, 3, 8), "fp32") for way in ("forward", "backward")),
    *(
        KernelCall(n, (6, 8), "fp32", v)
        for n in ("add", "add_backward")
        for v in ("", "bias", "dropout", "bias+dropout")
    ),
    KernelCall("bias_grad", (6, 8), "fp32"),
    *(KernelCall(f"embedding_{way}", (6, 8, 10), "fp32") for way in ("forward", "backward")),
    *(KernelCall(f"position_{way}", (6, 8), "fp32") for way in ("forward", "backward")),
    *(KernelCall(n, (6, 8), "fp32") for n in ("ce_max", "ce_exp", "ce_loss")),
    *(KernelCall(n, (6,), "fp32") for n in ("fill", "copy", "sqnorm", "adamw")),
    KernelCall("copy", (6,), "fp32", "fp32->bf16"),
    KernelCall("adamw", (6,), "fp32", "bf16"),
]


def test_every_operator_of_the_cost_table_is_registered() -> None:
    assert set(registry.OPERATIONS) == set(OPERATORS) == {call.op for call in CALLS}


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.op}-{c.variant}")
def test_a_call_runs_on_its_own_inputs_with_finite_results(call: KernelCall, dtype: str) -> None:
    call = KernelCall(call.op, call.shape, dtype, call.variant)
    inputs = registry.OPERATIONS[call.op].make_inputs(call, "cpu", torch.Generator().manual_seed(1))
    result = registry.run_call(call, inputs)
    for tensor in result if isinstance(result, tuple) else (result,):
        assert tensor is None or torch.isfinite(tensor).all()


def test_an_unknown_operator_is_answered_with_the_known_ones() -> None:
    with pytest.raises(Exception, match="rmsnorm_forward"):
        registry.op("rmsnorm_forwrad")


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_norm_backward_equals_autograd(kind: str) -> None:
    x, w, b, dy, r = _leaf(5, 8), _leaf(8), _leaf(8), torch.randn(5, 8).double(), torch.randn(5, 8).double()
    params = (w,) if kind == "rmsnorm" else (w, b)
    y, *stats = registry.op(f"{kind}_forward")(x, *params, 1e-5)
    expected = torch.autograd.grad(y, (x, *params), dy)
    if kind == "layernorm":
        assert torch.allclose(y, torch.nn.functional.layer_norm(x, (8,), w, b, 1e-5), atol=1e-13)
    grads = [torch.ones(8, dtype=torch.float64) for _ in params]
    with torch.no_grad():
        dx = registry.op(f"{kind}_backward")(dy, x, *stats, w, r, *grads)
    assert torch.allclose(dx, expected[0] + r, atol=1e-12)
    for grad, want in zip(grads, expected[1:], strict=True):
        assert torch.allclose(grad, want + 1, atol=1e-12)


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_activation_backward_equals_autograd_and_remakes_the_activation(kind: str) -> None:
    u, da = _leaf(5, 16), torch.randn(5, 8 if kind == "swiglu" else 16).double()
    a = registry.op(f"{kind}_forward")(u)
    (expected,) = torch.autograd.grad(a, u, da)
    du, again = registry.op(f"{kind}_backward")(da, u.detach())
    assert torch.allclose(du, expected, atol=1e-12)
    assert torch.allclose(again, a, atol=1e-12)


def test_rotary_backward_undoes_the_rotation() -> None:
    x = torch.randn(6, 2, 3, 8, dtype=torch.float64)
    angle = torch.rand(6, 4, dtype=torch.float64)
    turned = registry.op("rope_forward")(x.clone(), angle.cos(), angle.sin())
    assert not torch.allclose(turned, x)
    assert torch.allclose(registry.op("rope_backward")(turned, angle.cos(), angle.sin()), x, atol=1e-13)


@pytest.mark.parametrize("split", [1, 2, 4])
def test_cross_entropy_in_parts_equals_torch_for_any_split_and_padding(split: int) -> None:
    vocab, columns = 13, 16 // split  # 3 padded columns; the last of 4 ranks holds one real column
    logits, targets = torch.randn(9, 16, dtype=torch.float64), torch.randint(vocab, (9,))
    leaf = logits[:, :vocab].clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, targets)
    expected.backward()
    parts = [(logits[:, i * columns : (i + 1) * columns].clone(), i * columns) for i in range(split)]
    valid = [min(max(vocab - first, 0), columns) for _, first in parts]
    top = torch.stack([registry.op("ce_max")(p, v) for (p, _), v in zip(parts, valid, strict=True)]).amax(0)
    sums = sum(registry.op("ce_exp")(p, top, targets, f, v) for (p, f), v in zip(parts, valid, strict=True))
    for (part, first), v in zip(parts, valid, strict=True):
        loss = torch.zeros(1, dtype=torch.float64)
        registry.op("ce_loss")(part, top, sums, targets, loss, first, v, 1 / 9)
        assert torch.allclose(loss[0], expected, atol=1e-12)
        assert torch.allclose(part[:, :v], leaf.grad[:, first : first + v], atol=1e-12)
        assert not part[:, v:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adamw_equals_its_formula_with_decay_on_given_stretches(dtype: torch.dtype) -> None:
    p, g, m, v = (torch.rand(20, dtype=dtype) for _ in range(4))
    lr, (b1, b2), eps, step = 1e-2, (0.9, 0.95), 1e-8, 3
    decay = torch.zeros(20, dtype=dtype)
    decay[:5], decay[9:12] = 0.1, 0.1
    grad = g * 0.3
    want_m, want_v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
    want = p * (1 - lr * decay) - lr * (want_m / (1 - b1**step)) / ((want_v / (1 - b2**step)).sqrt() + eps)
    coefficient = torch.tensor(0.3, dtype=dtype)
    weight = torch.zeros(20, dtype=torch.bfloat16)
    registry.op("adamw")(p, g, m, v, coefficient, weight, None, ((0, 5), (9, 12)), lr=lr, weight_decay=0.1, step=step)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert torch.allclose(p, want, atol=tolerance)
    assert torch.allclose(v, want_v, atol=tolerance)
    assert torch.equal(weight, p.to(torch.bfloat16))


def test_gradient_accumulation_of_bf16_products_is_in_fp32() -> None:
    a, b = torch.randn(64, 4).bfloat16(), torch.randn(64, 6).bfloat16()
    out = torch.ones(4, 6)
    registry.op("gemm")(a, b, None, out, "tn+acc32")
    assert torch.allclose(out, a.float().t() @ b.float() + 1, atol=1e-5)


FUSED = (
    *(f"{n}_{w}" for n in ("rmsnorm", "layernorm", "swiglu", "gelu", "rope") for w in ("forward", "backward")),
    "ce_max", "ce_exp", "ce_loss", "adamw", "add", "add_backward", "bias_grad",
)  # fmt: skip


@pytest.mark.parametrize("call", [c for c in CALLS if c.op in FUSED], ids=lambda c: f"{c.op}-{c.variant}")
def test_a_fused_kernel_has_the_signature_and_the_results_of_its_reference(call: KernelCall) -> None:
    """On a CPU the fused entry runs its own reference, so this holds arguments, results and what is updated in
    place."""
    from kernels.registry_triton import FUSED as adapters

    name = call.op
    made = registry.OPERATIONS[name].make_inputs
    ours, theirs = (made(call, "cpu", torch.Generator().manual_seed(3)) for _ in range(2))
    left, right = registry.op(name)(*ours), adapters[name](*theirs)
    pairs = [*zip(_tensors(left), _tensors(right), strict=True)]
    if name == "adamw":  # whether the gradient is scaled in place is the implementation's own business
        ours, theirs = (ours[0], *ours[2:]), (theirs[0], *theirs[2:])
    pairs += zip(_tensors(ours), _tensors(theirs), strict=True)
    for a, b in pairs:
        assert torch.allclose(a, b, atol=1e-5)


def test_every_fused_kernel_is_held() -> None:
    from kernels.registry_triton import FUSED as adapters

    assert set(adapters) == {*FUSED, "ce_columns"}


def test_a_cross_entropy_down_the_columns_is_its_three_parts() -> None:
    """Of logits that lie transposed; the last 3 words are padding, the second target is to be ignored."""
    from kernels.registry_triton import FUSED as adapters

    logits, targets = torch.randn(7, 16, dtype=torch.float64), torch.randint(13, (7,))
    targets[1] = -100
    rows, want = logits.clone(), torch.zeros(1, dtype=torch.float64)
    top = registry.op("ce_max")(rows, 13)
    sums = registry.op("ce_exp")(rows, top, targets, 0, 13)
    registry.op("ce_loss")(rows, top, sums, targets, want, 0, 13, 0.25)
    for function in (registry.LINES["ce_columns"], adapters["ce_columns"]):
        columns, loss = logits.t().contiguous(), torch.zeros(1, dtype=torch.float64)
        function(columns, targets, loss, valid=13, scale=0.25)
        assert torch.allclose(columns.t(), rows, atol=1e-12)
        assert torch.allclose(loss, want, atol=1e-12)


def _tensors(values: object) -> list[torch.Tensor]:
    many = values if isinstance(values, tuple) else (values,)
    return [v for v in many if isinstance(v, torch.Tensor)]
