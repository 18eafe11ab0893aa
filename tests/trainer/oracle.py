"""A single-process trainer by plain autograd: the reference every parallel layout is held to. It shares no parallel
code with the trainer.

Tensors are (batch, sequence, hidden), the whole global batch is one forward pass, the loss is one mean, AdamW and its
clipping are written out. From the project it takes only what defines a run: the model's numbers, the text, the initial
weights, and the hash behind a dropout mask.
"""

import math
from dataclasses import replace

import torch
from torch.nn import functional as F

from kernels.random import Dropout, uniform_reference
from plan.model import Model
from plan.run import Run

Tensor = torch.Tensor
Weights = dict[str, Tensor]


class Oracle:
    """Trains `weights` (full tensors by parameter name, vocabulary unpadded) as `run` asks, in their type."""

    def __init__(self, run: Run, weights: Weights) -> None:
        self.run, self.model = run, run.model
        self.weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
        self.first = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.second = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.taken = 0  # steps that the optimizer took

    def step(self, step: int, grid: Tensor, *, leave_out: bool = False) -> tuple[float, float]:
        """(loss, gradient norm) of one optimizer step on (global batch, seq + 1) token ids; `leave_out`: of a step that
        the optimizer leaves out."""
        loss = mean_loss(self.model, self.weights, grid, self.run.train.seed, step)
        gradients = dict(zip(self.weights, torch.autograd.grad(loss, list(self.weights.values())), strict=True))
        norm = math.sqrt(sum(float(g.detach().double().square().sum()) for g in gradients.values()))
        clip = self.run.optimizer.clip_norm
        scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
        if not leave_out:
            self.taken += 1
            with torch.no_grad():
                for name, gradient in gradients.items():
                    self._adamw(name, gradient * scale, step)
        return float(loss.detach()), norm

    def _adamw(self, name: str, gradient: Tensor, step: int) -> None:
        o, w = self.run.optimizer, self.weights[name]
        (b1, b2), m, v, t = o.betas, self.first[name], self.second[name], self.taken
        rate = self._rate(step)
        m.copy_(b1 * m + (1 - b1) * gradient)
        v.copy_(b2 * v + (1 - b2) * gradient * gradient)
        decay = o.weight_decay if w.dim() > 1 else 0.0
        w.mul_(1 - rate * decay).sub_(rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + o.eps))

    def _rate(self, step: int) -> float:
        s, o = self.run.optimizer.schedule, self.run.optimizer
        if step < s.warmup_steps:
            return o.lr * (step + 1) / s.warmup_steps
        if s.kind == "constant":
            return o.lr
        if s.kind == "inverse-sqrt":
            return max(s.min_lr, o.lr / math.sqrt((step + 1) / max(1, s.warmup_steps)))
        steps = s.anneal_steps if s.kind == "wsd" else s.decay_steps - s.warmup_steps
        left = min(1.0, max(0.0, (s.decay_steps - step) / steps))  # of the way down, in steps
        shares = {
            "linear": left,
            "cosine": (1 - math.cos(math.pi * left)) / 2,
            "exponential": 2.0**left - 1,
            "minus-sqrt": 1 - math.sqrt(1 - left),
        }
        return s.min_lr + (o.lr - s.min_lr) * shares[s.anneal if s.kind == "wsd" else s.kind]


def mean_loss(model: Model, w: Weights, grid: Tensor, seed: int, step: int) -> Tensor:
    """Mean cross entropy of (batch, seq + 1) ids."""
    logits = logits_of(model, w, grid[:, :-1], seed, step)
    return F.cross_entropy(logits.flatten(0, 1), grid[:, 1:].flatten())


def logits_of(model: Model, w: Weights, tokens: Tensor, seed: int = 0, step: int = 0) -> Tensor:
    """(batch, seq, vocab)."""
    x = F.embedding(tokens, w["embed.tokens.weight"]) * model.embedding_scale
    if model.positions == "learned":
        x = x + w["embed.positions.weight"][: tokens.shape[1]]
    if model.embedding_norm:
        x = _norm(model, w, "embed.norm", x)
    x = _drop(model.dropout, x, (seed, step, 0, 0))
    for layer in range(model.layers):
        base, unit = f"layers.{layer}", layer + 1
        attended = _attention(model, w, f"{base}.attn", _into(model, w, f"{base}.attn", x), (seed, step, unit))
        attended = _out_of(model, w, f"{base}.attn", attended)
        before, x = x, x + _drop(model.dropout, attended, (seed, step, unit, 1))
        reads, norm = before if model.parallel_residual else x, "attn" if model.shared_norm else "mlp"
        fed = _feed_forward(model, w, f"{base}.mlp", _into(model, w, f"{base}.{norm}", reads))
        fed = _out_of(model, w, f"{base}.mlp", fed)
        x = x + _drop(model.dropout, fed, (seed, step, unit, 2))
    table = w["embed.tokens.weight"] if model.tied_embeddings else w["head.weight"]
    return _capped(model.logit_softcap, F.linear(_norm(model, w, "head.norm", x), table, w.get("head.bias")))


def _capped(cap: float | None, x: Tensor) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _into(model: Model, w: Weights, base: str, x: Tensor) -> Tensor:
    return x if model.norm_place == "output" else _norm(model, w, f"{base}.norm", x)


def _out_of(model: Model, w: Weights, base: str, x: Tensor) -> Tensor:
    return x if model.norm_place == "input" else _norm(model, w, f"{base}.out_norm", x)


def _norm(model: Model, w: Weights, base: str, x: Tensor) -> Tensor:
    if model.norm == "layernorm":
        return F.layer_norm(x, x.shape[-1:], w[f"{base}.weight"], w[f"{base}.bias"], model.norm_eps)
    return F.rms_norm(x, x.shape[-1:], w[f"{base}.weight"], model.norm_eps)


def _feed_forward(model: Model, w: Weights, base: str, x: Tensor) -> Tensor:
    u = F.linear(x, w[f"{base}.up.weight"], w.get(f"{base}.up.bias"))
    if model.gated:
        gate, up = u.split(model.ffn, dim=-1)
        a = (F.silu(gate) if model.activation == "swiglu" else F.gelu(gate, approximate="tanh")) * up
    else:
        a = F.gelu(u, approximate="tanh") if model.activation == "gelu" else F.relu(u)
        a = a.square() if model.activation == "relu2" else a
    return F.linear(a, w[f"{base}.down.weight"], w.get(f"{base}.down.bias"))


def _attention(model: Model, w: Weights, base: str, x: Tensor, stream: tuple[int, int, int]) -> Tensor:
    batch, length, _ = x.shape
    fused = F.linear(x, w[f"{base}.qkv.weight"], w.get(f"{base}.qkv.bias"))
    q, k, v = fused.split([model.attention_width, model.kv_width, model.kv_width], dim=-1)
    if model.qk_norm == "projection":
        q, k = _normed(model, w, base, q, k)
    q, k, v = (t.view(batch, length, -1, model.head_dim).transpose(1, 2) for t in (q, k, v))
    if model.qk_norm == "head":
        q, k = _normed(model, w, base, q, k)
    if model.positions == "rotary":
        own = _turned(model, stream[2])
        q, k = _rotate(own, q), _rotate(own, k)
    times = model.heads // model.kv_heads
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = _capped(model.attention_softcap, q @ k.transpose(-1, -2) * (model.attention_scale or model.head_dim**-0.5))
    if model.positions == "alibi":
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        scores = scores + (_slopes(model.heads)[:, None, None] * distance).to(scores.dtype)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    size = model.layer_window(stream[2])
    if size is not None:
        future |= torch.ones(length, length, dtype=torch.bool).tril(-size)
    p = scores.masked_fill(future, float("-inf")).softmax(-1)
    if model.attention_dropout:
        query = torch.arange(batch)[:, None, None, None] * length + torch.arange(length)[None, None, :, None]
        element = torch.arange(model.heads)[None, :, None, None] * length + torch.arange(length)[None, None, None, :]
        p = _masked(model.attention_dropout, p, (*stream, 3), query, element)
    out = (p @ v).transpose(1, 2).reshape(batch, length, -1)
    return F.linear(out, w[f"{base}.out.weight"], w.get(f"{base}.out.bias"))


def _normed(model: Model, w: Weights, base: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    eps = model.norm_eps
    q, k = (F.rms_norm(t, t.shape[-1:], w[f"{base}.{n}_norm.weight"], eps) for n, t in (("q", q), ("k", k)))
    return q, k


def _slopes(heads: int) -> Tensor:
    """ALiBi's geometric slopes, as BLOOM has them for head counts that are no power of two."""

    def powers(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    near = 2 ** math.floor(math.log2(heads))
    found = powers(near)
    if near != heads:
        found += powers(2 * near)[0::2][: heads - near]
    return torch.tensor(found, dtype=torch.float64)


def _turned(model: Model, layer: int) -> Model:
    """The model as a layer's queries and keys are turned: with a theta of its own, not stretched, where it is local."""
    window = model.window
    if window is None or model.rope_local_theta is None or (window.full_every and layer % window.full_every == 0):
        return model
    return replace(model, rope_theta=model.rope_local_theta, rope_scaling=None)


def _rotate(model: Model, x: Tensor) -> Tensor:
    x, rest = x[..., : model.rope_width], x[..., model.rope_width :]
    half = model.rope_width // 2
    inverse = torch.tensor([_frequency(model, i, half) for i in range(half)], dtype=torch.float64)
    turn = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), inverse)
    wide = torch.cat((turn, turn), -1)
    cos, sin = ((f(wide) * _magnitude(model)).to(x.dtype) for f in (torch.cos, torch.sin))
    return torch.cat((x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin, rest), -1)


def _frequency(model: Model, index: int, half: int) -> float:
    """The rotary frequency of a pair of columns, as `rope_scaling` asks."""
    frequency, scaling = model.rope_theta ** (-index / half), model.rope_scaling
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    if scaling.kind == "longrope":
        long = model.seq_length > scaling.original_max_positions
        return frequency / (scaling.long_factor if long else scaling.short_factor)[index]
    if scaling.kind == "yarn":
        kept = _kept_by_yarn(model, index, half)
    else:  # Llama 3.1: as it is where the wave is short, divided where it is long, and between them in proportion
        turns = scaling.original_max_positions * frequency / (2 * math.pi)
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = min(1.0, max(0.0, kept))
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def _kept_by_yarn(model: Model, index: int, half: int) -> float:
    """How much of a frequency stays: all where it turns more than `beta_fast` times in the original positions, nothing
    below `beta_slow`, between them in proportion to the index (Peng et al. 2023, arXiv 2309.00071)."""
    scaling = model.rope_scaling
    assert scaling is not None

    def index_of(turns: float) -> float:
        length = scaling.original_max_positions / turns  # positions a turn
        return half * math.log(length / (2 * math.pi)) / math.log(model.rope_theta)

    first = max(0, math.floor(index_of(scaling.beta_fast)))
    last = min(2 * half - 1, math.ceil(index_of(scaling.beta_slow)))
    return 1 - min(1.0, max(0.0, (index - first) / (last - first if last != first else 1e-3)))


def _magnitude(model: Model) -> float:
    """What YaRN and LongRoPE multiply queries and keys by."""
    scaling = model.rope_scaling
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor or scaling.factor <= 1:
        return scaling.attention_factor or 1.0
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_positions))


def _drop(p: float, x: Tensor, stream: tuple[int, int, int, int]) -> Tensor:
    if p == 0.0:
        return x
    batch, length, width = x.shape
    token = (torch.arange(batch)[:, None] * length + torch.arange(length))[..., None]
    return _masked(p, x, stream, token, torch.arange(width))


def _masked(p: float, x: Tensor, stream: tuple[int, int, int, int], token: Tensor, element: Tensor) -> Tensor:
    seed, step, layer, site = stream
    uniform = uniform_reference(Dropout.at(p, seed=seed, step=step, layer=layer, site=site), token, element)
    return x * (uniform >= torch.tensor(p)) / (1 - p)
