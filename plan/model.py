"""The model: a dense decoder-only transformer of the GPT or Llama family, as numbers.

`Model` is what the rest of Windtunnel works with: frozen, plain, complete. How it is written in a run file
(presets, defaults, `rope:`) is the business of `plan.run.schema`; which plans it can run under is that of
`plan.run.rules`.

Legend used everywhere: h = hidden, a = heads, k = kv_heads, d = head_dim, f = ffn, V = vocab, s = seq_length, L =
layers. Counts are of the *unpadded* vocabulary, as papers and model cards count them; what is really allocated is
`padded_vocab(t)`.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "swiglu"]
Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary", "alibi"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. `linear` divides all by `factor`; `llama3` only the long wavelengths
    (Llama 3.1)."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


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
    bias: bool = True
    """Biases on all four linears of a layer (a layernorm always has one, an rmsnorm never)."""
    qkv_bias: bool = True
    """Bias on the QKV linear; equals `bias` except in models such as Qwen2, which bias QKV alone."""
    embedding_norm: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
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
        """True when the MLP has a gate matrix beside `up` (SwiGLU)."""
        return self.activation == "swiglu"

    @property
    def units(self) -> int:
        """What a pipeline distributes: unit 0 the embedding, 1…L the layers, L+1 the head."""
        return self.layers + 2

    def padded_vocab(self, tensor_parallel: int = 1) -> int:
        """Vocabulary rows really allocated: V rounded up to a multiple of vocab_multiple · TP (Megatron's rule)."""
        multiple = self.vocab_multiple * tensor_parallel
        return -(-self.vocab // multiple) * multiple

    def norm_parameters(self) -> int:
        """Parameters of one norm: weight, and bias for a layernorm."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    def attention_parameters(self) -> int:
        """QKV and output projection of one layer, biases included."""
        weights = self.hidden * (2 * self.attention_width + 2 * self.kv_width)
        qkv_bias = (self.attention_width + 2 * self.kv_width) if self.qkv_bias else 0
        return weights + qkv_bias + (self.hidden if self.bias else 0)

    def mlp_parameters(self) -> int:
        """Up (and gate) and down projection of one layer, biases included."""
        ups = 2 if self.gated else 1
        return self.hidden * self.ffn * (ups + 1) + ((ups * self.ffn + self.hidden) if self.bias else 0)

    def layer_parameters(self) -> int:
        """One transformer layer: two norms, attention, MLP."""
        return 2 * self.norm_parameters() + self.attention_parameters() + self.mlp_parameters()

    def embedding_parameters(self) -> int:
        """Unit 0: word table, learned positions if any, embedding norm if any."""
        positions = self.max_positions * self.hidden if self.positions == "learned" else 0
        return self.vocab * self.hidden + positions + (self.norm_parameters() if self.embedding_norm else 0)

    def parameters(self) -> int:
        """Exact number of parameters, tied embeddings counted once, vocabulary unpadded."""
        head = 0 if self.tied_embeddings else self.vocab * self.hidden
        return self.embedding_parameters() + self.layers * self.layer_parameters() + self.norm_parameters() + head
