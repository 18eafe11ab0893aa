"""Units written as lines: every declared backward is autograd's of its declared forward; every operator keeps the
contract of its results; a line says price, bytes and numbers at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from compiler import compile_run
from compiler.units.builder import UnitBuilder
from kernels import registry
from program.lines import Apply, Lines
from program.operators import OPERATORS
from program.ops import bytes_of
from tests.trainer.lines import VARIANTS, Lined, declared, filled, make_run, units
from tests.trainer.ranks import GPT, LLAMA, text
from trainer.executor import Executor
from windtunnel.job import job_of

Values = dict[str, torch.Tensor]
CASES = [(variant, unit) for variant in VARIANTS for unit in ("embedding", "layer", "cut", "head")]


def _setup(variant: str, name: str, **options: Any) -> tuple[Any, Lined, Values]:
    model, plan = VARIANTS[variant]
    run = make_run(model, plan)
    unit = units(run)[name]
    number = {"embedding": 0, "head": run.model.layers + 1}.get(name, 1)
    torch.manual_seed(7)
    values = {n: filled(t, run) for n, t in declared(unit).items() if ":" in n or n in ("tokens", "targets", "x", "d2")}
    return run, Lined(run, unit, number, **options), values


@pytest.mark.parametrize(("variant", "name"), CASES)
def test_a_declared_backward_is_the_gradient_of_its_declared_forward(variant: str, name: str) -> None:
    """In fp64. The head's forward overwrites logits by their gradient, so torch's cross entropy stands for its end."""
    run, lined, values = _setup(variant, name)
    unit, weights = lined.unit, [n for n in values if n.startswith("w:")]
    leaves = [n for n in ("x", *weights) if n in values]
    for leaf in leaves:
        values[leaf].requires_grad_()
    forward = dict(values)
    for part in unit.forward:
        if name == "head" and part.piece != "head.in":
            break
        lined.run(part, forward)
    if name == "head":
        logits = forward["y"] @ values["w:head.weight"].t() + values.get("w:head.bias", 0)
        if (cap := run.model.logit_softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        scale = values["targets"].numel() / (run.plan.global_batch_size * run.model.seq_length)
        targets = values["targets"]
        out = torch.nn.functional.cross_entropy(logits[:, : run.model.vocab], targets) * scale
        want = torch.autograd.grad(out, [values[n] for n in leaves])
    else:
        out = forward[unit.output]
        want = torch.autograd.grad(out, [values[n] for n in leaves], values["d2"])

    with torch.no_grad():
        found = {n: v.detach().clone() for n, v in values.items()}
        for part in (*unit.forward, *unit.backward):
            lined.run(part, found)
    if name == "head":
        assert found["s:loss"].item() == pytest.approx(out.item(), rel=1e-12)
    got = [found["d0"] if n == "x" else found[f"g{n[1:]}"] for n in leaves]
    for leaf, mine, theirs in zip(leaves, got, want, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-13 + 1e-11 * theirs.abs().max().item()), leaf


@pytest.mark.parametrize(("variant", "name"), CASES)
def test_results_are_fresh_and_own_their_bytes_and_only_declared_arguments_change(variant: str, name: str) -> None:
    """Of every operator, on every line that a unit has. What a line makes shares no storage with what it was given."""
    used: set[str] = set()

    def checked(op: str, function: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            used.add(op)
            tensors = [(i, a) for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
            updates = OPERATORS[op].updates
            before = [(i, a, a.clone()) for i, a in tensors if i not in updates]
            result = function(*args, **given)
            for i, argument, old in before:
                assert torch.equal(argument, old), f"{op} changes argument {i}, which it does not declare"
            made = result if isinstance(result, tuple) else (result,)
            fresh = [t for t in made if isinstance(t, torch.Tensor) and all(t is not a for _, a in tensors)]
            others = [a.untyped_storage().data_ptr() for i, a in tensors if i not in OPERATORS[op].consumes]
            for tensor in fresh:
                storage = tensor.untyped_storage()
                assert storage.data_ptr() not in others, f"{op} aliases"
                assert storage.nbytes() == tensor.numel() * tensor.element_size(), f"{op} owns more than its result"
            return result

        return call

    _, lined, values = _setup(variant, name, wrap=checked)
    with torch.no_grad():
        for part in (*lined.unit.forward, *lined.unit.backward):
            lined.run(part, values)
            assert isinstance(part, Lines)
            for result in part.writes:
                spec = declared(lined.unit)[result]
                assert tuple(values[result].shape) == spec.dims
                assert values[result].is_contiguous(), (part.piece, result)
    assert used


@pytest.mark.parametrize(
    ("model", "side", "op"),
    [(LLAMA, "forward", "rope_forward"), (GPT, "backward", "bias_grad"), (LLAMA, "backward", "gemm_add")],
)
def test_deleting_a_line_changes_price_bytes_and_losses_at_once(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], side: str, op: str
) -> None:
    module = import_module("compiler.units.layer")
    run = make_run(model, {})

    def told() -> tuple[int, int, str, float, float]:
        program = compile_run(run)
        calls = [c for b in program.classes[0].blocks for i in b.instructions for c in i.body]
        executor = Executor(program, job_of(run), 0, {}, text(run))
        results = [executor.step(step) for step in range(2)]
        executor.close()
        return len(calls), sum(map(bytes_of, calls)), program.hash, results[-1].loss, results[0].grad_norm

    before = told()
    kept = getattr(UnitBuilder, side)

    def without(self: UnitBuilder, *arguments: Any, **options: Any) -> None:
        kept(self, *(a for a in arguments if not (isinstance(a, Apply) and a.op == op)), **options)

    monkeypatch.setattr(UnitBuilder, side, without)
    module._layer.cache_clear()
    after = told()
    monkeypatch.undo()
    module._layer.cache_clear()
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert all(a != b for a, b in zip(after[2:], before[2:], strict=True))


@pytest.mark.parametrize("kernels", ["compiled", "triton"])
@pytest.mark.parametrize(("variant", "name"), CASES)
def test_the_kernels_of_a_device_take_the_lines_as_they_stand(
    monkeypatch: pytest.MonkeyPatch, variant: str, name: str, kernels: str
) -> None:
    """What is bound on CUDA has the signatures that lines call: on a CPU it computes what the references do."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    bound = vars(registry.bind.__wrapped__(kernels, "cuda"))
    found = []
    for functions in ({}, bound):
        _, lined, values = _setup(variant, name, wrap=lambda op, f, given=functions: given.get(op, f))
        with torch.no_grad():
            for part in (*lined.unit.forward, *lined.unit.backward):
                lined.run(part, values)
        found.append(values)
    for tensor, want in found[0].items():
        size = float(want.double().abs().max())
        assert torch.allclose(found[1][tensor], want, rtol=1e-10, atol=1e-12 * (1 + size)), tensor
