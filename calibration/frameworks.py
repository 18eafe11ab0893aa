"""Kernels of frameworks that were not measured, as what their source says each operator launches and moves.

A profile prices the operators of `program.ops` as this project executes them. Another framework splits them up
otherwise, so a run of its kernels is priced with that framework's own count: launches of each operator (the host issues
each, the device starts each), and bytes moved over the operator's least. Rates stay those of the profile; nothing is
fitted. A run asks for them by name: `plan.kernels: nanotron`.

    profile = load_profile("h100").for_kernels("nanotron")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.workspace import NOTHING, Workspace


@dataclass(frozen=True, slots=True)
class Framework:
    """`operators[op]` = (launches, bytes moved over the least), of memory-bound operators; those not named stay the
    profile's. `accumulate_bytes`: moved for each element of a weight gradient when the product leaves it in 16 bits and
    other kernels bring it into an fp32 one (0: the product adds it); `flatten_bytes`: the same where gradients stay in
    16 bits. `attention`: the profile's variant of fused attention that it calls (empty: the plan's);
    `attention_launches` forward and backward (FlashAttention: rows' sums of do and o, the kernel, dq out of fp32).
    `source`: where all that was read.

    `workspace`: what it holds beyond the program that stands for it."""

    name: str
    operators: Mapping[str, tuple[int, float]]
    source: str
    accumulate_bytes: float = 0.0
    flatten_bytes: float = 0.0
    attention: str = ""
    attention_launches: tuple[int, int] = (1, 3)
    workspace: Workspace = NOTHING


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
    workspace=Workspace(
        {},
        kept={"swiglu_forward": (1, "swiglu_backward")},  # silu of the gate, which the product's backward needs
        logit_copies=1,  # cross entropy subtracts the maximum into a new tensor
        gradient_buckets=True,  # DistributedDataParallel without gradient_as_bucket_view
    ),
    source="huggingface/nanotron 2411b02, models/llama.py, optim/gradient_accumulator.py, "
    "parallel/tensor_parallel/functional.py (read in 2026; the runs are of v0.5)",
)
LLM_FOUNDRY = Framework(
    name="llm-foundry",
    operators={
        # torch's own layer norm on one H200 (calibration/measured/h200-kernels.json, 32768 x 4096): 0.615 of the
        # copy bandwidth forward, 0.408 backward over 3 passes, where `add` has 0.90; then autograd adds the
        # residual's gradient (3 passes). The operator's least is 2 and 4 passes.
        "layernorm_forward": (1, 0.90 / 0.615),
        "layernorm_backward": (3, (3 * 0.90 / 0.408 + 3) / 4),
        "gelu_forward": (1, 1.0),  # the bias is the product's
        "gelu_backward": (2, 3 * 0.90 / 0.701 / 4),  # 0.701 over 3 passes, its bias's gradient with it: the same table
        "add": (1, 1.0),
        "add_backward": (1, 1.0),  # the sum that is a bias's gradient
        "bias_grad": (1, 1.0),
        "position_forward": (1, 1.0),
        "embedding_forward": (1, 1.0),
        "copy": (1, 1.0),
    },
    # FSDP1's modules compute on views split off a flat parameter: backward joins their gradients into one (2 read, 2
    # written), and widens it where it is reduced in fp32 (2 read, 4 written).
    accumulate_bytes=10.0,
    flatten_bytes=4.0,
    attention="triton",
    source="mosaicml/llm-foundry bb7f8bb, models/layers/{blocks,norm,attention,flash_attn_triton}.py and the "
    "pretraining YAMLs before c26309d (attn_impl: triton)",
)
FMS = Framework(
    name="fms",
    operators={
        # float, square, mean, epsilon, root, product, cast, weight: 36 bytes an element where 4 are the least
        "rmsnorm_forward": (8, 9.0),
        # weight: two products and a sum (18 bytes); cast (6); product with the root: two products and a sum (24);
        # square: product and sum of both gradients (24); cast (6); then the residual's gradient (6): 84 of 8
        "rmsnorm_backward": (13, 10.5),
        "bias_grad": (0, 0.02),  # counted above
        # for q and k each: float, product with a 2 x 2 rotation, sum, cast: 36 bytes of 4
        "rope_forward": (8, 9.0),
        "rope_backward": (8, 9.0),  # float, the sum expanded, product, sum, cast
        "swiglu_forward": (2, 5 / 3),  # silu, product
        "swiglu_backward": (4, 2.0),  # two products, silu's backward, and the sum of two products' input gradients
        "add": (1, 1.0),
        "copy": (1, 1.0),
        "embedding_forward": (1, 1.0),
    },
    flatten_bytes=4.0,  # FSDP1, as above
    source="foundation-model-stack (ibm-fms), modules/{layernorm,positions,feedforward}.py and models/llama.py, eager "
    "as fms-fsdp 4ffb9bd trains it",
)
FRAMEWORKS = {framework.name: framework for framework in (NANOTRON, LLM_FOUNDRY, FMS)}
