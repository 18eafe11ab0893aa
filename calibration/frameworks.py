"""Kernels of frameworks that were not measured, as what their source says each operator launches and moves.

A profile prices the operators of `plan.ops` as this project executes them. Another framework splits them up otherwise,
so a published run is priced with that framework's own count: launches of each operator (the host issues each, the
device starts each), and bytes moved over the operator's least. Rates stay those of the profile; nothing is fitted.

    profile = load_profile("h100").with_kernels_of(FRAMEWORKS["nanotron"])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framework:
    """`operators[op]` = (launches, bytes moved over the least), of memory-bound operators; those not named stay the
    profile's. `accumulate`: bytes moved for each element of a weight gradient when the product leaves it in 16 bits and
    another kernel adds it to the fp32 sum (0: the product adds it). What it holds beyond Megatron's program: `kept_ffn`
    tensors as wide as the feed-forward a layer and micro-batch in flight, `logit_copies` of the logits in fp32 at the
    loss, and with `gradient_buckets` a second copy of the 16-bit gradients where replicas reduce them. `source`: where
    all that was read."""

    name: str
    operators: Mapping[str, tuple[int, float]]
    accumulate_bytes: float
    kept_ffn: int
    logit_copies: int
    gradient_buckets: bool
    source: str


NANOTRON = Framework(
    name="nanotron",
    operators={
        "rmsnorm_forward": (1, 1.0),  # Triton, flash_attn.ops.triton.layer_norm
        "rmsnorm_backward": (2, 1.0),  # the same and the sum of partial weight gradients
        "bias_grad": (0, 0.02),  # that kernel has the weight gradient already
        # q, k, v transposed; k and v joined and transposed again; rotary of q and of k; six kernels on sequence
        # lengths: 18 passes over one of q, k, v where rotating q and k in place takes 4
        "rope_forward": (11, 4.5),
        "rope_backward": (8, 5.0),  # the same way back: split, rotary, stack, transpose
        "swiglu_forward": (2, 5 / 3),  # silu, product
        "swiglu_backward": (4, 13 / 6),  # two products, silu's backward, joining both halves
        "add": (1, 1.0),
        "ce_max": (1, 1.0),
        "ce_exp": (1, 1.0),  # its other passes are copies of the program
        "copy": (1, 1.0),
        "embedding_forward": (6, 2.0),
        "embedding_backward": (2, 1.0),
    },
    accumulate_bytes=10.0,  # fp32_grad.add_(half.grad): 2 read, 4 read, 4 written
    kept_ffn=1,  # silu of the gate, which the product's backward needs beside the product itself
    logit_copies=1,  # cross entropy subtracts the maximum into a new tensor
    gradient_buckets=True,  # DistributedDataParallel without gradient_as_bucket_view
    source="huggingface/nanotron 2411b02, models/llama.py, optim/gradient_accumulator.py, "
    "parallel/tensor_parallel/functional.py (read in 2026; the runs are of v0.5)",
)
FRAMEWORKS = {framework.name: framework for framework in (NANOTRON,)}
