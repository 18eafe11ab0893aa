"""Values that are one word of a few, or true or false: another word is a problem, in every format, under the key that
was written, with the nearest legal one."""

import json
from pathlib import Path

import pytest

from importers import deepspeed_table, neox_table
from importers.megatron_table import FLAGS
from importers.torchtitan_table import KEYS as TITAN
from tests.importers.imported import imported, said, script

NEOX = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "pipe_parallel_size": 1,
    "model_parallel_size": 1, "vocab_size": 1000, "train_micro_batch_size_per_gpu": 1,
}  # fmt: skip
NEOX_WORDS = {name: key.words for name, key in neox_table.KEYS.items() if key.words}
NEOX_WORDS["norm"] = ("layernorm", "rmsnorm")
NEOX_SWITCHES = (
    "no_weight_tying", "gpt_j_residual", "use_bias_in_mlp", "use_bias_in_attn_linear", "checkpoint_activations",
    "partition_activations", "sequence_parallel", "synchronize_each_layer",
)  # fmt: skip


def misspelt(word: str) -> str:
    """Near a word, and none."""
    return f"{word[:-1]}Q{word[-1]}"


def toml(path: str, value: object) -> str:
    """A torchtitan configuration with one key more."""
    table, key = path.rsplit(".", 1)
    model = 'name = "llama3"\nflavor = "8B"\n'
    row = f"{key} = {json.dumps(value)}\n"
    return f"[model]\n{model}{row if table == 'model' else ''}\n" + (f"[{table}]\n{row}" if table != "model" else "")


@pytest.mark.parametrize("flag", sorted(flag for flag, key in FLAGS.items() if key.words))
def test_megatron_flags(flag: str, tmp_path: Path) -> None:
    """The last word of each list, misspelt."""
    word = FLAGS[flag].words[-1]
    flags = f"{flag} {misspelt(word)} --lr 1e-4 --use-megatron-fsdp --recompute-granularity full"
    text = script(flags if flag != "--recompute-granularity" else f"{flag} {misspelt(word)}")
    assert said(imported(tmp_path, text), flag, misspelt(word), "must be one of", f"the nearest is {word!r}")


@pytest.mark.parametrize("key", sorted(name for name, key in TITAN.items() if key.words))
def test_torchtitan_keys(key: str, tmp_path: Path) -> None:
    """Also a number where a word belongs."""
    word = TITAN[key].words[-1]
    for value in (misspelt(word), 3):
        result = imported(tmp_path, toml(key, value), "x.toml", nodes=1)
        assert any(each.startswith(f"{key} is ") and "must be one of" in each for each in result.problems)
    assert said(imported(tmp_path, toml(key, misspelt(word)), "x.toml", nodes=1), f"the nearest is {word!r}")


@pytest.mark.parametrize("key", sorted(name for name, key in TITAN.items() if key.kind == "switch"))
def test_torchtitan_switches(key: str, tmp_path: Path) -> None:
    """The word "no" is no; "perhaps" is nothing."""
    assert (
        f"{key} is 'perhaps', but must be true or false"
        in imported(tmp_path, toml(key, "perhaps"), "x.toml", nodes=1).problems
    )
    off, no = (imported(tmp_path, toml(key, value), "x.toml", nodes=1).run_dict for value in (False, "no"))
    assert off == no


@pytest.mark.parametrize("key", sorted(NEOX_WORDS))
def test_neox_table(key: str, tmp_path: Path) -> None:
    """Each word of the list is legal; near it is not."""
    word = NEOX_WORDS[key][-1]
    result = imported(tmp_path, json.dumps(NEOX | {key: misspelt(word)}), "x.yml", nodes=1)
    assert said(result, key, misspelt(word), "must be one of", f"the nearest is {word!r}")
    for legal in NEOX_WORDS[key]:
        assert imported(tmp_path, json.dumps(NEOX | {key: legal}), "x.yml", nodes=1).problems == () or said(
            imported(tmp_path, json.dumps(NEOX | {key: legal}), "x.yml", nodes=1), "not yet forecast", key
        )


@pytest.mark.parametrize("key", NEOX_SWITCHES)
def test_neox_switches(key: str, tmp_path: Path) -> None:
    """Neither true nor false."""
    result = imported(tmp_path, json.dumps(NEOX | {"checkpoint_activations": True, key: "maybe"}), "x.yml", nodes=1)
    assert f"{key} is 'maybe', but must be true or false" in result.problems


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}}, "offload_param.device is 'gpu'"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": 0}}}, "offload_optimizer.device is 0"),
        ({"data_types": {"grad_accum_dtype": "fp17"}, "fp16": {"enabled": True}}, "the nearest is 'fp16'"),
        ({"optimizer": {"type": 5}}, "optimizer.type is 5, but must be a name such as 'AdamW'"),
        ({"scheduler": {"type": []}}, "scheduler.type is [], but must be a name such as 'WarmupLR'"),
        ({"optimizer": {"type": "Adam", "params": {"betas": "y"}}}, "betas is 'y', but must be two numbers"),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "betas is [0.9], but must be two numbers"),
    ],
)
def test_deepspeed_values(config: dict[str, object], problem: str, tmp_path: Path) -> None:
    """Words, names and pairs."""
    text = json.dumps({"train_batch_size": 8} | config)
    assert any(problem in each for each in imported(tmp_path, text, "ds.json", nodes=1, model="gpt2-124m").problems)


def test_an_object_is_shown_by_a_key_that_it_has(tmp_path: Path) -> None:
    """What stands in its place names that key, not one of another object."""
    for path, key in deepspeed_table.EXAMPLES.items():
        known = [name for name in deepspeed_table.KEYS if name.startswith(f"{path}.")]
        assert f"{path}.{key}" in known
        assert path in deepspeed_table.OBJECTS


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ('name = "llama3"\nflavor = "9B"', "the nearest known is llama3"),
        ("name = 3", "has no model.flavor"),
        ("", "has no model.name and no model.flavor"),
    ],
)
def test_a_torchtitan_model_that_is_not_known(rows: str, problem: str, tmp_path: Path) -> None:
    """The nearest one, or what is missing."""
    assert said(imported(tmp_path, f"[model]\n{rows}\n[training]\nseq_len = 8\n", "x.toml", nodes=1), problem)


def test_a_value_where_a_torchtitan_table_belongs(tmp_path: Path) -> None:
    """Said as such, not as an unknown key."""
    result = imported(tmp_path, "model = 3\ntraining = []\nparallelism = 'x'\n", "x.toml", nodes=1)
    for table, value in (("model", "3"), ("training", "[]"), ("parallelism", "'x'")):
        assert f"{table} is {value}, but must be a table [{table}]" in result.problems
    assert not said(result, "unknown")


def test_a_misspelt_family_of_models(tmp_path: Path) -> None:
    """The nearest family comes first."""
    assert said(imported(tmp_path, '{"model_type": "lama", "hidden_size": 64}', "config.json"), "supported: llama (of")
