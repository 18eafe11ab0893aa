"""Real cases of torchtitan, Hugging Face, GPT-NeoX and llm-foundry files, as importer tests."""

import json
from pathlib import Path

import pytest

from plan.presets import preset
from plan.run import load
from tests.cases.importing import DGX, case, loaded, read, said


def test_051_a_line_without_its_backslash(tmp_path: Path) -> None:
    """Both flag forms are read; what the missing backslash drops is named."""
    (tmp_path / "llama3_8b.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n')
    text = f"torchrun --nnodes 4 --nproc_per_node 8 train.py {case('051')['cli_old_style']}\n  --training.steps 100\n"
    result = read(tmp_path, text, "run.sh", cluster="dgx-h200")
    assert said(result, "a backslash is missing", "--training.steps")
    assert result.run_dict["plan"]["global_batch_size"] == 64
    assert result.run_dict["plan"]["precision"] == "fp8"


def test_068_the_dense_peak_is_the_peak() -> None:
    """989 dense, not 1979 sparse: 450 TFLOP/s are 45-46 % of it."""
    assert 450 / preset("gpus", "h100")["peak_tflops"]["bf16"] == pytest.approx(0.455, abs=0.005)
    assert case("068")["cases"][1]["tflops"] / preset("gpus", "h200")["peak_tflops"]["bf16"] == pytest.approx(
        0.425, abs=0.005
    )


def test_080_vision_heads_do_not_count(tmp_path: Path) -> None:
    """The language part alone decides heads, and the note says so."""
    language = {
        "model_type": "qwen2",
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 80,
        "intermediate_size": 29568,
        "vocab_size": 151674,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
    }
    for part in ("llm_config", "text_config"):
        config = {"architectures": ["InternVLChatModel"], part: language, "vision_config": {"num_attention_heads": 25}}
        result = read(tmp_path, json.dumps(config), "config.json", cluster=DGX, nodes=1)
        assert result.run_dict["model"]["heads"] == 64
        assert said(result, f"the language part {part} is used, not vision_config")
        load(result.run_dict | {"plan": {"tensor_parallel": 4}})


def test_082_three_generations_of_torchtitan_keys(tmp_path: Path) -> None:
    """All parse to the same plan; a global batch that does not divide is refused."""
    old = (
        "training.batch_size = 2\ntraining.seq_len = 8192\ntraining.data_parallel_degree ="
        " -1\nexperimental.pipeline_parallel_degree = 1"
    )
    mid = (
        "training.local_batch_size = 2\ntraining.global_batch_size = -1\ntraining.seq_len ="
        " 8192\nparallelism.data_parallel_shard_degree = -1"
    )
    new = "training.num_tokens_per_dp_rank = 16384\ntraining.num_tokens_per_step = 131072\ntraining.seq_len = 8192"
    rest = '\nmodel.name = "llama3"\nmodel.flavor = "8B"\n'
    plans = [read(tmp_path, text + rest, "x.toml", cluster=DGX, nodes=1).run_dict["plan"] for text in (old, mid, new)]
    assert plans[0] == plans[1] == plans[2]
    assert (plans[0]["micro_batch_size"], plans[0]["global_batch_size"]) == (2, 16)
    wrong = read(tmp_path, mid.replace("= -1", "= 24", 1) + rest, "x.toml", cluster=DGX, nodes=1)
    assert said(wrong, "global batch 24 is not a multiple of local batch 2 × 8 data-parallel ranks = 16")


def test_117_neox_yaml_in_braces(tmp_path: Path) -> None:
    """Flow mapping with True, trailing commas, comments and both spellings; 96 GPUs give dp 12 and a global batch of
    1536.
    """
    result = read(tmp_path, case("117")["config_text"], "20B.yml", cluster="dgx-a100-40gb", nodes=12)
    plan = result.run_dict["plan"]
    assert (plan["pipeline_parallel"], plan["tensor_parallel"], plan["global_batch_size"]) == (4, 2, 1536)
    model = loaded(result.run_dict).model
    assert model.parameters() == pytest.approx(20.57e9, rel=0.002)
    assert (model.parallel_residual, model.shared_norm) == (True, False)
    assert result.run_dict["checkpoint"] == {"every": 500}
    assert result.run_dict["optimizer"]["lr"] == 0.97e-4
    assert said(result, "checkpoint_factor is the old name of save_interval")


def test_119_llm_foundry_s_70b(tmp_path: Path) -> None:
    """64.86 billion parameters; PURE reduces in bf16; without a number of GPUs one node is assumed, and said."""
    result = read(tmp_path, case("119")["config_text"], "mpt-70b.yaml", cluster="dgx-h100", nodes=16)
    run = load(result.run_dict)
    assert round(run.model.parameters() / 1e9, 2) == 64.86
    assert (run.plan.gradient_dtype, run.plan.recompute, run.plan.microbatches) == ("bf16", "full", 2048 // (4 * 128))
    assert (run.model.ffn, run.train.steps) == (32768, 333800)
    alone = read(tmp_path, case("119")["config_text"], "mpt-70b.yaml", cluster="dgx-h100")
    assert said(alone, "nodes: one of 8 GPUs", "--nodes N")


def test_121_old_torchtitan_70b(tmp_path: Path) -> None:
    """dp 8, global batch 64; a fork's table is a warning."""
    values = case("121")["keys"] | {"dataset.dataset_weights": "1"}
    rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    result = read(tmp_path, "\n".join(rows), "llama3_70b.toml", cluster=DGX, nodes=8, model="llama-3-70b")
    plan = result.run_dict["plan"]
    assert (plan["tensor_parallel"], plan["micro_batch_size"], plan["global_batch_size"], plan["recompute"]) == (
        8,
        8,
        64,
        "full",
    )
    assert said(result, "data_parallel 8 = 64 GPUs / 8")
    assert said(result, "unknown torchtitan key dataset.dataset_weights")
    assert not result.problems
