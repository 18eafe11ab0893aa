"""Which format a file is in, by content before name, and what is refused."""

from pathlib import Path

import pytest

from importers import detect, import_file
from plan.run import load
from program.errors import InputError


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.sh", "torchrun x.py", "megatron"),
        ("a", "#!/bin/bash\n", "megatron"),
        ("flags.txt", "--num-layers 4\n--bf16", "megatron"),
        ("command.txt", "torchrun x.py --num-layers 4", "megatron"),
        ("a.json", '{"train_batch_size": 1,}', "deepspeed"),
        ("a.yaml", "deepspeed: {zero_optimization: {stage: 3}}", "deepspeed"),
        ("config.json", '{"model_type": "llama"}', "huggingface"),
        ("a.toml", "[training]\nseq_len = 1", "torchtitan"),
        ("a.yml", '{"num-layers": 4, "pipe-parallel-size": 1,}', "neox"),
        ("a.yaml", "model: gpt3-13b\ncluster: cpu\nplan: {}", "run"),
        ("a.yaml", "modle: x", "run"),
        ("a.yaml", "max_duration: 3ba\nmodel: {name: mpt_causal_lm}", "llm-foundry"),
        ("a.yaml", "base_model: x\ndeepspeed: {zero_optimization: {stage: 3}}", "trainer"),
        ("a.yaml", "model_name_or_path: x\nstage: sft", "trainer"),
        ("a.yaml", "trainer: {devices: 8}\nmodel: {tensor_model_parallel_size: 2}", "nemo"),
        ("a.yaml", "model: {num_layers: 2}\ntrain: {micro_batch_size: 2}", "nemo"),
        ("noname", '{"train_batch_size": 1}', "deepspeed"),
    ],
)
def test_formats(tmp_path: Path, name: str, text: str, kind: str) -> None:
    """Each accepted format is told apart."""
    (tmp_path / name).write_text(text)
    assert detect(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.sh", " \n", "is empty"),
        ("a.toml", "x = ", "is not TOML"),
        ("a.toml", "x = 1", "none of torchtitan's tables"),
        ("a.json", '{"x": 1}', "neither a DeepSpeed configuration nor a Hugging Face config.json"),
        ("a.yaml", "- 1", "holds a list"),
        ("a.yaml", "max_duration: 3ba\nglobal_train_batch_size: 4", "the configuration has no model of its own"),
        ("notes.txt", "hello", "not a format Windtunnel reads"),
    ],
)
def test_refused_files_name_the_accepted_formats(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """An InputError that says what would do."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        import_file(tmp_path / name)
    assert complaint in str(error.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    """No traceback for a wrong path or bytes."""
    with pytest.raises(InputError, match="does not exist"):
        import_file(tmp_path / "no.sh")
    (tmp_path / "b.sh").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text"):
        import_file(tmp_path / "b.sh")


def test_a_run_file_passes_through(tmp_path: Path) -> None:
    """Our own files are accepted too, with cluster, nodes and model laid over."""
    (tmp_path / "run.yaml").write_text("model: gpt3-13b\ncluster: dgx-h100\nplan: {tensor_parallel: 8}\n")
    result = import_file(tmp_path / "run.yaml", cluster="dgx-a100-80gb", nodes=2)
    assert load(result.run_dict).cluster.gpus == 16
