"""One case of `tools.bench`; its contestants: eager PyTorch, torch.compile, and Liger when it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

Tensor = torch.Tensor
Call = Callable[[], object]
Function = Callable[..., Any]

PEERS = [True]
"""Whether peers are built at all (`--no-peers`)."""
ELEMENTS = 2**28
"""Elements of a large activation: 512 MiB in bf16, over eight times the L2 of an H200."""


@dataclass(slots=True)
class Case:
    name: str
    shape: str
    calls: dict[str, Call]
    bytes: float = 0.0
    flops: float = 0.0
    target: float | None = None  # least share of the copy bandwidth, or most ms when `target_ms`
    target_ms: bool = False
    memory: bool = False  # also measure peak memory
    budget_ms: float = 60.0  # for each contestant
    rounds: int = 1  # contestants take turns so many times: long ones heat the card for who comes next
    notes: dict[str, Any] = field(default_factory=dict)


def bf16(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def backward_of(outputs: Any, inputs: list[Tensor], upstream: Any) -> Call:
    return lambda: torch.autograd.grad(outputs, inputs, upstream, retain_graph=True)


def compiled_of(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def liger_function(path: str) -> Any:
    """An attribute of Liger by dotted path, or None when Liger is not installed."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None


def add_peer(calls: dict[str, Call], name: str, make: Callable[[], Call]) -> None:
    """Adds a peer; one that fails to build is named and left out."""
    if not PEERS[0]:
        return
    try:
        call = make()
        call()
        torch.cuda.synchronize()
        calls[name] = call
    except Exception as error:
        print(f"  {name} left out: {type(error).__name__}: {str(error)[:160]}")


def add_torch(calls: dict[str, Call], plain: Function, compiled: Function, use: Callable[[Function], Call]) -> None:
    """Eager PyTorch and torch.compile of one function, as `use` makes a call of it."""
    add_peer(calls, "eager", partial(use, plain))
    add_peer(calls, "compile", partial(use, compiled))


def peak_gib(call: Callable[[], object]) -> float:
    """Peak memory that `call` allocates above what is held before it, its results included."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**30
