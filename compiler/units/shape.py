"""Per-rank extents and choices of one plan: what every tensor of a unit is measured in, and which lines it has.

Legend: T tokens of a micro-batch, S tokens this rank's residual stream holds (T/t under sequence parallelism), h
hidden, q/kv/f/V the rank's share of attention, key-value, feed-forward and vocabulary columns. Activations are
(tokens, columns) with tokens in (position, sample) order, so that a shard of the sequence is a contiguous stretch of
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plan.implementations import GradAccumulation, engine
from plan.implementations.rewrites import ACCUMULATION
from plan.model import AttentionWindow, Model, RopeScaling
from plan.parallel import Plan
from program.rewriting import Rewrite


@dataclass(frozen=True, slots=True)
class UnitShape:
    """Extents of one rank, the numbers a unit's operators are given, and the choices that select among its lines."""

    batch: int  # sequences in a micro-batch
    seq: int
    tokens: int  # T
    local_tokens: int  # S
    hidden: int
    heads: int  # on this rank
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int  # columns of the local logits
    whole_vocab: int  # without padding, over all ranks
    whole_heads: int
    max_positions: int
    tp: int
    sequence_parallel: bool
    activation: str
    gated: bool
    rms: bool
    rotary: bool
    alibi: bool
    learned: bool
    embedding_norm: bool
    embedding_scale: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_bias: bool
    qk_norm: str
    norm_inputs: bool  # a norm before attention and MLP
    norm_outputs: bool  # a norm on what they leave, before it is added
    parallel: bool  # attention and MLP read the layer's input
    shared_norm: bool
    window: AttentionWindow | None  # of the model; `of_layer` says whether a layer has it
    scale: float  # of scores
    attention_softcap: float | None
    logit_softcap: float | None
    dropout: float
    attention_dropout: float
    norm_eps: float
    rope_width: int  # columns of each head that are turned
    rope_theta: float
    rope_local_theta: float | None
    rope_scaling: RopeScaling | None
    loss_scale: float  # makes sums over rows, micro-batches and ranks a mean over the global batch
    scaled: bool  # the gradient of the loss, by the step's loss scale
    unfused: bool
    attention: str
    serial: bool  # autograd's order: no collective beside a weight gradient
    gradients: GradAccumulation  # how a weight gradient reaches the main gradient
    rewrites: tuple[Rewrite, ...]  # lines that the implementation runs otherwise than units write them
    loss_chunks: int
    dtype: str
    stat: str  # dtype of statistics and losses
    gradient: str  # dtype of main gradients

    def of_layer(self, number: int) -> UnitShape:
        """What layer 1…L has of what differs between layers: `window` where it has one, its own rotary angles."""
        window = self.window
        if window is None:
            return self
        if window.full_every and number % window.full_every == 0:
            return replace(self, window=None, rope_local_theta=None)
        own = self if window.size < self.seq else replace(self, window=None)
        if (theta := self.rope_local_theta) is None:
            return own
        return replace(own, rope_theta=theta, rope_scaling=None)

    @property
    def q(self) -> int:
        """Columns of the rank's queries."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Columns of the rank's keys (and of its values)."""
        return self.kv_heads * self.head_dim

    @property
    def qkv(self) -> int:
        """Columns of the fused projection."""
        return self.q + 2 * self.kv

    @property
    def up(self) -> int:
        """Columns of the up (or fused gate and up) projection."""
        return (2 if self.gated else 1) * self.ffn

    @property
    def made(self) -> str:
        """dtype of a gradient as a backward makes it."""
        return self.dtype if self.gradients == "separate_buffer" else self.gradient


def unit_shape(model: Model, plan: Plan) -> UnitShape:
    """Per-rank extents of `model` under `plan`; divisibility is `plan.run.rules`' business."""
    t = plan.tensor_parallel
    tokens = plan.micro_batch_size * model.seq_length
    sp, chosen = plan.sequence_parallel and t > 1, engine(plan)
    return UnitShape(
        batch=plan.micro_batch_size,
        seq=model.seq_length,
        tokens=tokens,
        local_tokens=tokens // t if sp else tokens,
        hidden=model.hidden,
        heads=model.heads // t,
        kv_heads=model.kv_heads // t,
        head_dim=model.head_dim,
        ffn=model.ffn // t,
        vocab=model.padded_vocab(t) // t,
        whole_vocab=model.vocab,
        whole_heads=model.heads,
        max_positions=model.max_positions,
        tp=t,
        sequence_parallel=sp,
        activation=model.activation,
        gated=model.gated,
        rms=model.norm == "rmsnorm",
        rotary=model.positions == "rotary",
        alibi=model.positions == "alibi",
        learned=model.positions == "learned",
        embedding_norm=model.embedding_norm,
        embedding_scale=model.embedding_scale,
        qkv_bias=model.qkv_bias,
        out_bias=model.out_bias,
        mlp_bias=model.mlp_bias,
        head_bias=model.head_bias,
        qk_norm=model.qk_norm,
        norm_inputs=model.norm_place != "output",
        norm_outputs=model.norm_place != "input",
        parallel=model.parallel_residual,
        shared_norm=model.shared_norm,
        window=model.window,
        scale=model.attention_scale or model.head_dim**-0.5,
        attention_softcap=model.attention_softcap,
        logit_softcap=model.logit_softcap,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        norm_eps=model.norm_eps,
        rope_width=model.rope_width,
        rope_theta=model.rope_theta,
        rope_local_theta=model.rope_local_theta,
        rope_scaling=model.rope_scaling,
        loss_scale=1.0 / (plan.global_batch_size * model.seq_length),
        scaled=plan.loss_scale is not None,
        unfused=plan.attention == "unfused",
        attention=plan.attention,
        serial=chosen.serial,
        gradients=chosen.grad_accumulation,
        rewrites=(*ACCUMULATION[chosen.grad_accumulation], *chosen.rewrites),
        loss_chunks=plan.loss_chunks,
        dtype=plan.precision,
        stat="fp64" if plan.precision == "fp64" else "fp32",
        gradient=plan.gradient_dtype,
    )
