"""torchtitan: three generations of keys, batch derivation, the launch script with overrides, forks."""

from pathlib import Path

import pytest

from importers import import_file
from plan.run import load
from program.errors import InputError
from tests.importers.imported import imported, said

OLD = """
[model]
name = "llama3"
flavor = "70B"
norm_type = "rmsnorm"
[training]
batch_size = 8
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = false
"""
MIDDLE = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
global_batch_size = -1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
NEW = """
[model]
name = "llama3"
flavor = "70B"
[training]
num_tokens_per_microbatch_per_dp_rank = 65536
num_tokens_per_train_step = 524288
max_context_length = 8192
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""


def test_three_generations_give_the_same_run(tmp_path: Path) -> None:
    """batch_size, local_batch_size and token counts mean the same plan."""
    runs = [
        imported(tmp_path, text, "x.toml", cluster="dgx-a100-80gb", nodes=8).run_dict for text in (OLD, MIDDLE, NEW)
    ]
    assert runs[0] == runs[1] == runs[2]
    plan = runs[0]["plan"]
    assert (plan["micro_batch_size"], plan["global_batch_size"], plan["tensor_parallel"]) == (8, 64, 8)
    assert runs[0]["model"] == {"preset": "llama-3-70b", "seq_length": 8192}


def test_global_batch_must_be_whole(tmp_path: Path) -> None:
    """Accumulation = global / (local × dp)."""
    result = imported(tmp_path, MIDDLE.replace("-1\nseq", "100\nseq"), "x.toml", cluster="dgx-a100-80gb", nodes=8)
    assert said(result, "global batch 100 is not a multiple of local batch 8 × 8 data-parallel ranks = 64")


def test_forks_are_warned_about(tmp_path: Path) -> None:
    """An unknown table is a warning and the import goes on; a misspelt key names the nearest."""
    text = MIDDLE + '[dataset]\ndataset_weights = "1"\n[optimizer]\nlearning_rte = 1.0\n'
    result = imported(tmp_path, text, "x.toml", cluster="dgx-a100-80gb", nodes=8)
    assert said(result, "unknown torchtitan keys dataset.dataset_weights")
    assert said(result, "unknown", "optimizer.learning_rte")
    assert not result.problems


def test_a_launch_script_with_overrides(tmp_path: Path) -> None:
    """Both flag forms override the file; a line that lost its backslash is not passed."""
    (tmp_path / "x.toml").write_text(MIDDLE)
    text = (
        "torchrun --nnodes=8 --nproc_per_node 8 -m torchtitan.train --job.config-file x.toml"
        ' --training.local_batch_size=2 \\\n  --training.compile --model.converters="quantize.linear.float8"\n '
        " --training.steps=100\n"
    )
    result = imported(tmp_path, text, "run.sh", cluster="dgx-h200")
    assert result.format == "torchtitan"
    assert result.run_dict["plan"]["global_batch_size"] == 16
    assert result.run_dict["plan"]["precision"] == "fp8"
    assert result.run_dict["train"]["steps"] == 10000
    assert said(result, "does not pass --training.steps=100")


def test_unknown_flavor_asks_for_a_model(tmp_path: Path) -> None:
    """A debug flavor has no preset."""
    assert said(imported(tmp_path, MIDDLE.replace("70B", "8B_flex"), "x.toml"), "flavor '8B_flex'", "--model PRESET")


def test_pipelines_cut_the_local_batch(tmp_path: Path) -> None:
    """With a pipeline the micro-batch is pipeline_parallel_microbatch_size."""
    text = MIDDLE.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 8\npipeline_parallel_degree = 2")
    plan = imported(tmp_path, text, "x.toml", cluster="dgx-a100-80gb", nodes=8).run_dict["plan"]
    assert (plan["micro_batch_size"], plan["global_batch_size"]) == (1, 32)


def test_sharding_inside_stages_is_not_yet_forecast(tmp_path: Path) -> None:
    """torchtitan allows it: no rule is broken. One data-parallel rank, or what is asked for, is forecast."""
    text = MIDDLE.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 2\npipeline_parallel_degree = 2")
    request = {"cluster": "dgx-h100", "nodes": 1}
    refused = imported(tmp_path, text, "x.toml", **request)
    assert [each for each in refused.problems if "FSDP inside 2 pipeline stages" in each] == list(refused.problems)
    asked = imported(tmp_path, text, "x.toml", overrides=["plan.zero_stage=1"], **request)
    assert load(asked.run_dict).plan.pipeline_parallel == 2
    alone = text.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = 4")
    assert load(imported(tmp_path, alone, "x.toml", **request).run_dict).plan.data_parallel == 1


def test_every_wrong_number_is_said_at_once_under_the_key_that_was_written(tmp_path: Path) -> None:
    """Zero is not an absent key; an unknown table is repeated; nothing follows from a wrong number."""
    text = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 0
global_batch_size = 3
seq_len = true
[parallelism]
tensor_parallel_degree = "x"
context_parallel_degree = 0
data_parallel_shard_degree = -2
[optimizer]
eps = -1e-8
[foo]
bar = 1
"""
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        import_file(tmp_path / "a.toml", cluster="dgx-h100", nodes=1)
    assert caught.value.problems == (
        "training.batch_size is 0; it must be at least 1",
        "training.seq_len is true, but must be a number",
        "parallelism.tensor_parallel_degree is 'x', but must be a number",
        "parallelism.context_parallel_degree is 0; it must be at least 1",
        "parallelism.data_parallel_shard_degree is -2; it must be at least 1",
        "optimizer.eps is -1e-08; it must be above 0",
        "unknown torchtitan key foo.bar: it is not applied",
    )


@pytest.mark.parametrize("text", ["a{}=1", "[a{}]", "x = {{a{} = 1}}", "[[ a{} ]]"])
def test_keys_of_many_dots_are_refused_before_they_are_parsed(tmp_path: Path, text: str) -> None:
    """100 KB of one key took a minute of processor time."""
    (tmp_path / "a.toml").write_text(MIDDLE + text.format(" .a" * 20_000))
    with pytest.raises(InputError, match="nests tables too deeply to be read: 20000 dots, at most 100"):
        import_file(tmp_path / "a.toml", cluster="dgx-h100", nodes=1)
