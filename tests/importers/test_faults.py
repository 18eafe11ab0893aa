"""Kinds of files that were read wrongly without a word: for each, what the framework itself would make of it, or the
sentence that says why not. Each kind stands here with more than one input.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from importers import ImportResult, import_file
from tests.importers.imported import SHAPE, imported, said, script

DGX = "dgx-h100"


def config(folder: Path, content: dict[str, Any], *overrides: str, **request: Any) -> ImportResult:
    """A DeepSpeed JSON, on one H100 node for gpt2-355m unless asked for otherwise."""
    path = folder / "ds.json"
    path.write_text(json.dumps(content))
    return import_file(path, refuse=False, overrides=overrides, **({"cluster": DGX, "model": "gpt2-355m"} | request))


BATCH = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("content", "overrides", "nodes", "batch"),
    [
        ({"gradient_accumulation_steps": 2}, ["cluster.gpus=4"], None, (2, 16)),
        ({"gradient_accumulation_steps": 2}, ["cluster.gpus=6"], None, (2, 24)),
        ({"gradient_accumulation_steps": 1}, ["cluster.gpus=2"], 1, (2, 4)),
        ({"gradient_accumulation_steps": 1}, ["cluster.gpus_per_node=4"], 2, (2, 16)),
        ({"gradient_accumulation_steps": 3}, ["cluster.nodes=2"], 1, (2, 96)),
        ({"gradient_accumulation_steps": 3}, ["plan.micro_batch_size=4"], 1, (4, 96)),
        ({"gradient_accumulation_steps": 2, "train_batch_size": 4}, ["cluster.gpus=1"], None, (2, 4)),
        ({"gradient_accumulation_steps": 2, "train_batch_size": 32}, ["plan.micro_batch_size=1"], 1, (1, 32)),
        ({"gradient_accumulation_steps": 2, "train_batch_size": 32}, ["plan.global_batch_size=64"], 1, (2, 64)),
    ],
)
def test_overrides_reach_the_batch_of_a_deepspeed_json(
    tmp_path: Path, content: dict[str, Any], overrides: list[str], nodes: int | None, batch: tuple[int, int]
) -> None:
    """World size and accumulation are what the override leaves of the file."""
    result = config(tmp_path, BATCH | content, *overrides, nodes=nodes)
    plan = result.run_dict["plan"]
    assert not result.problems
    assert (plan["micro_batch_size"], plan["global_batch_size"]) == batch


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.hidden=128", "feed-forward width: 512 (4h)"),
        ("plan.tensor_parallel=2", "data_parallel 4 = 8 GPUs / (TP2 × PP1)"),
        ("plan.pipeline_parallel=4", "data_parallel 2 = 8 GPUs / (TP1 × PP4)"),
        ("plan.micro_batch_size=2", "2 micro-batches a step = global batch 32"),
        ("plan.global_batch_size=64", "8 micro-batches a step = global batch 64"),
        ("cluster.gpus=4", "data_parallel 4 = 4 GPUs"),
        ("model.seq_length=64", "the position table has seq_length = 64 rows"),
    ],
)
def test_overrides_reach_what_follows_from_a_flag(tmp_path: Path, override: str, sentence: str) -> None:
    """Notes are of the run that is forecast."""
    result = imported(tmp_path, script("--bf16 --global-batch-size 32"), overrides=[override])
    assert said(result, sentence), result.notes


def test_overrides_reach_the_other_formats(tmp_path: Path) -> None:
    """torchtitan's local batch on half a node, GPT-NeoX's degrees."""
    titan = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
    result = imported(tmp_path, titan, "t.toml", cluster=DGX, overrides=["cluster.gpus=4"])
    assert result.run_dict["plan"]["global_batch_size"] == 8
    neox = {"num-layers": 4, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 32, "vocab-size": 1000}
    neox |= {"max-position-embeddings": 32, "pipe-parallel-size": 1, "train_micro_batch_size_per_gpu": 2}
    result = imported(tmp_path, json.dumps(neox), "n.yml", overrides=["plan.tensor_parallel=2"], nodes=1)
    assert said(result, "data_parallel 4 = 8 GPUs / (TP2 × PP1)")
    assert result.run_dict["plan"]["global_batch_size"] == 8


@pytest.mark.parametrize(
    ("flags", "before", "attention"),
    [
        ("--transformer-impl transformer_engine", "", "flash"),
        ("--use-mcore-models", "", "flash"),
        ("--use-mcore-models --transformer-impl transformer_engine --attention-backend auto", "", "flash"),
        ("--use-mcore-models", "export NVTE_FLASH_ATTN=1", "flash"),
        ("--use-mcore-models", "export NVTE_FLASH_ATTN=0", "cudnn"),
        ("--use-mcore-models", "export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", "unfused"),
        ("--use-mcore-models --attention-backend unfused", "", "unfused"),
        ("--transformer-impl local", "", "unfused"),
        ("--transformer-impl local --use-flash-attn", "", "flash"),
        ("--use-legacy-models", "", "unfused"),
    ],
)
def test_the_attention_that_megatron_runs(tmp_path: Path, flags: str, before: str, attention: str) -> None:
    """Transformer Engine's layers fuse it by themselves."""
    result = imported(tmp_path, script(f"--bf16 {flags}", before=before))
    assert result.run_dict["plan"]["attention"] == attention
    explicit = "--use-flash-attn" in flags or "--attention-backend u" in flags
    assert explicit or said(result, f"attention: {attention}") or said(result, f"attention {attention}")


@pytest.mark.parametrize(
    ("content", "precision"),
    [
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, "bf16"),
        ({"bf16": {"enabled": "auto"}}, "bf16"),
        ({}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, "fp16"),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": False}}, "fp32"),
    ],
)
def test_a_precision_left_to_the_trainer(tmp_path: Path, content: dict[str, Any], precision: str) -> None:
    """Trainers fill in bf16 on A100 and later, and it is said."""
    result = config(tmp_path, content | {"train_batch_size": 8}, nodes=1)
    assert result.run_dict["plan"]["precision"] == precision
    left = not any(isinstance(section.get("enabled"), bool) for section in content.values())
    assert said(result, "precision: bf16, as trainers fill it in") == left


def test_a_precision_left_to_the_trainer_is_the_model_s(tmp_path: Path) -> None:
    """`torch_dtype` of the model's configuration comes first."""
    shape = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64, "torch_dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    auto = {"bf16": {"enabled": "auto"}, "train_batch_size": 8}
    result = config(tmp_path, auto, model=str(tmp_path / "config.json"), nodes=1)
    assert result.run_dict["plan"]["precision"] == "fp16"


@pytest.mark.parametrize(
    ("kind", "file"), [("Llama2Tokenizer", "/d/nordic-96k.model"), ("SentencePieceTokenizer", "x")]
)
def test_a_tokenizer_s_class_gives_no_vocabulary(tmp_path: Path, kind: str, file: str) -> None:
    """It reads any SentencePiece file; what is at stake is said."""
    result = imported(tmp_path, script(f"--bf16 --tokenizer-type {kind} --tokenizer-model {file}"))
    assert said(
        result, f"the vocabulary of {kind} with {file}", "94% of the parameters", "--vocab-size changes parameters"
    )


def test_the_llama_2_file_by_its_name_gives_its_vocabulary(tmp_path: Path) -> None:
    """32000, and no warning."""
    result = imported(tmp_path, script("--bf16 --tokenizer-type Llama2Tokenizer --tokenizer-model /d/llama-2/t.model"))
    assert result.run_dict["model"]["vocab"] == 32000
    assert not any("vocabulary" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    "placeholder",
    ["<WHERE LOGS GO>", "<PATH>", "<PATH>/logs", "x/<RUN-NAME>", '"<PATH>"', "$(echo <PATH>)", "<path to x>"],
)
def test_a_placeholder_is_a_word(tmp_path: Path, placeholder: str) -> None:
    """And no redirection that eats the flag behind it."""
    result = imported(tmp_path, script(f"--tensorboard-dir {placeholder} --bf16 --tensor-model-parallel-size 8"))
    plan = result.run_dict["plan"]
    assert not result.problems
    assert (plan["precision"], plan["tensor_parallel"]) == ("bf16", 8)


def test_a_placeholder_that_matters_is_said(tmp_path: Path) -> None:
    """Where a number must stand; a redirection to a file stays one."""
    result = imported(tmp_path, script("--bf16 --seed 1 --tensor-model-parallel-size <TP>"))
    assert said(result, "--tensor-model-parallel-size is <TP>", "stands for a value that is to be filled in")
    result = imported(tmp_path, script("--bf16 <in.txt >out.txt --seed 2"))
    assert result.run_dict["train"]["seed"] == 2


@pytest.mark.parametrize(("nodes", "per_node", "nics"), [(6, 4, 4), (2, 2, 2), (1, 1, 1)])
def test_a_node_with_fewer_gpus_is_cut_with_its_nics(tmp_path: Path, nodes: int, per_node: int, nics: int) -> None:
    """And both numbers are said."""
    launcher = f"torchrun --nnodes {nodes} --nproc_per_node {per_node}"
    result = imported(tmp_path, script("--bf16", launcher), cluster=DGX, nodes=nodes)
    cluster = result.run_dict["cluster"]
    assert (cluster["gpus_per_node"], cluster["nics"]["count"]) == (per_node, nics)
    assert said(result, f"a node of {DGX} has 8 GPUs, the file starts {per_node} on each")


@pytest.mark.parametrize("method", ["uniform", "block"])
def test_the_oldest_recompute_flag_alone_recomputes(tmp_path: Path, method: str) -> None:
    """Whole layers."""
    plan = imported(tmp_path, script(f"--bf16 --activations-checkpoint-method {method}")).run_dict["plan"]
    assert plan["recompute"] == ("full" if method == "uniform" else {"layers": 1})


@pytest.mark.parametrize(
    "flag", ["--attention-head-type multiquery", "--kv-cache-bits 4", "--my-fp6-format x", "--n-shards 4"]
)
def test_an_unknown_flag_that_may_matter_is_refused(tmp_path: Path, flag: str) -> None:
    """Unless it is accepted; a harmless one is a warning."""
    refused = imported(tmp_path, script(f"--bf16 {flag}"))
    assert any(f"unknown flag {flag}" in problem and "--accept-unknown" in problem for problem in refused.problems)
    taken = imported(tmp_path, script(f"--bf16 {flag}"), accept_unknown=True)
    assert not taken.problems
    assert any(f"unknown flag {flag.split()[0]}" in warning for warning in taken.warnings)
    assert not imported(tmp_path, script("--bf16 --log-banana 3 --colour blue")).problems


@pytest.mark.parametrize(("layout", "chunks"), [("Et*4|t*6|t*6|t*4L", 2), ("Et|(t|)*4tL", 3), ("Ett|ttL", None)])
def test_a_layout_implies_virtual_stages(tmp_path: Path, layout: str, chunks: int | None) -> None:
    """Its stages over the pipeline's, as Megatron counts them."""
    flags = f"--bf16 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}'"
    assert imported(tmp_path, script(flags)).run_dict["plan"].get("virtual_pipeline") == chunks


@pytest.mark.parametrize(
    "section",
    [
        {"sub_group_size": 0},
        {"max_live_parameters": 1e9},
        {"prefetch_bucket_size": 1e7},
        {"param_persistence_threshold": 5},
    ],
)
def test_a_valid_zero_3_section_is_read(tmp_path: Path, section: dict[str, float]) -> None:
    """Names without their prefix are names too."""
    content = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, **section}, "train_batch_size": 8}
    result = config(tmp_path, content, nodes=1)
    assert not result.problems
    assert not said(result, "unknown")


def test_a_default_never_contradicts_the_model(tmp_path: Path) -> None:
    """Flash attention is ours to choose: a model's attention dropout is left out with a sentence, not refused."""
    shape = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"attn_pdrop": 0.1}))
    path = str(tmp_path / "config.json")
    result = config(tmp_path, BATCH, model=path, nodes=1)
    assert result.run_dict["model"]["attention_dropout"] == 0
    assert said(result, "attention dropout 0.1 happens inside the flash kernel")
    kept = config(tmp_path, BATCH, "plan.attention=unfused", model=path, nodes=1)
    assert kept.run_dict["model"]["attention_dropout"] == 0.1


@pytest.mark.parametrize(
    "launch",
    [
        "gridrun -p 8 -c 'python main.py {}'",
        'run.x --image a -- "python train.py {}"',
        "a b -c 'cd x && python y.py {}'",
    ],
)
def test_a_launcher_with_a_command_in_quotes_is_looked_into(tmp_path: Path, launch: str) -> None:
    """Whatever its name is."""
    result = imported(tmp_path, launch.format(f"{SHAPE} --bf16"), nodes=1)
    assert not result.problems
    assert result.run_dict["model"]["layers"] == 4


@pytest.mark.parametrize(
    ("header", "variable", "value"),
    [
        ("--nodes=3\n#SBATCH --gpus-per-node=4", "SLURM_GPUS_PER_NODE", 4),
        ("--nodes=2\n#SBATCH --gres=gpu:h100:2", "SLURM_GPUS_PER_NODE", 2),
        ("-N 1\n#SBATCH -G 2", "SLURM_GPUS", 2),
        ("--nodes=1\n#SBATCH --gpus-per-node=h100:2", "SLURM_GPUS", 2),
        ("--nodes=1\n#SBATCH --ntasks-per-node=4", "SLURM_NTASKS", 4),
        ("--nodes=1\n#SBATCH -n 4", "SLURM_NPROCS", 4),
    ],
)
def test_slurm_s_variables_come_from_the_header(tmp_path: Path, header: str, variable: str, value: int) -> None:
    """Each way it counts them."""
    text = f"#!/bin/bash\n#SBATCH {header}\nsrun python pretrain_gpt.py {SHAPE} --bf16 --seed ${variable}\n"
    assert imported(tmp_path, text).run_dict["train"]["seed"] == value


@pytest.mark.parametrize("line", ['fp8_linear = ""', "pipeline_parallel_degree = 1", 'enable_float8_linear = ""'])
def test_old_neutral_values_are_read(tmp_path: Path, line: str) -> None:
    """As torchtitan of 2024 wrote them."""
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n{line}\n'
    result = imported(tmp_path, text, "t.toml", nodes=1)
    assert not result.problems
    assert not said(result, "unknown")
    assert result.run_dict["plan"]["precision"] == "bf16"


@pytest.mark.parametrize("name", ["x.sh", "ds.json"])
def test_a_translation_needs_no_cluster(tmp_path: Path, name: str) -> None:
    """A file that names none gives a run without one."""
    text = script("--bf16 --global-batch-size 8") if name == "x.sh" else json.dumps(BATCH | {"train_batch_size": 8})
    result = imported(
        tmp_path, text, name, cluster=None, needs_cluster=False, model=None if name == "x.sh" else "gpt2-355m"
    )
    assert not result.problems
    assert "cluster" not in result.run_dict
