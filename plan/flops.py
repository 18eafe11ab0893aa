"""How many floating-point operations a step is, under three conventions, and model FLOPs apart from hardware FLOPs.

*Model* FLOPs are what the mathematics needs (→ MFU); *hardware* FLOPs also count what recompute repeats (→ HFU). A
multiply-add is two. Backward is twice forward. All conventions agree on the linears; they differ in attention, and
`palm` in the embedding:

- `exact`, the default: causal attention at half of the square, and within the window of a layer that has one; the
  output projection, but no embedding look-up. The other two do not know windows.
- `megatron`: the full square of scores, vocabulary included. 72·B·s·L·h²·(1 + s/6h + V/12Lh) for a GPT, and with full
  recompute 96·B·s·L·h²·(1 + s/6h + V/16Lh). Narayanan et al. 2021, arXiv 2104.04473, §5.1, carried over to grouped
  queries and gated MLPs.
- `palm`: 6N + 12·L·a·d·s per token, N all parameters. Chowdhery et al. 2022, arXiv 2204.02311, appendix B.

The vocabulary is the model's own (unpadded). Norms, activations and the softmax are not counted by anyone.
FlashAttention's own repeat of the scores in backward is not counted as recompute: published HFU figures leave it out.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from plan.layout import layout
from plan.model import Model
from plan.run import Run

Convention = Literal["exact", "megatron", "palm"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)


@dataclass(frozen=True, slots=True)
class ForwardFlops:
    """Forward FLOPs of one token: linears of one layer, attention scores and values of one layer, output projection."""

    linears: float
    attention: float
    head: float

    @property
    def layer(self) -> float:
        """One whole transformer layer."""
        return self.linears + self.attention


def forward_flops_per_token(model: Model, convention: Convention = "exact") -> ForwardFlops:
    """Forward FLOPs of one token of a full sequence, by part. For `palm` the linears share 2N, embedding included."""
    square = 4.0 * model.seq_length * model.attention_width
    if convention == "palm":
        return ForwardFlops(2.0 * model.parameters() / model.layers, square, 0.0)
    attention = square * _seen(model) if convention == "exact" else square
    return ForwardFlops(2.0 * _linear_weights(model), attention, 2.0 * model.hidden * model.vocab)


def _seen(model: Model) -> float:
    """The share of the square of scores that causal attention computes, a mean over the layers: half of it, or a band
    as wide as the window."""
    few = model.windowed_layers
    share = model.window.size / model.seq_length if model.window is not None and few else 1.0
    return (few * share * (1 - share / 2) + (model.layers - few) / 2) / model.layers


def _linear_weights(model: Model) -> int:
    """Weights (no biases) of the linears of one layer."""
    qkv_and_output = 2 * model.attention_width + 2 * model.kv_width
    return model.hidden * (qkv_and_output + model.ffn * (3 if model.gated else 2))


def model_flops_per_token(model: Model, convention: Convention = "exact") -> float:
    """Forward and backward FLOPs of one trained token, without recompute."""
    forward = forward_flops_per_token(model, convention)
    return 3.0 * (model.layers * forward.layer + forward.head)


def model_flops_per_step(run: Run, convention: Convention = "exact") -> float:
    """FLOPs one optimizer step needs, over all GPUs."""
    return run.tokens_per_step * model_flops_per_token(run.model, convention)


def hardware_flops_per_step(run: Run, convention: Convention = "exact") -> float:
    """FLOPs one optimizer step executes, over all GPUs: model FLOPs and the forward passes that recompute repeats."""
    forward = forward_flops_per_token(run.model, convention)
    if run.plan.recompute == "selective":
        repeated = run.model.layers * forward.attention
    else:
        repeated = recomputed_layers(run) * forward.layer
    return model_flops_per_step(run, convention) + run.tokens_per_step * repeated


def recomputed_layers(run: Run) -> int:
    """Layers whose whole forward pass is repeated: all of them, or the first n of every model chunk."""
    if run.plan.recompute == "full":
        return run.model.layers
    if run.plan.recompute != "layers":
        return 0
    chunks = [chunk for stage in layout(run.model, run.plan) for chunk in stage]
    layers = [sum(0 < unit <= run.model.layers for unit in chunk) for chunk in chunks]
    return sum(min(run.plan.recompute_layers, count) for count in layers)
