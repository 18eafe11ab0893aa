"""The model: a dense decoder-only transformer, as numbers: GPT, Llama, Qwen, OLMo, Gemma, Phi, NeoX, Falcon.

`Model` is what the rest of Windtunnel works with: frozen, plain, complete. How it is written in a run file
(presets, defaults, `rope:`) is the business of `plan.run.schema`; which plans it can run under is that of
`plan.run.rules`.

Legend used everywhere: h = hidden, a = heads, k = kv_heads, d = head_dim, f = ffn, V = vocab, s = seq_length, L =
layers. Counts are of the *unpadded* vocabulary, as papers and model cards count them; what is really allocated is
`padded_vocab(t)`.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "swiglu", "geglu", "relu", "relu2"]
Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary", "alibi"]
QkNorm = Literal["none", "head", "projection"]
NormPlace = Literal["input", "output", "both"]
GATED = ("swiglu", "geglu")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. `linear` divides all by `factor`; `llama3` only the long wavelengths
    (Llama 3.1); `yarn` ramps between `beta_slow` and `beta_fast` turns in the original length (arXiv 2309.00071);
    `longrope` divides each by a factor of its own, `long_factor` where the sequence is longer than the original (arXiv
    2402.13753). The last two multiply cos and sin by `attention_factor` (0: what their papers say)."""

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 0.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """Attention to the last `size` positions, its own included; of every `full_every` layers the last sees all (0:
    none does)."""

    size: int
    full_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One transformer. Every field is resolved: nothing here is optional or `auto` (rope_scaling None means: not
    scaled)."""

    name: str = "custom"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq_length: int
    max_positions: int
    """Rows of the learned position table; for rotary and ALiBi positions it is seq_length and costs nothing."""
    activation: Activation = "gelu"
    norm: Norm = "layernorm"
    positions: Positions = "learned"
    tied_embeddings: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    """Biases on the linears of a layer: QKV, the attention's output, both of the MLP (a layernorm always has one, an
    rmsnorm never)."""
    head_bias: bool = False
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    """Factor on what the embedding looked up."""
    qk_norm: QkNorm = "none"
    """An rmsnorm of queries and keys before they are turned: of each head, or of the whole projection."""
    norm_place: NormPlace = "input"
    """Where a layer's norms stand: before attention and MLP, on what they leave before it is added, or both."""
    parallel_residual: bool = False
    """Attention and MLP both read the layer's input, and their sum is added to it."""
    shared_norm: bool = False
    """Of a parallel residual: one norm for both."""
    window: AttentionWindow | None = None
    attention_scale: float | None = None
    """Factor on scores; None is 1/√head_dim."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    """Scores and logits x become c · tanh(x / c)."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_local_theta: float | None = None
    """Of layers with a window, which then take no scaling; None: as the others."""
    rope_fraction: float = 1.0
    """Share of each head that is turned, its first columns."""
    rope_scaling: RopeScaling | None = None
    init_std: float = 0.02
    vocab_multiple: int = 128

    @property
    def attention_width(self) -> int:
        """Columns of the attention output, a·d; equals hidden unless head_dim was chosen apart from it."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of K (and of V), k·d."""
        return self.kv_heads * self.head_dim

    @property
    def gated(self) -> bool:
        """True when the MLP has a gate matrix beside `up` (SwiGLU, GeGLU)."""
        return self.activation in GATED

    @property
    def bias(self) -> bool:
        """True when every linear of a layer but QKV has a bias."""
        return self.out_bias and self.mlp_bias

    @property
    def rope_width(self) -> int:
        """Columns of each head that are turned."""
        return int(self.head_dim * self.rope_fraction)

    def layer_window(self, layer: int) -> int | None:
        """The window of layer 1…L; None where it sees every position before."""
        window = self.window
        if window is None or window.size >= self.seq_length:
            return None
        return None if window.full_every and layer % window.full_every == 0 else window.size

    @property
    def units(self) -> int:
        """What a pipeline distributes: unit 0 the embedding, 1…L the layers, L+1 the head."""
        return self.layers + 2

    @property
    def windowed_layers(self) -> int:
        """Layers that do not see every position before."""
        window = self.window
        if window is None or window.size >= self.seq_length:
            return 0
        return self.layers - (self.layers // window.full_every if window.full_every else 0)

    def padded_vocab(self, tensor_parallel: int = 1) -> int:
        """Vocabulary rows really allocated: V rounded up to a multiple of vocab_multiple · TP (Megatron's rule)."""
        multiple = self.vocab_multiple * tensor_parallel
        return -(-self.vocab // multiple) * multiple

    def norm_parameters(self) -> int:
        """Parameters of one norm: weight, and bias for a layernorm."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    def attention_parameters(self) -> int:
        """QKV and output projection of one layer, biases and norms of queries and keys included."""
        weights = self.hidden * (2 * self.attention_width + 2 * self.kv_width)
        qkv_bias = (self.attention_width + 2 * self.kv_width) if self.qkv_bias else 0
        norms = {"none": 0, "head": 2 * self.head_dim, "projection": self.attention_width + self.kv_width}
        return weights + qkv_bias + (self.hidden if self.out_bias else 0) + norms[self.qk_norm]

    def mlp_parameters(self) -> int:
        """Up (and gate) and down projection of one layer, biases included."""
        ups = 2 if self.gated else 1
        return self.hidden * self.ffn * (ups + 1) + ((ups * self.ffn + self.hidden) if self.mlp_bias else 0)

    @property
    def layer_norms(self) -> int:
        """Norms of one layer, but those of queries and keys."""
        return 4 if self.norm_place == "both" else 1 if self.parallel_residual and self.shared_norm else 2

    def layer_parameters(self) -> int:
        """One transformer layer: norms, attention, MLP."""
        return self.layer_norms * self.norm_parameters() + self.attention_parameters() + self.mlp_parameters()

    def embedding_parameters(self) -> int:
        """Unit 0: word table, learned positions if any, embedding norm if any."""
        positions = self.max_positions * self.hidden if self.positions == "learned" else 0
        return self.vocab * self.hidden + positions + (self.norm_parameters() if self.embedding_norm else 0)

    def parameters(self) -> int:
        """Exact number of parameters, tied embeddings counted once, vocabulary unpadded."""
        head = (0 if self.tied_embeddings else self.vocab * self.hidden) + (self.vocab if self.head_bias else 0)
        return self.embedding_parameters() + self.layers * self.layer_parameters() + self.norm_parameters() + head
