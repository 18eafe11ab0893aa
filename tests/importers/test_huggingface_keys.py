"""Keys of a config.json: what has no effect is listed, what is unknown gets the nearest name, half a rope scaling is
refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from plan.huggingface import model_section
from plan.ledger import Ledger
from plan.run import load
from program.errors import InputError
from tests.importers.test_huggingface import BLOOM, GPT2, LLAMA
from windtunnel.source import RunSource

V4 = {
    "_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "transformers_version": "4.40.0.dev0",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "pretraining_tp": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_scaling": None,
}
V5 = {
    "transformers_version": "5.17.0",
    "dtype": "bfloat16",
    "chunk_size_feed_forward": 0,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "problem_type": None,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}


def read(config: dict[str, Any]) -> Ledger:
    ledger = Ledger()
    model_section(config, ledger)
    return ledger


@pytest.mark.parametrize("config", [LLAMA | V4, LLAMA | V5, GPT2 | V4 | {"summary_type": "cls_index"}, BLOOM | V5])
def test_published_files_hold_no_unknown_key(config: dict[str, Any]) -> None:
    """Their bookkeeping is one note."""
    ledger = read(config)
    assert (ledger.unknowns, ledger.problems, ledger.not_forecast) == ([], [], [])
    assert any("no effect on the forecast (config.json): " in note for note in ledger.notes)


def test_an_unknown_key_names_the_nearest() -> None:
    """A misspelt count of key-value heads is another model: eight times the cache of gradients, silently."""
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | {"num_key_value_head": 8}
    assert read(config).unknowns == [
        "unknown config.json key num_key_value_head: it is not applied; did you mean num_key_value_heads?"
    ]


def test_unknown_keys_of_a_refused_architecture_are_not_listed() -> None:
    """It is refused as a whole."""
    assert not read(LLAMA | {"model_type": "gemma4", "query_pre_attn_scalar": 256}).unknowns


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, "lacks low_freq_factor, high_freq_factor, original_max_position_"),
        ({"type": "linear"}, "rope_scaling of type linear lacks factor"),
        ({"factor": 8.0}, "rope_scaling has factor but no rope_type; add it (linear or llama3 or yarn or longrope)"),
    ],
)
def test_half_a_rope_scaling_names_what_is_missing(scaling: dict[str, Any], words: str) -> None:
    """As transformers does; nothing is filled in."""
    assert any(words in problem for problem in read(LLAMA | {"rope_scaling": scaling}).problems)


def test_a_misspelt_rope_key_is_named_with_its_place() -> None:
    """Beside the message about what is missing."""
    ledger = read(LLAMA | {"rope_scaling": {"rope_type": "linear", "facto": 8.0}})
    assert "unknown config.json key rope_scaling.facto: it is not applied; did you mean factor?" in ledger.unknowns


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters that differ between layers"),
        ({"model_type": "smollm3"}, "layers without rotary embeddings"),
        ({"add_cross_attention": True}, "add_cross_attention true"),
        ({"embd_pdrop": 0.1}, "embd_pdrop 0.1 with resid_pdrop 0.0"),
        ({"z_loss_weight": 1e-4}, "z_loss_weight 0.0001"),
        ({"model_type": "baichuan", "max_position_embeddings": None, "model_max_length": 4096}, "ALiBi"),
    ],
)
def test_unusual_values_are_not_yet_forecast(change: dict[str, Any], words: str) -> None:
    """A key that is idle at its usual value is refused at another."""
    assert any(words in sentence for sentence in read(LLAMA | change).not_forecast)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window is 'wide', but must be a number"),
        ({"tie_word_embeddings": "perhaps"}, "tie_word_embeddings is 'perhaps', but must be true or false"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', but must be a list"),
        ({"no_rope_layers": {"0": 1}}, 'no_rope_layers is {"0": 1}, but must be a list'),
        ({"num_hidden_layers": 32.5}, "num_hidden_layers is 32.5, but must be a whole number"),
    ],
)
def test_a_value_of_another_kind_is_one_problem(change: dict[str, Any], words: str) -> None:
    """Named once, and no traceback."""
    (problem,) = read(LLAMA | change).problems
    assert words in problem


def test_words_for_true_and_false_are_read() -> None:
    """A string "false" is not true."""
    assert model_section(LLAMA | {"tie_word_embeddings": "false"}, Ledger())["tied_embeddings"] is False


def test_a_config_named_in_a_run_file_says_what_it_passes_over(tmp_path: Path) -> None:
    """The warnings of the file reach the command line; `plan.run.load` gives the same run."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_dropuot": 0.1}))
    run = tmp_path / "run.yaml"
    run.write_text(f"model: {tmp_path}/config.json\ncluster: {{preset: dgx-h100, nodes: 1}}\nplan: {{}}\n")
    source = RunSource(str(run))
    assert source.load() == load(run)
    assert any("did you mean hidden_dropout?" in warning for warning in source.warnings)


def test_a_broken_config_in_a_run_file_is_said_once(tmp_path: Path) -> None:
    """One refusal, with every problem."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_scaling": {"type": "linear"}}))
    run = tmp_path / "run.yaml"
    run.write_text(f"model: {tmp_path}/config.json\ncluster: {{preset: dgx-h100, nodes: 1}}\nplan: {{}}\n")
    with pytest.raises(InputError, match="lacks factor"):
        RunSource(str(run)).load()
