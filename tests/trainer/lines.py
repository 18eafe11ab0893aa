"""Runs the lines of a unit on real tensors of one rank: what tests of declared units share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from compiler import compile_run
from kernels import registry
from kernels.registry_inputs import DTYPES
from kernels.tables import table
from plan.run import Run
from program.lines import Lines, Offset, Tensor, Unit
from tests.compiler.test_units import units
from tests.trainer.ranks import GPT, LLAMA, make_run
from trainer.bodies import Bodies
from trainer.context import RankContext
from trainer.link import link
from trainer.storage import Storage
from windtunnel.job import job_of, text_of

DROPPED = {"dropout": 0.1, "attention_dropout": 0.1}
UNFUSED = {"attention": "unfused"}
GEMMA = {
    **LLAMA, "qk_norm": "head", "norm_place": "both", "activation": "geglu", "embedding_scale": 3.0, "window": 5,
    "attention_scale": 0.25, "attention_softcap": 4.0, "logit_softcap": 3.0,
}  # fmt: skip
FALCON = {
    **GPT, "positions": "rotary", "parallel_residual": True, "shared_norm": True, "kv_heads": 1, "bias": False,
    "activation": "relu", "head_bias": True,
}  # fmt: skip
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama-unfused": (LLAMA, UNFUSED),
    "llama-dropout": ({**LLAMA, "dropout": 0.1, "embedding_norm": True}, {}),
    "gpt": (GPT, {}),
    "gpt-dropout": ({**GPT, **DROPPED}, UNFUSED),
    "alibi": ({**GPT, "positions": "alibi", "embedding_norm": True}, UNFUSED),
    "chunks": (LLAMA, {"loss_chunks": 2}),
    "columns": (LLAMA, {"loss_chunks": 2, "kernels": "triton"}),
    "autograd": (GPT, {"implementation": "deepspeed"}),
    "autograd-dropout": ({**GPT, **DROPPED}, {"implementation": "deepspeed", **UNFUSED}),
    "autograd-alibi": ({**GPT, "positions": "alibi"}, {"implementation": "deepspeed", **UNFUSED}),
    "qk-norm-window": ({**LLAMA, "qk_norm": "head", "window": 5}, {}),
    "qk-projection-out-norm": ({**LLAMA, "qk_norm": "projection", "norm_place": "output"}, {}),
    "gemma": (GEMMA, UNFUSED),
    "gemma-chunks": (GEMMA, {**UNFUSED, "loss_chunks": 2}),
    "neox": ({**GPT, "positions": "rotary", "rope": {"fraction": 0.5}, "parallel_residual": True}, {}),
    "falcon": (FALCON, {}),
    "falcon-relu2": ({**FALCON, "activation": "relu2", "bias": {"qkv": True, "out": False, "mlp": True}}, UNFUSED),
    "falcon-columns": (FALCON, {"loss_chunks": 2, "kernels": "triton"}),
    "autograd-gemma": (GEMMA, {"implementation": "deepspeed", **UNFUSED}),
    "autograd-llama": (LLAMA, {"implementation": "deepspeed", **UNFUSED}),
}


class Lined:
    """Executes the instructions of a unit on tensors by name. `wrap(name, function)` stands around every operator."""

    def __init__(self, run: Run, unit: Unit, number: int, wrap: Callable[[str, Any], Any] = lambda _, f: f) -> None:
        whole = compile_run(run)
        program = whole.classes[0]
        self.context = RankContext(whole, job_of(run), 0, text_of(run), torch.device("cpu"))
        self.bodies = Bodies(self.context, Storage(program, torch.device("cpu")))
        self.context.begin(0, 1e-3, 1.0)
        self.unit, self.number = unit, number
        self.functions = {name: wrap(name, f) for name, f in vars(registry.bind("eager", "cpu")).items()}

    def run(self, part: Lines, values: dict[str, torch.Tensor]) -> None:
        """One instruction: takes what it reads from `values` and puts its results there."""
        linked = link(part.body, self.functions, self.context.standing)
        bound = [self.context.bound(what, 0, self.number) for what in linked.bound]
        made = linked.function(*(values[name] for name in part.reads), *bound)
        values.update(zip((n for n in part.writes if n not in part.reads), made, strict=True))


def filled(tensor: Tensor, run: Run) -> torch.Tensor:
    """Random contents of a tensor; token ids are within the vocabulary, gradients and the loss are zero, tables are
    rank 0's."""
    if tensor.make is not None:
        name, given = tensor.make
        numbers = {key: 0 if isinstance(value, Offset) else value for key, value in given}
        return table(name, tensor.dims, tensor.dtype, "cpu", **numbers)
    if tensor.dtype == "int64":
        return torch.randint(run.model.vocab, tensor.dims)
    if tensor.name[:2] in ("g:", "s:"):
        return torch.zeros(tensor.dims, dtype=DTYPES[tensor.dtype])
    return torch.randn(tensor.dims, dtype=DTYPES[tensor.dtype])


def declared(unit: Unit) -> Mapping[str, Tensor]:
    """Tensors of a unit by the names its instructions use."""
    used = {name for part in (*unit.forward, *unit.backward) for name in (*part.reads, *part.writes)}
    return {name: unit.tensors[name.replace("layers.0", "@")] for name in used}


__all__ = ["VARIANTS", "Lined", "declared", "filled", "make_run", "units"]
