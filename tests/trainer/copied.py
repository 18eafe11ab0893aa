"""Holds a run to a model of transformers on copied weights: logits, loss and gradients of one step."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from compiler import compile_run
from plan.run import Run, load
from program import expand
from tests.trainer.ranks import make_run, text
from trainer.executor import Executor
from trainer.streams import Op
from windtunnel.job import job_of

Tensor = torch.Tensor
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-5}


@dataclass(frozen=True)
class Pair:
    """Where one of our parameters is in theirs: their tensors along rows (`transposed`: along columns), of which ours
    are these `rows` in order; theirs are ours less `shift`."""

    names: tuple[str, ...]
    transposed: bool = False
    rows: Tensor | None = None
    shift: float = 0.0

    def ours(self, named: dict[str, Tensor]) -> Tensor:
        """Our form of their tensors."""
        whole = torch.cat([named[n].t() if self.transposed else named[n] for n in self.names])
        return whole if self.rows is None else whole[self.rows]

    def copy(self, ours: Tensor, named: dict[str, Tensor]) -> None:
        """Write our tensor into theirs."""
        whole = ours - self.shift
        if self.rows is not None:
            whole = torch.empty_like(whole).index_copy_(0, self.rows, whole)
        extents = [named[n].shape[1 if self.transposed else 0] for n in self.names]
        for name, part in zip(self.names, whole.split(extents), strict=True):
            named[name].copy_(part.t() if self.transposed else part)


def _ours(run: Run) -> tuple[Executor, Tensor, float]:
    """(executor after one step without clipping, logits (batch, seq, padded vocabulary), loss)."""
    seen: list[Tensor] = []

    program = compile_run(run)
    executor = Executor(program, job_of(run), 0, {}, text(run))
    place = {p.id: p for p in expand(executor.mine)}

    def watched(op: Op) -> Op:
        at = place[op.id]

        def action() -> None:
            seen.append(executor.storage.tensor(executor.storage.place(at.call, at.instruction.reads[0])).clone())
            op.run()

        return replace(op, run=action) if at.instruction.piece == "head.exp" else op

    executor.ops = [watched(op) for op in executor.ops]
    weights = {name: w.clone() for name, w in executor.parameters().items()}
    result = executor.step(0)
    executor.close()
    for name, w in executor.parameters().items():
        w.copy_(weights[name])
    batch, seq = run.plan.micro_batch_size, run.model.seq_length
    return executor, seen[0].view(seq, batch, -1).transpose(0, 1), result.loss


def hold(run: Run, theirs: torch.nn.Module, pairs: dict[str, Pair]) -> None:
    """Every parameter of ours is in `pairs`, and every one of theirs."""
    executor, logits, loss = _ours(run)
    tolerance, vocab = TOLERANCE[run.plan.precision], run.model.vocab
    named = dict(theirs.named_parameters())
    assert {name for pair in pairs.values() for name in pair.names} == set(named)
    ours, gradients = executor.parameters(), executor.storage.gradients()
    assert set(pairs) == set(ours) - ({"head.weight"} if run.model.tied_embeddings else set())
    with torch.no_grad():
        for name, pair in pairs.items():
            pair.copy(_cut(name, ours[name], vocab), named)
    grid = text(run).batch(0, tuple(range(run.plan.global_batch_size)))
    out = theirs(grid[:, :-1])
    expected = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), grid[:, 1:].flatten())
    expected.backward()
    assert torch.allclose(logits[..., :vocab], out.logits.detach(), atol=tolerance, rtol=tolerance)
    assert loss == pytest.approx(float(expected.detach()), rel=tolerance)
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named.items()}
    for name, pair in pairs.items():
        want, got = pair.ours(grads), _cut(name, gradients[name], vocab)
        close = tolerance * float(want.abs().max()) + 1e-7 * (tolerance > 1e-6)
        assert torch.allclose(got, want, atol=close, rtol=tolerance), name


def _cut(name: str, tensor: Tensor, vocab: int) -> Tensor:
    return tensor[:vocab] if name in ("embed.tokens.weight", "head.weight", "head.bias") else tensor


def one_batch(model: dict[str, Any], precision: str) -> Run:
    """A run of one micro-batch, so that its logits are the whole batch's; no clipping, which would scale the gradients
    in place."""
    raw = make_run(model, {"precision": precision, "micro_batch_size": 4, "global_batch_size": 4}).to_dict()
    return load(raw | {"optimizer": raw["optimizer"] | {"clip_norm": 0.0}})
