"""Real cases of people's configurations, as importer tests: the right value, or the right message.

Every case of kind config-parse and arithmetic-error that names a framework's file is read from `tests/cases/data/` and
imported as it stands; what its `expect` says about parsing, batch, world size and parameter counts is asserted here.
What it says about time and memory belongs to the forecast's tests.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plan.errors import InputError
from plan.importers import ImportResult, import_file
from plan.importers.deepspeed_batch import Batch, solve
from plan.importers.ledger import Ledger
from plan.presets import preset
from plan.run import Run, load

DATA = Path(__file__).parent / "data"
DGX = "dgx-a100-80gb"


def case(number: str) -> dict[str, Any]:
    """The `input` of a case by its number."""
    (path,) = DATA.glob(f"{number}-*.yaml")
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["input"])


def read(folder: Path, text: str, name: str, **request: Any) -> ImportResult:
    """Import a case's text; problems are returned."""
    (folder / name).write_text(text, encoding="utf-8")
    return import_file(folder / name, refuse=False, **request)


def said(result: ImportResult, *words: str) -> bool:
    """Whether one sentence of the import holds all the words."""
    return any(all(word in each for word in words) for each in (*result.notes, *result.warnings, *result.problems))


def refused(run: dict[str, Any], *words: str) -> None:
    """The loader refuses a run with one sentence that holds all the words."""
    with pytest.raises(InputError) as error:
        load(run)
    assert any(all(word in problem for word in words) for problem in error.value.problems), str(error.value)


def loaded(run: dict[str, Any]) -> Run:
    """A run whose plan is forecast already, or its shape with the plan's open features switched off."""
    return load({**run, "plan": {"implementation": "megatron"}})


def test_003_two_statements_about_data_parallelism(tmp_path: Path) -> None:
    """64 GPUs with model parallel 2 are dp 32; the old flags are translated."""
    flags = " ".join(f"{flag} {value}" for flag, value in zip(case("003")["flags_old_style"], (2, 8), strict=True))
    shape = "--num-layers 54 --hidden-size 1920 --num-attention-heads 20 --seq-length 1024"
    result = read(tmp_path, f"mpirun -np 64 python pretrain_gpt2.py {shape} {flags} --fp16", "run.sh", cluster=DGX)
    assert said(result, "data_parallel 32 = 64 GPUs / (TP2 × PP1)")
    assert said(result, "--model-parallel-size is an old form of --tensor-model-parallel-size")
    assert said(result, "--batch-size is an old form of --micro-batch-size")
    refused(
        result.run_dict | {"plan": result.run_dict["plan"] | {"data_parallel": 8}}, "TP2 × PP1 × DP8 = 16", "64 GPUs"
    )


def test_005_the_shape_is_not_six_billion(tmp_path: Path) -> None:
    """4.69B parameters, micro batch 1 = 32 / (1 × 32), recompute off."""
    facts = case("005")
    (tmp_path / "ds.json").write_text(json.dumps(facts["deepspeed"]))
    flags = (
        "--model-parallel-size 1 --batch-size 1 --num-layers 40 --hidden-size 3072 --num-attention-heads 24"
        " --seq-length 1024"
    )
    text = (
        f"deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt2.py {flags} --max-position-embeddings 2048 --fp16"
        " --no-pipeline-parallel"
    )
    result = read(tmp_path, f"{text} --deepspeed --deepspeed_config ds.json", "run.sh", cluster=DGX)
    assert not result.problems
    assert loaded(result.run_dict).model.parameters() == pytest.approx(4.69e9, rel=0.002)
    plan = result.run_dict["plan"]
    assert (plan["micro_batch_size"], plan["global_batch_size"], plan["zero_stage"], plan["recompute"]) == (
        1,
        32,
        2,
        "none",
    )
    assert plan["communication"] == {"overlap": True, "bucket_mb": 200.0}


def test_051_a_line_without_its_backslash(tmp_path: Path) -> None:
    """Both flag forms are read; what the missing backslash drops is named."""
    (tmp_path / "llama3_8b.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n')
    text = f"torchrun --nnodes 4 --nproc_per_node 8 train.py {case('051')['cli_old_style']}\n  --training.steps 100\n"
    result = read(tmp_path, text, "run.sh", cluster="dgx-h200")
    assert said(result, "a backslash is missing", "--training.steps")
    assert result.run_dict["plan"]["global_batch_size"] == 64
    assert result.run_dict["plan"]["precision"] == "fp8"


def test_060_batch_64_is_not_4_times_8_times_1(tmp_path: Path) -> None:
    """The equation with its numbers and the three repairs."""
    facts = case("060")
    cluster = {"preset": DGX, "gpus": facts["world_size"]}
    result = read(tmp_path, json.dumps(facts["deepspeed"]), "ds.json", cluster=cluster, model="gpt3-13b")
    (problem,) = result.problems
    assert "64 != 4 × 8 × 1" in problem
    for repair in ("2 data-parallel ranks", "gradient_accumulation_steps 16", "train_batch_size 32"):
        assert repair in problem


@pytest.mark.parametrize("number", [0, 1])
def test_062_a_launcher_that_hides_the_world(number: int) -> None:
    """Not only the equation: the launcher and its environment variables."""
    facts = case("062")["cases"][number]
    ledger = Ledger()
    solve(
        Batch(facts["train_batch_size"], facts["micro"], facts["accum"]), 1, "world size 1 of the environment", ledger
    )
    (problem,) = ledger.problems
    assert f"{facts['train_batch_size']} != {facts['micro']} × {facts['accum']} × 1" in problem
    assert f"If {facts['expected_world']} ranks were started" in problem
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"):
        assert name in problem


def test_064_a_virtual_pipeline_that_would_drop_layers(tmp_path: Path) -> None:
    """80 / 16 = 5 is not divisible by 2: the model that would train has 64 layers."""
    facts = case("064")
    flags = (
        f"--num-layers {facts['num_layers']} --pipeline-model-parallel-size {facts['pp']}"
        f" --num-layers-per-virtual-pipeline-stage {facts['num_layers_per_virtual_pipeline_stage']} --hidden-size 8192"
        " --num-attention-heads 64 --seq-length 2048"
    )
    result = read(
        tmp_path, f"torchrun pretrain_gpt.py {flags} --micro-batch-size 1 --bf16", "run.sh", cluster=DGX, nodes=16
    )
    (problem,) = result.problems
    assert "80 layers / 16 pipeline stages = 5 layers a rank, which is not divisible by 2" in problem
    assert "would train 64 layers instead of 80" in problem
    assert "Legal: 1, 5" in problem


@pytest.mark.parametrize(("number", "legal"), [(0, "1, 2, 4, 13, 26, 52"), (1, "1, 2, 4")])
def test_066_heads_over_tensor_parallelism(tmp_path: Path, number: int, legal: str) -> None:
    """Legal degrees are listed; kv heads count too."""
    facts = case("066")["cases"][number]
    groups = f"--group-query-attention --num-query-groups {facts['kv_heads']}" if "kv_heads" in facts else ""
    flags = (
        f"--num-layers 4 --hidden-size {128 * facts['heads']} --num-attention-heads {facts['heads']} {groups}"
        f" --seq-length 2048 --ffn-hidden-size {512 * facts['heads']} --tensor-model-parallel-size {facts['tp']}"
        " --micro-batch-size 1 --bf16"
    )
    result = read(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}", "run.sh", cluster=DGX)
    refused(result.run_dict, "tensor_parallel 8 does not divide", f"heads {facts['heads']}", f"legal: {legal} ")


def test_068_the_dense_peak_is_the_peak() -> None:
    """989 dense, not 1979 sparse: 450 TFLOP/s are 45-46 % of it."""
    assert 450 / preset("gpus", "h100")["peak_tflops"]["bf16"] == pytest.approx(0.455, abs=0.005)
    assert case("068")["cases"][1]["tflops"] / preset("gpus", "h200")["peak_tflops"]["bf16"] == pytest.approx(
        0.425, abs=0.005
    )


@pytest.mark.parametrize("ranks", [1, 2, 5, 10, 8, 30])
def test_070_micro_batch_is_ten_over_ranks(tmp_path: Path, ranks: int) -> None:
    """Legal for 1, 2, 5 and 10 ranks; otherwise the arithmetic is shown. Old and misnamed keys are reported."""
    cluster = {"preset": DGX, "gpus": ranks}
    result = read(tmp_path, case("070")["config_text"], "ds.json", cluster=cluster, model="gpt3-13b")
    if 10 % ranks == 0:
        assert result.run_dict["plan"]["micro_batch_size"] == 10 // ranks
        assert not result.problems
    else:
        assert said(result, f"train_batch_size 30 / (accumulation 3 × {ranks} data-parallel ranks)", "1, 2, 5, 10")
    assert result.run_dict["plan"]["offload"]["optimizer"] == "cpu"
    assert result.run_dict["plan"]["communication"]["overlap"] is False
    assert said(result, "comm_overlap", "did you mean overlap_comm?")
    assert said(result, "loss_scale 4096 is static, so loss_scale_window, hysteresis, min_loss_scale are unused")


def test_072_5e8_is_a_number(tmp_path: Path) -> None:
    """In YAML and in JSON; 5.5e0 is refused for a count of elements."""
    text = case("072")["config_text"]
    result = read(tmp_path, text, "ds.yaml", cluster=DGX, nodes=1, model="gpt3-13b")
    assert result.run_dict["plan"]["communication"]["bucket_mb"] == 2000.0
    assert not result.problems
    as_json = '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size": "5e8"}}'
    assert (
        read(tmp_path, as_json, "ds.json", cluster=DGX, nodes=1, model="gpt3-13b").run_dict["plan"]["communication"][
            "bucket_mb"
        ]
        == 2000.0
    )
    wrong = read(tmp_path, text.replace("5e8", "5.5e0"), "ds.yaml", cluster=DGX, nodes=1, model="gpt3-13b")
    assert said(wrong, "reduce_bucket_size is 5.5", "must be a whole number")


def test_074_a_misspelt_key_is_not_ignored(tmp_path: Path) -> None:
    """A warning that names gradient_clipping; an error only when strict."""
    text = json.dumps(case("074")["deepspeed"])
    result = read(tmp_path, text, "ds.json", cluster=DGX, nodes=1, model="gpt3-13b")
    assert any("gradient_clipp1ng" in each and "gradient_clipping?" in each for each in result.warnings)
    assert not result.problems
    with pytest.raises(InputError, match="gradient_clipp1ng"):
        import_file(tmp_path / "ds.json", cluster=DGX, nodes=1, model="gpt3-13b", strict=True)


def test_076_auto_is_reported_not_passed_on(tmp_path: Path) -> None:
    """Every field still at auto is listed, and what is assumed is said."""
    result = read(tmp_path, case("076")["config_text"], "ds.json", cluster=DGX, nodes=1, model="gpt3-13b")
    fields = ("gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert said(result, 'still "auto"', *fields)
    assert said(result, "micro batch 1 is assumed")
    assert result.run_dict["plan"]["communication"]["bucket_mb"] == 4000.0  # 1e9 elements


def test_078_zero_2_and_3_with_a_pipeline(tmp_path: Path) -> None:
    """Refused with a pipeline; without one, --no-pipeline-parallel is asked for; ZeRO-1 is allowed."""
    shape = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --bf16"

    def script(degrees: str, stage: int) -> ImportResult:
        config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
        (tmp_path / "ds.json").write_text(json.dumps(config))
        text = f"deepspeed --num_gpus 8 pretrain_gpt.py {shape} {degrees} --deepspeed --deepspeed_config ds.json"
        return read(tmp_path, text, "run.sh", cluster=DGX)

    first, second = case("078")["cases"]
    refused(
        script(f"--pipeline-model-parallel-size {first['pp']}", first["zero"]).run_dict,
        "incompatible with pipeline",
        "zero_stage 1",
    )
    assert said(
        script(f"--tensor-model-parallel-size {second['tp']}", second["zero"]),
        "ZeRO stage 3 needs --no-pipeline-parallel",
    )
    assert load(script(f"--pipeline-model-parallel-size {first['pp']}", 1).run_dict).plan.zero_stage == 1


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


def test_109_one_trillion_on_one_node(tmp_path: Path) -> None:
    """1.008T parameters, optimizer on the host, parameters on the GPU."""
    facts = case("109")
    flags = (
        f"--num-layers {facts['layers']} --hidden-size {facts['hidden']} --num-attention-heads {facts['heads']}"
        f" --seq-length {facts['seq']} --micro-batch-size {facts['micro']} --fp16 {facts['flag']} --deepspeed"
        f" --no-pipeline-parallel --zero-stage={facts['zero_stage']}"
    )
    text = (
        f"deepspeed --num_nodes={facts['nodes']} --num_gpus={facts['gpus_per_node']} pretrain_gpt.py {flags}"
        " --deepspeed_config=ds.json"
    )
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    )
    result = read(tmp_path, text, "run-1t.sh", cluster=DGX)
    assert not result.problems
    assert loaded(result.run_dict).model.parameters() == pytest.approx(1.008e12, rel=0.001)
    assert result.run_dict["plan"]["offload"] == {"optimizer": "cpu"}


def test_113_bloom_slurm_script(tmp_path: Path) -> None:
    """Underscores, a quoted pattern, a heredoc, `pwd`, 24 nodes of the header; 72 units on 12 stages."""
    result = read(tmp_path, case("113")["config_text"], "bloom.slurm", cluster=DGX)
    assert not result.problems
    run = load(result.run_dict)
    assert (run.cluster.gpus, run.plan.data_parallel, run.plan.microbatches) == (192, 4, 256)
    assert run.plan.pipeline_layout == (6,) * 12
    assert run.model.parameters() == 176_247_271_424
    assert run.budget.tokens == pytest.approx(450e9, rel=0.002)
    assert run.plan.zero_stage == 1
    assert said(result, "ZeRO stage 0 with bf16", "shards its states")
    without = case("113")["config_text"].replace("--pp-partition-method 'type:transformer|embedding' \\\n", "")
    refused(read(tmp_path, without, "plain.slurm", cluster=DGX).run_dict, "70 layers", "72 / 12")


def test_115_the_175b_sample_uses_one_node(tmp_path: Path) -> None:
    """Prepended arguments, --flag=value, $(( )) and a loss scale that was meant as a power of two."""
    result = read(tmp_path, case("115")["config_text"], "run-175b.sh", cluster=DGX)
    assert not result.problems
    plan = result.run_dict["plan"]
    assert (plan["zero_stage"], plan["micro_batch_size"], plan["global_batch_size"]) == (3, 4, 32)
    assert result.run_dict["cluster"] == {"preset": DGX, "nodes": 1}
    assert loaded(result.run_dict).model.parameters() == pytest.approx(174.6e9, rel=0.001)
    assert said(result, "--loss-scale 15", "2^15 = 32768")


def test_117_neox_yaml_in_braces(tmp_path: Path) -> None:
    """Flow mapping with True, trailing commas, comments and both spellings; 96 GPUs give dp 12 and a global batch of
    1536.
    """
    result = read(tmp_path, case("117")["config_text"], "20B.yml", cluster="dgx-a100-40gb", nodes=12)
    plan = result.run_dict["plan"]
    assert (plan["pipeline_parallel"], plan["tensor_parallel"], plan["global_batch_size"]) == (4, 2, 1536)
    assert loaded(result.run_dict).model.parameters() == pytest.approx(20.57e9, rel=0.002)
    assert result.run_dict["checkpoint"] == {"every": 500}
    assert result.run_dict["optimizer"]["lr"] == 0.97e-4
    assert said(result, "checkpoint_factor is the old name of save_interval")
    assert said(result, "not yet forecast", "gpt_j_residual")


def test_119_llm_foundry_is_refused_by_name(tmp_path: Path) -> None:
    """A format that is not read says so and lists those that are."""
    with pytest.raises(InputError, match="looks like an llm-foundry YAML, which is not read yet; give a run file"):
        read(tmp_path, case("119")["config_text"], "mpt-70b.yaml")


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
    assert said(result, "unknown torchtitan table [dataset]")
    assert not result.problems


def test_123_stray_backslashes_and_a_misleading_name(tmp_path: Path) -> None:
    """Commented flags are not flags; two layers and two experts on two GPUs, in fp32, whatever the file is called."""
    result = read(tmp_path, case("123")["config_text"], "train_mixtral_8x7b_distributed.sh", cluster=DGX)
    model, plan = result.run_dict["model"], result.run_dict["plan"]
    assert (model["layers"], model["hidden"], model["ffn"], model["seq_length"]) == (2, 256, 896, 256)
    assert (plan["precision"], plan["expert_parallel"], plan["global_batch_size"]) == ("fp32", 2, 4)
    assert "sequence_parallel" not in plan
    assert said(result, "--sequence-parallel has no effect at --tensor-model-parallel-size 1")
    assert said(result, "data_parallel 2 = 2 GPUs")
    assert said(result, "mixture of experts (--num-experts 2)")
    assert not said(result, "--moe-grouped-gemm")
    assert not said(result, "--log-interval")


def test_126_104b_on_512_gpus(tmp_path: Path) -> None:
    """dp 4, 512 micro-batches, 104B parameters, a ramp that fits, and a loss scale that was meant as a power of two."""
    facts = case("126")
    flags = (
        f"--num-layers {facts['layers']} --hidden-size {facts['hidden']} --num-attention-heads {facts['heads']}"
        f" --seq-length {facts['seq']} --tensor-model-parallel-size {facts['tp']} --pipeline-model-parallel-size"
        f" {facts['pp']} --micro-batch-size {facts['micro']} --global-batch-size {facts['global_batch']}"
        f" --rampup-batch-size {facts['rampup']} {' '.join(facts['flags'])}"
    )
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": facts["zero_stage"]}, "fp16": {"enabled": True}})
    )
    text = (
        f"#SBATCH --nodes=128\n#SBATCH --gres=gpu:4\nsrun deepspeed pretrain_gpt.py {flags} --deepspeed"
        " --deepspeed_config ds.json"
    )
    result = read(tmp_path, text, "tr8.slurm", cluster=DGX)
    assert not result.problems
    run = load(result.run_dict)
    assert (run.cluster.gpus, run.plan.data_parallel, run.plan.microbatches) == (512, 4, 512)
    assert run.model.parameters() == pytest.approx(104.0e9, rel=0.01)
    assert said(result, "--loss-scale 12", "2^12 = 4096")
    assert said(result, "--rampup-batch-size 16 16")
