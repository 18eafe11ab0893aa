"""What an implementation decides: `Engine` holds the choices for one plan, `Implementation` makes them.

The defaults of `Engine` are those of our own trainer, so that another implementation's file lists only what differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from plan.parallel import Plan
from program.rewriting import Rewrite

GradAccumulation = Literal["in_gemm", "separate_buffer", "autograd"]
Transfers = Literal["separate", "batched", "blocking"]
WHOLE = math.inf  # a bucket that never closes: one flat gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The choices of an implementation for one plan, each asked in one place."""

    # --- layers
    rewrites: tuple[Rewrite, ...] = ()
    """Which lines of a unit it runs otherwise (`plan.implementations.rewrites`)."""
    recomputes_whole: bool = False
    """Full recompute runs a layer to its end, as autograd's checkpointing does, what backward needs or not."""
    serial: bool = False
    """Autograd's order: a collective begins when all compute before it has ended, never beside a weight gradient."""
    grad_accumulation: GradAccumulation = "in_gemm"
    """How a weight gradient reaches the main gradient: added by the product; made in a buffer of the computing type and
    added by an instruction after the backward; made and added at once by autograd."""
    even_layers: bool = False
    """Layers, or layers with embedding and head, are a multiple of the stages."""
    balances_stages: bool = False
    """`pipeline_layout: auto` goes by what units cost (`compiler.balance`), not by their number."""

    # --- gradient buckets, in bytes of gradient at which one closes
    first_bucket_bytes: float
    """On the first stage."""
    later_bucket_bytes: float
    """On the others."""

    # --- sharded state
    sharded_optimizer: bool
    """Ranks of a data-parallel group each step a share."""
    reduces_whole: bool = False
    """A bucket is all-reduced and the norm is of whole gradients, although each rank steps a share only."""
    reduces_in_place: bool = False
    """A reduce-scatter leaves the share in the bucket's own gradient, not in a buffer apart."""
    units_reduce_whole: bool = False
    """Partitioned gradients are all-reduced and each rank keeps its share: 2Ψ a micro-batch, not Ψ."""
    root_group: bool = False
    """Embedding and head are one group of parameters, gathered before the first and kept until its backward."""
    keeps_gathered: bool = False
    """Every group stays gathered from its forward to its backward, though its weights are sharded between the two."""
    flat_copies: bool = False
    """Shards of weights are the optimizer's own, cast and copied into a flat tensor to be gathered; what comes is
    copied out of it, and gradients are copied into another to be reduced. Else units read and write the flat ones."""
    gathers_at_once: bool = False
    """Weights are gathered at the end of the step that changed them, not at the start of the next."""
    overlaps_gradients: bool = True
    """Gradients are reduced beside the backward pass that finishes them."""
    sums_tied_first: bool = False
    """Gradients of tied embeddings are summed over their two stages before anything else."""
    offloads: bool = True
    """State in host memory is forecast."""
    start_bytes: int = 0
    """Bytes a parameter that weights may take before the first step, where that is more than they take later."""

    # --- pipeline
    transfers: Transfers = "separate"
    """Sends and receives on four streams; a send paired with the opposite receive; one blocking transfer at a time."""
    splits_backward: bool = False
    """Weight gradients may be made in calls of their own (`Schedule.splits`)."""
    keeps_output: bool = False
    """A stage keeps the output it sent until its backward, and sends partitioned tensors."""

    # --- host
    own_host_code: bool = True
    """Our executor issues the step (a profile's host prices are of it); else autograd does."""
    captures_graphs: bool = True
    """`plan.cuda_graph` may be true."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A value that is not forecast yet, and the nearest that is."""

    key: str
    value: str
    instead: str


def _nothing(plan: Plan) -> list[str]:
    return []


def _no_gap(plan: Plan) -> list[Unsupported]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One implementation. `engine` makes its choices for a plan; `problems` are plans it cannot run, in sentences;
    `gaps` are plans of it that are not forecast yet. `unfused_attention(zero_stage, attention dropout)`,
    `gradient_dtype(precision, zero_stage)` and `zero_stage` decide what a run leaves open. `trains`: our trainer can
    execute its programs."""

    name: str
    engine: Callable[[Plan], Engine]
    unfused_attention: Callable[[int, float], bool]
    gradient_dtype: Callable[[str, int], Literal["fp64", "fp32", "fp16"]]
    problems: Callable[[Plan], list[str]] = _nothing
    gaps: Callable[[Plan], list[Unsupported]] = _no_gap
    zero_stage: int = 1
    trains: bool = True


def wide_gradients(precision: str, zero_stage: int) -> Literal["fp64", "fp32", "fp16"]:
    """Main gradients of fp32, of fp64 in fp64 runs."""
    return "fp64" if precision == "fp64" else "fp32"


def zero_shards(plan: Plan) -> bool:
    """ZeRO with more than one rank shards the optimizer's state."""
    return plan.zero_stage >= 1 and plan.data_parallel > 1


def bucket_bytes(plan: Plan) -> float:
    """The plan's bucket size in bytes."""
    return plan.communication.bucket_mb * 1e6
