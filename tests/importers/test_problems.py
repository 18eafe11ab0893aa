"""What is wrong comes at once, through importer and rules, in the words of the user's file; unknown names in one line;
suggestions only when they are near; what was left open is an assumption with the file's own word for it.
"""

import json
from pathlib import Path

import pytest

from importers import import_file
from importers.table import hint, reworded
from program.errors import InputError
from tests.importers.imported import imported, said, script
from windtunnel.source import RunSource


def problems(path: Path, **options: object) -> list[str]:
    """Every problem of a load from the command line."""
    with pytest.raises(InputError) as caught:
        RunSource(str(path), cluster="dgx-h100", nodes=1, **options).load()  # type: ignore[arg-type]
    return list(caught.value.problems)


def test_all_problems_of_a_script_come_at_once(tmp_path: Path) -> None:
    """The optimizer of the importer; heads, batch and sequence of the rules: each by its flag."""
    flags = "--optimizer sgd --tensor-model-parallel-size 3 --micro-batch-size 3 --global-batch-size 16 --bf16"
    (tmp_path / "a.sh").write_text(script(flags, "torchrun --nproc_per_node 6").replace("--micro-batch-size 1 ", ""))
    found = problems(tmp_path / "a.sh")
    for words in (
        ("--optimizer sgd",),
        ("--tensor-model-parallel-size 3 does not divide --num-attention-heads 4",),
        ("--global-batch-size 12 or 18", "--micro-batch-size 2"),
    ):
        assert any(all(word in each for word in words) for each in found), found


@pytest.mark.parametrize(
    ("flags", "words", "others"),
    [
        (
            (
                "--recompute-granularity full --sequence-parallel --distribute-saved-activations "
                "--tensor-model-parallel-size 2"
            ),
            ["--distribute-saved-activations does nothing with --sequence-parallel"],
            ["partition_activations", "sequence_parallel"],
        ),
        (
            "--num-layers 30 --pipeline-model-parallel-size 4",
            ["30 layers", "--pipeline-model-parallel-size 4", "--account-for-embedding-in-pipeline-split"],
            ["pipeline_layout", "pipeline_parallel"],
        ),
    ],
)
def test_rules_speak_the_words_of_a_script(tmp_path: Path, flags: str, words: list[str], others: list[str]) -> None:
    """Not those of a run file."""
    (tmp_path / "a.sh").write_text(script(f"--bf16 {flags}"))
    found = "\n".join(problems(tmp_path / "a.sh"))
    assert all(word in found for word in words), found
    assert not any(word in found for word in others), found


def test_rules_speak_the_words_of_neox(tmp_path: Path) -> None:
    """Its own names of the degrees."""
    config = {"num_layers": 4, "hidden_size": 60, "num_attention_heads": 5, "seq_length": 32, "vocab_size": 1000}
    config |= {"model_parallel_size": 2, "train_micro_batch_size_per_gpu": 1, "max_position_embeddings": 32}
    (tmp_path / "a.yml").write_text(json.dumps(config))
    assert any(
        "model_parallel_size 2 does not divide num_attention_heads 5" in each for each in problems(tmp_path / "a.yml")
    )


def test_words_are_replaced_where_they_are_keys() -> None:
    """A plain word of English stays."""
    names = {"model.heads": "--num-attention-heads", "plan.tensor_parallel": "--tp"}
    sentence = "tensor_parallel 4 does not divide heads 10; model.heads, the heads and max_tensor_parallel stay"
    assert reworded(sentence, names) == (
        "--tp 4 does not divide --num-attention-heads 10; --num-attention-heads, the heads and max_tensor_parallel stay"
    )


def test_unknown_names_are_one_sentence(tmp_path: Path) -> None:
    """Of a script and of a JSON."""
    result = imported(tmp_path, script("--bf16 --colour blue --shiny --sed 3"))
    assert [each for each in result.warnings if "unknown" in each] == [
        "unknown flags --colour, --shiny, --sed (did you mean --seed?): they are not applied"
    ]


def test_sharding_over_one_rank_is_said_to_do_nothing(tmp_path: Path) -> None:
    """ZeRO at data-parallel 1, by a flag and by a JSON."""
    flags = "--bf16 --use-distributed-optimizer --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    assert said(imported(tmp_path, script(flags)), "--use-distributed-optimizer does nothing at data-parallel 1")
    assert not said(imported(tmp_path, script("--bf16 --use-distributed-optimizer")), "does nothing")
    text = json.dumps({"zero_optimization": {"stage": 2}, "train_batch_size": 4})
    alone = imported(tmp_path, text, "ds.json", model="gpt2-355m", overrides=["cluster.gpus=1"])
    assert said(alone, "zero_optimization.stage 2 does nothing at data-parallel 1")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("--tensor-model-paralel-size", "--tensor-model-parallel-size"),
        ("--parallel-tensor-model-size", "--tensor-model-parallel-size"),
        ("--colour", None),
        ("--my-fp6-format", None),
        ("--fp8-formt", "--fp8-format"),
    ],
)
def test_a_suggestion_is_near(name: str, near: str | None) -> None:
    """Or there is none."""
    assert hint(name, ["--tensor-model-parallel-size", "--seed", "--fp8-format", "--log-interval"]) == near


@pytest.mark.parametrize(
    ("name", "text", "subjects"),
    [
        ("a.sh", script(""), {"attention", "precision", "vocabulary", "recompute", "feed-forward width"}),
        (
            "a.sh",
            script("--bf16 --attention-backend flash --vocab-size 9 --ffn-hidden-size 8 --recompute-activations"),
            set(),
        ),
        (
            "ds.json",
            '{"zero_optimization": {"stage": 1}}',
            {"attention", "batch", "precision", "recompute", "sequence length"},
        ),
        ("t.toml", '[model]\nname = "llama3"\nflavor = "8B"\n', {"batch", "sequence length", "recompute"}),
        (
            "n.yml",
            (
                "num_layers: 4\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 32\npipe_parallel_size: 1\n"
                "train_batch_size: 8\n"
            ),
            {"attention", "precision", "vocabulary", "recompute"},
        ),
    ],
)
def test_what_was_left_open_is_an_assumption(tmp_path: Path, name: str, text: str, subjects: set[str]) -> None:
    """With the file's word that changes it, and no warning or note besides."""
    model = "gpt2-355m" if name == "ds.json" else None
    (tmp_path / name).write_text(text)
    result = import_file(tmp_path / name, cluster="dgx-h100", nodes=1, model=model, refuse=False)
    found = {each.subject: each for each in result.assumptions}
    assert found.keys() - {"GPUs a node"} == subjects
    assert all(each.flag and each.moves and each.value for each in found.values())
    asked = import_file(
        tmp_path / name, cluster="dgx-h100", nodes=1, model=model, refuse=False, overrides=["plan.recompute=full"]
    )
    assert "recompute" not in {each.subject for each in asked.assumptions}


def test_an_unknown_value_in_an_assumption_is_plain_text(tmp_path: Path) -> None:
    """The words of a sentence, never a marker; NeMo's keys for NeMo's files."""
    text = script("--bf16 --tokenizer-type Custom --tokenizer-model $(hostname)/x --save $NOWHERE/x")
    result = imported(tmp_path, text)
    assert said(result, "vocabulary", "Custom with <hostname>/x")
    assert all(ord(letter) < 0xE000 for each in result.assumptions for letter in each.value)
    nemo = json.dumps({"trainer": {"precision": "32"}, "model": {"tensor_model_parallel_size": 1, "num_layers": 2}})
    found = imported(tmp_path, nemo, "n.yaml", nodes=1, model="gpt2-124m")
    assert not any("--" in each.flag for each in found.assumptions if each.subject != "GPUs a node"), found.assumptions


def test_a_node_s_gpus_are_an_assumption_where_nobody_says_them(tmp_path: Path) -> None:
    """By the launcher's option."""
    assert said(imported(tmp_path, script("--bf16", "torchrun"), nodes=2), "GPUs a node: 8", "--nproc_per_node")
    assert not said(imported(tmp_path, script("--bf16"), nodes=2), "GPUs a node")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "n.yml",
            "num_layers: 4\npipe_parallel_size: 1\nkv_compression_heads: 3\n",
            "GPT-NeoX key kv_compression_heads",
        ),
        (
            "t.toml",
            '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\nfoo_parallel = 4\n',
            "parallelism.foo_parallel",
        ),
        (
            "m.yaml",
            "max_duration: 1ba\nmodel: {d_model: 8, n_heads: 1, n_layers: 1, odd_embedding: 3}\n",
            "odd_embedding",
        ),
        (
            "x.yaml",
            "model: {tensor_model_parallel_size: 1, odd_attention: wide}\n",
            "NeMo key model.odd_attention wide",
        ),
    ],
)
def test_an_unknown_key_that_may_matter_is_refused_in_every_format(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    """By its name, and with what goes on without it; a value of nothing is let pass."""
    refused = imported(tmp_path, text, name, nodes=1).problems
    assert any(words in each and "--accept-unknown" in each for each in refused), refused
    assert not any("unknown" in each for each in imported(tmp_path, text, name, nodes=1, accept_unknown=True).problems)
