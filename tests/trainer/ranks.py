"""What a test runs on each rank, and how the ranks' shares become full tensors again (written apart from the trainer's
own slicing)."""

from dataclasses import dataclass
from typing import Any

import torch

from compiler import compile_run
from plan.run import Run, load
from program import Param, StepProgram
from trainer.data import TokenFile
from trainer.executor import Executor
from trainer.groups import Communicators
from trainer.init import shard
from windtunnel.job import job_of, text_of

Tensor = torch.Tensor
_communicators = Communicators("gloo", 30.0)

LLAMA: dict[str, Any] = {
    "layers": 4,
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "ffn": 48,
    "vocab": 260,
    "seq_length": 16,
    "vocab_multiple": 8,
    "activation": "swiglu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "tied_embeddings": False,
    "bias": False,
    "init_std": 0.1,
}
GPT: dict[str, Any] = {
    "layers": 4,
    "hidden": 32,
    "heads": 4,
    "ffn": 64,
    "vocab": 260,
    "seq_length": 16,
    "vocab_multiple": 8,
    "activation": "gelu",
    "norm": "layernorm",
    "positions": "learned",
    "tied_embeddings": True,
    "bias": True,
    "init_std": 0.1,
}


@dataclass(frozen=True)
class Share:
    """What one rank reports after training: losses, gradient norms, its parameters with their places, bytes left
    alive."""

    tp: int
    losses: list[float]
    norms: list[float]
    parameters: dict[str, tuple[Param, Tensor]]
    leaked_bytes: int
    leaked_places: int


def make_run(model: dict[str, Any], plan: dict[str, Any], **sections: Any) -> Run:
    """A tiny run on the CPU cluster with a short warm-up, clipping that bites, and decay."""
    plan = {"precision": "fp64", "zero_stage": 0, "micro_batch_size": 2, "global_batch_size": 8, **plan}
    optimizer = {"lr": 3e-3, "weight_decay": 0.1, "clip_norm": 1.0,
                 "schedule": {"kind": "cosine", "warmup_steps": 3, "decay_steps": 30, "min_lr": 1e-4}}  # fmt: skip
    return load({"model": model, "cluster": "cpu", "plan": plan, "optimizer": optimizer, **sections})


def make_executor(
    rank: int, run: Run, program: StepProgram | None = None, kind: type[Executor] = Executor, **options: Any
) -> Executor | None:
    """An executor on this rank of the pool; None on a worker the run has no rank for (which takes part in making
    groups)."""
    program = compile_run(run) if program is None else program
    communicators = _communicators.join(program, rank)
    if rank >= run.plan.world:
        return None
    return kind(program, job_of(run), rank, communicators, text_of(run), wait_s=30.0, **options)


def train(rank: int, run: Run, steps: int) -> Share | None:
    """Train `steps` steps on this rank."""
    executor = make_executor(rank, run)
    if executor is None:
        return None
    results = [executor.step(step) for step in range(steps)]
    places = {p.name: p for p in executor.mine.params}
    parameters = {name: (places[name], w.clone()) for name, w in executor.parameters().items()}
    leaked = executor.storage.live_bytes - executor.storage.resident_bytes
    executor.close()
    tp = executor.context.coords.tp
    return Share(
        tp, [r.loss for r in results], [r.grad_norm for r in results], parameters, leaked, executor.storage.allocated()
    )


def initial_weights(run: Run) -> dict[str, Tensor]:
    """Full initial weights, vocabulary unpadded, from a one-rank program of the same model."""
    single = load(
        {"model": run.to_dict()["model"], "cluster": "cpu", "plan": {"precision": run.plan.precision, "zero_stage": 0}}
    )
    dtype = torch.float64 if run.plan.precision == "fp64" else torch.float32
    weights = {}
    for param in compile_run(single).classes[0].params:
        full = torch.cat([torch.from_numpy(values) for _, values in shard(param, run.train.seed, 0)]).to(dtype)
        weights[param.name] = _unpadded(param.name, full, run)
    return weights


def _unpadded(name: str, full: Tensor, run: Run) -> Tensor:
    return full[: run.model.vocab].clone() if name in ("embed.tokens.weight", "head.weight", "head.bias") else full


def assemble(shares: list[Share], run: Run) -> dict[str, Tensor]:
    """Full parameters, vocabulary unpadded; copies that ranks hold in common must be equal bit for bit."""
    full: dict[str, Tensor] = {}
    for name, param in {n: p for s in shares for n, (p, _) in s.parameters.items()}.items():
        parts: dict[int, Tensor] = {}
        for share in (s for s in shares if name in s.parameters):
            part = share.parameters[name][1]
            assert torch.equal(parts.setdefault(share.tp, part), part), f"{name} differs between copies"
        full[name] = _unpadded(name, _joined(param, [parts[t] for t in sorted(parts)]), run)
    return full


def _joined(param: Param, parts: list[Tensor]) -> Tensor:
    if param.shard_dim is None:
        assert all(torch.equal(parts[0], part) for part in parts), f"{param.name} differs between tensor-parallel ranks"
        return parts[0]
    extents = [n // len(parts) for n in param.segments] or [param.local_shape[param.shard_dim]]
    pieces = [part.split(extents, dim=param.shard_dim) for part in parts]
    return torch.cat([piece[i] for i in range(len(extents)) for piece in pieces], dim=param.shard_dim)


def text(run: Run) -> TokenFile:
    """The run's data."""
    return text_of(run)
