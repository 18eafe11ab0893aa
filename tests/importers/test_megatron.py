"""Megatron scripts: degrees, batch, layout, recompute, contradictions, and what makes a script unreadable."""

from pathlib import Path
from typing import Any

import pytest

from importers import import_file
from plan.run import load
from program.errors import InputError, NotYetForecast
from tests.importers.imported import SHAPE, imported, said, script

DGX = "dgx-a100-80gb"


def plan_of(folder: Path, flags: str, **request: Any) -> dict[str, Any]:
    """The plan of a script with these flags; none of them may be a problem."""
    result = imported(folder, script(flags), cluster=DGX, **request)
    assert not result.problems
    return dict(result.run_dict["plan"])


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--tensor-model-parallel-size 4 --sequence-parallel", {"tensor_parallel": 4, "sequence_parallel": True}),
        ("--pipeline-model-parallel-size 2", {"pipeline_parallel": 2, "pipeline_layout": "even"}),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", {"virtual_pipeline": 2}),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1", {"pipeline_layout": [2, 4]}),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|tL'", {"pipeline_layout": [4, 2]}),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|(t|)*2tL'",
            {"pipeline_layout": [2, 1, 1, 2]},
        ),
        (
            (
                "--pipeline-model-parallel-size 3 --account-for-embedding-in-pipeline-split"
                " --account-for-loss-in-pipeline-split"
            ),
            {"pipeline_layout": [2, 2, 2]},
        ),
        ("--use-distributed-optimizer", {"zero_stage": 1}),
        ("", {"zero_stage": 0, "precision": "fp32", "recompute": "none", "communication": {"overlap": False}}),
        ("--overlap-grad-reduce --ddp-bucket-size 40000000", {"communication": {"overlap": True, "bucket_mb": 160.0}}),
        ("--bf16 --grad-reduce-in-bf16", {"precision": "bf16", "gradient_dtype": "bf16"}),
        ("--fp8-format hybrid --bf16", {"precision": "fp8"}),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
            {"recompute": {"layers": 2}},
        ),
        ("--recompute-granularity selective", {"recompute": "selective"}),
        ("--use-flash-attn", {"attention": "flash"}),
        ("--attention-backend unfused", {"attention": "unfused"}),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            {"offload": {"optimizer": "cpu", "fraction": 0.5}},
        ),
        ("--context-parallel-size 2", {"context_parallel": 2}),
        ("--use-torch-fsdp2", {"implementation": "torch-fsdp", "zero_stage": 3}),
        ("--global-batch-size 64", {"global_batch_size": 64}),
    ],
)
def test_plan_flags(tmp_path: Path, flags: str, keys: dict[str, object]) -> None:
    """Each flag sets its key of the plan."""
    plan = plan_of(tmp_path, flags)
    assert {key: plan.get(key) for key in keys} == keys


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (
            "",
            {
                "ffn": 256,
                "positions": "learned",
                "max_positions": 32,
                "tied_embeddings": True,
                "dropout": 0.1,
                "vocab": 50257,
            },
        ),
        ("--swiglu", {"ffn": 128, "activation": "swiglu"}),  # 8 · 64 / 3 = 170.7, down to a multiple of 64
        ("--group-query-attention --num-query-groups 2", {"kv_heads": 2}),
        ("--kv-channels 32", {"head_dim": 32}),
        ("--position-embedding-type rope --rotary-base 500000", {"positions": "rotary", "rope": {"theta": 500000}}),
        ("--normalization RMSNorm --norm-epsilon 1e-6", {"norm": "rmsnorm", "norm_eps": 1e-6}),
        ("--disable-bias-linear --add-qkv-bias", {"bias": False, "qkv_bias": True}),
        ("--untie-embeddings-and-output-weights", {"tied_embeddings": False}),
        ("--pad-vocab-size-to 250880", {"vocab": 250880, "vocab_multiple": 1}),
        ("--vocab-size 1000 --make-vocab-size-divisible-by 8", {"vocab": 1000, "vocab_multiple": 8}),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", {"vocab": 128256}),
        ("--squared-relu", {"activation": "relu2"}),
        ("--glu-activation geglu", {"activation": "geglu"}),
        ("--position-embedding-type rope --rotary-percent 0.25", {"rope": {"theta": 10000, "fraction": 0.25}}),
        ("--window-size 31,0", {"window": {"size": 32, "full_every": 0}}),
        ("--window-size '(31, 0)' --window-attn-skip-freq 4", {"window": {"size": 32, "full_every": 4}}),
        ("--qk-layernorm --normalization RMSNorm", {"qk_norm": "head"}),
    ],
)
def test_model_flags(tmp_path: Path, flags: str, keys: dict[str, object]) -> None:
    """Each flag sets its key of the model; Megatron's defaults are written out."""
    model = imported(tmp_path, script(flags), cluster=DGX).run_dict["model"]
    assert {key: model[key] for key in keys} == keys


def test_two_world_sizes_are_a_problem_with_both(tmp_path: Path) -> None:
    """Statements of one script must agree."""
    result = imported(
        tmp_path, script("", "torchrun --nnodes 16 --nproc_per_node 8", "#SBATCH --nodes=24"), cluster=DGX
    )
    assert said(result, "two numbers of nodes: 24 (#SBATCH --nodes) and 16 (torchrun --nnodes)")
    result = imported(tmp_path, script("", "torchrun --nnodes 16 --nproc_per_node 8", "WORLD_SIZE=1024"), cluster=DGX)
    assert said(result, "two world sizes: 1024 (variable WORLD_SIZE) and 16 nodes × 8 GPUs = 128")


def test_command_line_nodes_win_with_a_warning(tmp_path: Path) -> None:
    """What the user asks for on top of a script is a what-if, not a contradiction."""
    result = imported(tmp_path, script("", "torchrun --nnodes 16 --nproc_per_node 8"), cluster=DGX, nodes=2)
    assert result.run_dict["cluster"] == {"preset": DGX, "nodes": 2}
    assert said(result, "the script says 16 nodes", "the command line 2")
    assert not result.problems


def test_gpus_per_node_other_than_the_preset(tmp_path: Path) -> None:
    """Four GPUs a node stay four."""
    result = imported(tmp_path, script("", "torchrun --nnodes 2 --nproc_per_node 4"), cluster=DGX)
    cluster = result.run_dict["cluster"]
    assert (cluster["nodes"], cluster["gpus_per_node"], cluster["nics"]["count"]) == (2, 4, 4)
    assert said(result, f"a node of {DGX} has 8 GPUs, the file starts 4 on each", "4 of the 8 NICs")
    assert load(result.run_dict).cluster.gpus == 8


@pytest.mark.parametrize(
    ("launcher", "before", "gpus"),
    [
        ("python -m torch.distributed.launch --nproc_per_node=8 --nnodes=4", "", 32),
        ("deepspeed --num_nodes=3 --num_gpus 8", "", 24),
        ("mpirun -np 16 python", "", 16),
        ("srun -N 2 python", "#SBATCH --gres=gpu:a100:8", 16),
        ("srun torchrun", "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8", 32),
        ("python", "GPUS_PER_NODE=8\nNNODES=2\nWORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))", 16),
    ],
)
def test_launchers_say_how_many_gpus(tmp_path: Path, launcher: str, before: str, gpus: int) -> None:
    """torchrun, deepspeed, mpirun, srun, SLURM headers and variables."""
    result = imported(tmp_path, script("", launcher, before), cluster=DGX)
    assert not result.problems
    assert load(result.run_dict).cluster.gpus == gpus


def test_an_undefined_variable_is_named(tmp_path: Path) -> None:
    """A model flag whose variable is not defined; a path's variable does not matter."""
    text = f"torchrun pretrain_gpt.py {SHAPE.replace('layers 4', 'layers $LAYERS')} --data-path $DATA --bf16 $EXTRA"
    result = imported(tmp_path, text, cluster=DGX)
    assert said(result, "--num-layers is $LAYERS", "the variable $LAYERS is not defined")
    assert said(result, "contains $EXTRA", "not defined")
    assert not any("$DATA" in problem for problem in result.problems)
    assert not imported(tmp_path, text, cluster=DGX, variables={"LAYERS": "4", "EXTRA": ""}).problems


def test_an_unknown_number_of_nodes_must_be_given(tmp_path: Path) -> None:
    """`--nnodes $NNODES` without a value is a problem, unless the command line says how many."""
    text = script("", "torchrun --nnodes $NNODES --nproc_per_node 8")
    result = imported(tmp_path, text, cluster=DGX)
    assert said(result, "torchrun --nnodes is $NNODES", "the variable $NNODES is not defined", "give --nodes N")
    assert not imported(tmp_path, text, cluster=DGX, nodes=4).problems


def test_variables_of_the_environment_may_be_missing(tmp_path: Path) -> None:
    """A seed from a script's argument takes its default, with a warning."""
    result = imported(tmp_path, script("--seed $1"), cluster=DGX)
    assert said(result, "--seed is $1", "its default is taken")
    assert not result.problems


def test_scripts_without_a_model(tmp_path: Path) -> None:
    """No model flags: say which, or which other script to give."""
    assert said(imported(tmp_path, "#!/bin/bash\necho hi\n", cluster=DGX), "no model flags (--num-layers")
    assert said(imported(tmp_path, "#!/bin/bash\nbash train.sh\n", cluster=DGX), "runs another script, train.sh")
    with pytest.raises(InputError, match="no model flags"):
        import_file(tmp_path / "launch.sh")


def test_a_script_without_model_flags_takes_the_model_given(tmp_path: Path) -> None:
    """`--model` fills what the script leaves open."""
    text = "torchrun --nproc_per_node 8 train.py --micro-batch-size 1 --tensor-model-parallel-size 2 --bf16"
    result = imported(tmp_path, text, cluster=DGX, model="gpt3-13b")
    assert result.run_dict["model"] == {"preset": "gpt3-13b"}
    assert not result.problems
    more = f"{text} --seq-length 1024 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5"
    result = imported(tmp_path, more, cluster=DGX, model="gpt3-13b")
    assert result.run_dict["model"]["seq_length"] == 1024
    assert result.run_dict["plan"]["virtual_pipeline"] == 2  # 40 layers / 4 stages / 5


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("--gres=gpu:a100:8", "dgx-a100-80gb"),
        ("--gpus-per-node=h100:8", "dgx-h100"),
        ("--constraint=a100-40gb", "dgx-a100-40gb"),
    ],
)
def test_the_slurm_header_names_the_gpu(tmp_path: Path, header: str, name: str) -> None:
    """A GPU type in the header chooses a node type, with a warning; the command line would win."""
    result = imported(tmp_path, script("", before=f"#SBATCH --nodes=2\n#SBATCH {header}"), cluster=None)
    assert result.run_dict["cluster"]["preset"] == name
    assert said(result, "is read as nodes like", name)


def test_a_sourced_file_is_refused_by_name(tmp_path: Path) -> None:
    """What it defines is unknown."""
    assert said(imported(tmp_path, script("", before="source ./env.sh"), cluster=DGX), "line 2 sources ./env.sh")


def test_two_different_launches_are_refused(tmp_path: Path) -> None:
    """Which of them would be forecast?"""
    text = script("") + script("--bf16").split("\n", 1)[1]
    assert said(imported(tmp_path, text, cluster=DGX), "2 different training commands (lines 3, 5)")


def test_a_missing_backslash_drops_flags(tmp_path: Path) -> None:
    """Bash would not pass the flags of the next line: neither do we, and say so."""
    result = imported(tmp_path, script("--bf16") + "  --global-batch-size 64\n", cluster=DGX)
    assert said(result, "a backslash is missing", "--global-batch-size")
    assert "global_batch_size" not in result.run_dict["plan"]


def test_an_argument_string(tmp_path: Path) -> None:
    """A file with nothing but flags, on one line or several."""
    result = imported(tmp_path, SHAPE.replace(" --", "\n--") + "\n--bf16\n", "flags.txt", cluster=DGX, nodes=1)
    assert result.format == "megatron"
    assert result.run_dict["plan"]["precision"] == "bf16"
    assert load(result.run_dict).model.layers == 4


def test_quoted_arrays_and_strings_reach_the_launch(tmp_path: Path) -> None:
    """`bash -c` around a command in a variable, inside srun, piped into tee."""
    text = (
        f'#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nCMD="train.py {SHAPE} --pp-partition-method'
        " 'type:transformer|embedding' --pipeline-model-parallel-size 2\"\nsrun --jobid $SLURM_JOBID bash -c"
        ' "torchrun --nnodes \\$SLURM_NNODES --nproc_per_node 8 $CMD" 2>&1 | tee log\n'
    )
    result = imported(tmp_path, text, cluster=DGX)
    assert result.run_dict["plan"]["pipeline_layout"] == [3, 3]
    assert not result.problems


def test_rampup_must_fit_the_ranks(tmp_path: Path) -> None:
    """Megatron refuses ramp steps that do not divide; so does the import, with the numbers."""
    result = imported(tmp_path, script("--rampup-batch-size 12 8 1000 --global-batch-size 64"), cluster=DGX)
    assert said(result, "--rampup-batch-size 12 is not a multiple of micro batch 1 × 8 data-parallel ranks = 8")
    assert result.problems
    resumed = imported(
        tmp_path, script("--rampup-batch-size 12 8 100 --global-batch-size 64 --load checkpoints --bf16")
    )
    assert not resumed.problems
    assert said(resumed, "--rampup-batch-size 12 is not a multiple", "refuses that until the ramp has passed")
    assert said(result, "the forecast is for the full batch 64")


def test_what_is_not_forecast_yet_is_raised_as_such(tmp_path: Path) -> None:
    """A right script that asks for experts: NotYetForecast with the nearest supported."""
    (tmp_path / "moe.sh").write_text(script("--num-experts 8 --moe-router-topk 2"))
    with pytest.raises(
        NotYetForecast, match=r"not yet forecast: mixture of experts \(--num-experts 8\); nearest supported"
    ):
        import_file(tmp_path / "moe.sh", cluster=DGX)


def test_attention_dropout_inside_a_fused_kernel(tmp_path: Path) -> None:
    """The default dropout of 0.1 does not make a flash-attention script illegal."""
    result = imported(tmp_path, script("--use-flash-attn --bf16"), cluster=DGX)
    assert result.run_dict["model"]["attention_dropout"] == 0.0
    assert said(result, "inside the flash kernel")
    load(result.run_dict)


def test_pragmas_set_what_flags_cannot_say(tmp_path: Path) -> None:
    """A comment names the cluster; the command line's cluster wins over it."""
    text = script("--bf16", before="# windtunnel: cluster.preset=dgx-a100-80gb cluster.nics.count=4 budget.tokens=1e9")
    result = imported(tmp_path, text, cluster=None)
    assert result.run_dict["cluster"] == {"preset": DGX, "nics": {"count": 4}}
    assert load(result.run_dict).budget.tokens == 1e9
    other = imported(tmp_path, text, cluster="dgx-h100")
    assert other.run_dict["cluster"]["preset"] == "dgx-h100"
    assert said(other, "the one given on the command line is used instead")


def test_training_length_and_schedule(tmp_path: Path) -> None:
    """Samples, warm-up fractions and budgets become whole steps and their tokens."""
    flags = (
        "--global-batch-size 64 --train-samples 6463 --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine"
        " --lr-warmup-fraction .1"
    )
    run = imported(tmp_path, script(flags), cluster=DGX).run_dict
    assert run["train"] == {"steps": 100}
    assert run["budget"] == {"tokens": 6400 * 32.0}
    assert run["optimizer"]["schedule"] == {"kind": "cosine", "warmup_steps": 10, "min_lr": 1e-5, "decay_steps": 100}


def test_an_unknown_cluster_preset_names_the_nearest(tmp_path: Path) -> None:
    """A misspelt preset is a problem."""
    assert said(imported(tmp_path, script(""), cluster="dgx-a100-80g"), "dgx-a100-80g", "did you mean 'dgx-a100-80gb'?")


def test_no_cluster_is_a_problem_that_says_what_to_give(tmp_path: Path) -> None:
    """The presets are listed."""
    result = imported(tmp_path, script(""), cluster=None)
    assert any("give --cluster PRESET --nodes N" in each and "dgx-h100" in each for each in result.problems)
