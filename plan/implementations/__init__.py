"""Implementations: whose engine runs the step. One object each says every choice it makes.

| file | whose engine |
| --- | --- |
| `windtunnel` | our own trainer |
| `megatron` | Megatron-LM |
| `deepspeed` | DeepSpeed, with Megatron-DeepSpeed's layers |
| `torch-fsdp` | torch's FSDP2 |

Rules and compiler ask `engine(plan)` for a choice, never for a name. A new implementation is one file and one line of
`IMPLEMENTATIONS`.
"""

from __future__ import annotations

from functools import lru_cache

from plan.implementations.base import Engine, GradAccumulation, Implementation, Transfers
from plan.implementations.deepspeed import DEEPSPEED
from plan.implementations.megatron import MEGATRON
from plan.implementations.torch_fsdp import TORCH_FSDP
from plan.implementations.windtunnel import WINDTUNNEL
from plan.parallel import Plan

IMPLEMENTATIONS = {each.name: each for each in (WINDTUNNEL, MEGATRON, DEEPSPEED, TORCH_FSDP)}


def implementation(name: str) -> Implementation:
    """The implementation of a name; ours where a run names one that is not forecast yet (rules refuse that)."""
    return IMPLEMENTATIONS.get(name, WINDTUNNEL)


@lru_cache(maxsize=256)
def engine(plan: Plan) -> Engine:
    """The choices of the plan's implementation."""
    return implementation(plan.implementation).engine(plan)


__all__ = ["IMPLEMENTATIONS", "Engine", "GradAccumulation", "Implementation", "Transfers", "engine", "implementation"]
