"""The model's numbers: derived fields, padding, and parameter counts by part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan.model import Model
from plan.run import load

GPT = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "seq_length": 1024}
LLAMA = {
    "layers": 2,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 172,
    "vocab": 100,
    "seq_length": 16,
    "activation": "swiglu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "tied_embeddings": False,
    "bias": False,
}


def model_of(**numbers: object) -> Model:
    return load({"model": numbers, "cluster": "cpu", "plan": {}}).model


def test_what_is_left_out_is_derived() -> None:
    model = model_of(**GPT)
    assert (model.kv_heads, model.head_dim, model.ffn, model.max_positions) == (12, 64, 3072, 1024)
    assert model.qkv_bias
    assert not model_of(**LLAMA).qkv_bias


def test_a_gated_mlp_defaults_to_two_thirds_of_4h_rounded_up_to_64() -> None:
    assert model_of(**{**GPT, "hidden": 4096, "heads": 32, "activation": "swiglu"}).ffn == 10944


def test_a_layer_of_a_gpt_is_12_h_squared_plus_13_h() -> None:
    assert model_of(**GPT).layer_parameters() == 12 * 768**2 + 13 * 768


def test_a_llama_layer_by_hand() -> None:
    attention = 64 * (64 + 2 * 16) + 64 * 64
    assert model_of(**LLAMA).layer_parameters() == attention + 3 * 64 * 172 + 2 * 64
    assert model_of(**LLAMA).parameters() == 2 * (attention + 3 * 64 * 172 + 128) + 64 + 2 * 100 * 64


def test_qkv_bias_alone_as_in_qwen2() -> None:
    plain, biased = model_of(**LLAMA), model_of(**LLAMA, qkv_bias=True)
    assert biased.parameters() - plain.parameters() == 2 * (64 + 2 * 16)


def test_head_dim_apart_from_hidden_as_in_qwen3() -> None:
    model = model_of(**{**LLAMA, "head_dim": 128})
    assert model.attention_width == 1024
    assert model.attention_parameters() == 64 * (2 * 1024 + 2 * 256)


def test_tied_embeddings_are_counted_once_and_embedding_norm_adds_2h() -> None:
    base, untied = model_of(**GPT), model_of(**GPT, tied_embeddings=False)
    assert untied.parameters() - base.parameters() == 50257 * 768
    assert model_of(**GPT, embedding_norm=True).parameters() - base.parameters() == 2 * 768


def test_norms_and_biases_of_other_families_are_counted() -> None:
    """By hand: of heads 2·d, of projections q + kv, behind branches two more, of a shared norm one fewer."""
    base = model_of(**LLAMA)

    def more(**numbers: object) -> int:
        return model_of(**{**LLAMA, **numbers}).layer_parameters() - base.layer_parameters()

    assert (more(qk_norm="head"), more(qk_norm="projection")) == (2 * 8, 64 + 16)
    assert (more(norm_place="output"), more(norm_place="both")) == (0, 2 * 64)
    assert (more(parallel_residual=True), more(parallel_residual=True, shared_norm=True)) == (0, -64)
    assert more(bias={"qkv": True, "out": False, "mlp": False}) == 64 + 2 * 16
    assert more(bias={"qkv": False, "out": True, "mlp": True}) == 64 + 2 * 172 + 64
    assert more(activation="geglu") == 0
    assert more(activation="relu2") == -64 * 172


@pytest.mark.parametrize("bias", [{"qkv": True, "out": False, "mlp": False}, {"qkv": True, "out": False, "mlp": True}])
def test_a_run_file_gives_back_every_key_of_a_family(bias: dict[str, bool]) -> None:
    numbers = {
        **LLAMA, "bias": bias, "window": {"size": 4, "full_every": 2}, "attention_softcap": 50, "logit_softcap": 30.0,
        "attention_scale": 0.25, "embedding_scale": 8, "qk_norm": "head", "activation": "geglu",
        "rope": {"theta": 1e6, "local_theta": 1e4, "fraction": 0.5,
                 "scaling": {"kind": "longrope", "factor": 4, "short_factor": [1, 1], "long_factor": [2, 3]}},
    }  # fmt: skip
    run = load({"model": numbers, "cluster": "cpu", "plan": {}})
    assert load(run.to_dict()) == run
    assert [run.model.layer_window(layer) for layer in (1, 2)] == [4, None]
    assert run.plan.attention == "unfused"


def test_positions_that_are_not_learned_cost_nothing() -> None:
    learned = model_of(**GPT).parameters()
    for kind in ("rotary", "alibi"):
        assert learned - model_of(**GPT, positions=kind).parameters() == 1024 * 768


@pytest.mark.parametrize(("tensor_parallel", "padded"), [(1, 50304), (2, 50432), (8, 51200)])
def test_vocabulary_is_padded_to_a_multiple_of_128_t(tensor_parallel: int, padded: int) -> None:
    assert model_of(**GPT).padded_vocab(tensor_parallel) == padded


def test_llama_3_1_rope_scaling_is_read() -> None:
    scaling = {"kind": "llama3", "factor": 8}
    model = model_of(**LLAMA, rope={"theta": "5e5", "scaling": scaling})
    assert model.rope_theta == 500000
    assert model.rope_scaling is not None
    assert model.rope_scaling.original_max_positions == 8192


@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 300),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["gelu", "swiglu"]),
    st.sampled_from(["layernorm", "rmsnorm"]),
    st.sampled_from(["learned", "alibi"]),
)
def test_parameters_are_the_sum_of_every_tensor(
    layers: int,
    heads: int,
    head_dim: int,
    vocab: int,
    tied: bool,
    bias: bool,
    activation: str,
    norm: str,
    positions: str,
) -> None:
    """An independent count: list the shapes as a framework would allocate them."""
    h, f, s = heads * head_dim, 24, 8
    model = model_of(
        layers=layers,
        hidden=h,
        heads=heads,
        ffn=f,
        vocab=vocab,
        seq_length=s,
        activation=activation,
        norm=norm,
        positions=positions,
        tied_embeddings=tied,
        bias=bias,
    )
    norm_shapes = [(h,), (h,)] if norm == "layernorm" else [(h,)]
    ups = [(f, h)] * (2 if activation == "swiglu" else 1)
    linears = [(h, h)] * 4 + ups + [(h, f)]
    biases = [(rows,) for rows, _ in linears] if bias else []
    shapes = (norm_shapes * 2 + linears + biases) * layers + norm_shapes + [(vocab, h)] * (1 if tied else 2)
    shapes += [(s, h)] if positions == "learned" else []
    count = 0
    for shape in shapes:
        count += shape[0] * (shape[1] if len(shape) == 2 else 1)
    assert model.parameters() == count
