"""DeepSpeed JSON: relaxed syntax, the batch equation, ZeRO and offload, auto, unknown keys, JSON beside a script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers import import_file
from importers.deepspeed_batch import Batch, solve
from plan.ledger import Ledger
from plan.lenient_json import read_json
from program.errors import InputError
from tests.importers.imported import imported, said, script

DGX = {"cluster": "dgx-a100-80gb", "nodes": 1, "model": "gpt3-13b"}


def config(folder: Path, text: str | dict[str, Any], **request: Any) -> Any:
    """Import a DeepSpeed configuration on one node of eight GPUs."""
    return imported(folder, text if isinstance(text, str) else json.dumps(text), "ds.json", **(DGX | request))


def test_json_as_people_write_it() -> None:
    """Comments, trailing commas, Python words and underscores are read; strings keep their slashes."""
    text = (
        '{ "a": 1_000, // note, with }\n "b": [1, 2,], /* two\nlines */ "u": "http://x//y", # more\n "c": True, "d":'
        " None,}"
    )
    assert read_json(text, "x.json") == {"a": 1000, "b": [1, 2], "u": "http://x//y", "c": True, "d": None}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "x.json is empty"),
        ("[1]", "holds a list"),
        ('{"a": }', "x.json is not JSON: Expecting value (line 1, column 7)"),
        ('{\n"a": $SIZE}', "x.json line 2: $SIZE is a shell variable"),
        ('{"a": 1, "a": 2}', "the key 'a' stands twice, with 1 and 2"),
        ('{"a": NaN}', "NaN"),
        ('{"a": ' + "[" * 100_000, "nests lists or objects too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit (4300 digits)"),
    ],
)
def test_unreadable_json_names_the_place(text: str, complaint: str) -> None:
    """Line and column, the variable, or both values of a repeated key."""
    with pytest.raises(InputError) as error:
        read_json(text, "x.json")
    assert complaint in str(error.value)


MOST = 10**18  # the largest number that is read
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MOST, MOST)
    | st.floats(-float(MOST), float(MOST))
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)


@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6), max_size=4
    )
)
def test_strict_json_is_unchanged(value: dict[str, Any]) -> None:
    """Whatever json writes is read back equal."""
    assert read_json(json.dumps(value), "x") == value


@pytest.mark.parametrize(
    ("given_batch", "ranks", "solved"),
    [
        (Batch(64, 4, None), 8, Batch(64, 4, 2)),
        (Batch(64, None, 2), 8, Batch(64, 4, 2)),
        (Batch(None, 4, 2), 8, Batch(64, 4, 2)),
        (Batch(64, None, None), 8, Batch(64, 8, 1)),
        (Batch(None, 4, None), 8, Batch(32, 4, 1)),
        (Batch(64, 4, 2), 8, Batch(64, 4, 2)),
    ],
)
def test_two_of_three_give_the_third(given_batch: Batch, ranks: int, solved: Batch) -> None:
    """train = micro × accumulation × ranks."""
    ledger = Ledger()
    result = solve(given_batch, ranks, "the test", ledger)
    assert not ledger.problems
    assert (result.train, result.micro, result.accumulation or 1) == (solved.train, solved.micro, solved.accumulation)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64), st.integers(1, 4096))
def test_the_equation_closes_or_is_a_problem(micro: int, steps: int, ranks: int, train: int) -> None:
    """Never both, never neither."""
    ledger = Ledger()
    solve(Batch(train, micro, steps), ranks, "the test", ledger)
    assert bool(ledger.problems) == (train != micro * steps * ranks)


def test_zero_3_offload(tmp_path: Path) -> None:
    """Stage, sizes, buckets and offload devices."""
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme"},
        "reduce_bucket_size": "5e8",
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_max_live_parameters": 1e9,
        "stage3_param_persistence_threshold": 1e5,
    }
    result = config(tmp_path, {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": zero})
    plan = result.run_dict["plan"]
    assert plan["zero_stage"] == 3
    assert plan["zero"] == {"persist_below": 100_000}
    assert plan["offload"] == {"optimizer": "cpu", "parameters": "nvme"}
    assert plan["communication"] == {"overlap": True}
    assert (plan["implementation"], plan["precision"], plan["gradient_dtype"]) == ("windtunnel", "bf16", "bf16")
    (said,) = (text for text in result.warnings if "implementation windtunnel" in text)
    for portion in ("reduce_bucket_size 5e8", "prefetch_bucket_size 5e+07", "max_live_parameters 1e+09"):
        assert portion in said


def test_old_names(tmp_path: Path) -> None:
    """cpu_offload, bfloat16 and a boolean stage are rewritten with a note."""
    result = config(
        tmp_path,
        {
            "train_batch_size": 8,
            "bfloat16": {"enabled": True},
            "zero_optimization": {"stage": True, "cpu_offload": True},
        },
    )
    plan = result.run_dict["plan"]
    assert (plan["precision"], plan["zero_stage"], plan["offload"]) == ("bf16", 1, {"optimizer": "cpu"})
    assert said(result, "zero_optimization.cpu_offload is an old name")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["exclude each other"]),
        ({"zero_optimization": {"stage": 4}}, ["zero_optimization.stage is 4; it must be at most 3"]),
        ({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5.5}}, ["reduce_bucket_size is 5.5", "whole number"]),
        (
            {"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}},
            ["1-bit Adam is not compatible with ZeRO", "stage 1"],
        ),
        ({"optimizer": {"type": "Lion"}}, ["not yet forecast: the optimizer Lion", "AdamW"]),
        ({"elasticity": {"enabled": True}}, ["not yet forecast", "elasticity"]),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            ["not yet forecast", "zero_hpz_partition_size 8"],
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            ["offload_param cpu has no effect at stage 2"],
        ),
        (
            {"gradient_acumulation_steps": 4},
            ["unknown DeepSpeed key gradient_acumulation_steps", "gradient_accumulation_steps?"],
        ),
        (
            {"zero_optimization": {"stagee": 4}},
            ["unknown DeepSpeed key zero_optimization.stagee", "did you mean zero_optimization.stage?"],
        ),
        ({"fp16": {"enabled": "maybe"}}, ["fp16.enabled is 'maybe'", "true or false"]),
        ({"curriculum_learning": {"enabled": True}}, ["curriculum_learning", "not forecast"]),
    ],
)
def test_what_a_configuration_is_told(tmp_path: Path, part: dict[str, Any], words: list[str]) -> None:
    """Values, rules and nearest names."""
    assert said(config(tmp_path, {"train_batch_size": 8, **part}), *words)


def test_clipping_is_pinned_by_release(tmp_path: Path) -> None:
    """The same JSON clips or not, depending on the release; the import says which was taken."""
    assert config(tmp_path, {"train_batch_size": 8}).run_dict["optimizer"]["clip_norm"] == 1.0
    before = config(tmp_path, {"train_batch_size": 8}, deepspeed_semantics="before-2026")
    assert before.run_dict["optimizer"]["clip_norm"] == 0.0
    assert said(before, "gradient_clipping is not given", "0 is taken")


def test_optimizer_and_scheduler(tmp_path: Path) -> None:
    """AdamW's numbers and a warm-up with decay."""
    text = {
        "train_batch_size": 8,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "Adam", "params": {"lr": "1e-4", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
    }
    optimizer = config(tmp_path, text).run_dict["optimizer"]
    assert (optimizer["lr"], optimizer["clip_norm"], optimizer["betas"]) == (1e-4, 0.5, [0.9, 0.95])
    assert optimizer["schedule"] == {"kind": "linear", "warmup_steps": 10, "decay_steps": 100, "min_lr": 0.0}


def test_a_json_without_a_model_is_refused(tmp_path: Path) -> None:
    """Alone it describes no model."""
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    with pytest.raises(InputError, match="does not describe a model: add --model PRESET"):
        import_file(tmp_path / "ds.json", cluster="dgx-a100-80gb")
    assert said(config(tmp_path, {"train_batch_size": 8}, model="gpt3-13"), "'gpt3-13' is not one of the preset models")


def beside(folder: Path, text: dict[str, Any], flags: str) -> Any:
    """A Megatron-DeepSpeed script with its JSON in the same folder, on eight GPUs."""
    (folder / "ds.json").write_text(json.dumps(text))
    return imported(folder, script(f"--deepspeed --deepspeed_config ds.json {flags}"), cluster="dgx-a100-80gb")


def test_a_batch_of_zero_is_no_missing_batch(tmp_path: Path) -> None:
    result = imported(tmp_path, '{"train_batch_size": 0}', "ds.json", nodes=1, model="gpt2-124m")
    assert result.problems == ("train_batch_size is 0; it must be at least 1",)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_size_below_its_least_is_named_by_its_own_key(tmp_path: Path, stage: int) -> None:
    """At every stage, all of them at once, and nothing of a key that the file does not have."""
    zero = {
        "stage": stage,
        "reduce_bucket_size": -5,
        "stage3_prefetch_bucket_size": "-3",
        "stage3_max_live_parameters": -1,
        "offload_optimizer": {"device": "none", "ratio": 2, "buffer_count": -4},
    }
    values = {"train_batch_size": 8, "gradient_accumulation_steps": -1, "gradient_clipping": -1}
    params = {"type": "AdamW", "params": {"lr": -1e-4, "eps": 0}}
    (tmp_path / "ds.json").write_text(json.dumps(values | {"zero_optimization": zero, "optimizer": params}))
    with pytest.raises(InputError) as caught:
        import_file(tmp_path / "ds.json", cluster="dgx-a100-80gb", nodes=1, model="gpt2-124m")
    assert sorted(caught.value.problems) == [
        "gradient_accumulation_steps is -1; it must be at least 1",
        "gradient_clipping is -1; it must be at least 0",
        "optimizer.params.eps is 0; it must be above 0",
        "optimizer.params.lr is -0.0001; it must be at least 0",
        "zero_optimization.offload_optimizer.buffer_count is -4; it must be at least 0",
        "zero_optimization.offload_optimizer.ratio is 2; it must be at most 1",
        "zero_optimization.reduce_bucket_size is -5; it must be at least 1",
        "zero_optimization.stage3_max_live_parameters is -1; it must be at least 0",
        "zero_optimization.stage3_prefetch_bucket_size is -3; it must be at least 0",
    ]


def test_only_the_batch_sizes_given_are_named() -> None:
    """No `None` in a sentence."""
    ledger = Ledger()
    solve(Batch(8, 0, None), 8, "8 GPUs", ledger)
    assert ledger.problems == ["batch sizes must be at least 1: micro batch 0"]


@pytest.mark.parametrize(("stage", "words"), [(2, "moves 2Ψ"), (3, "has no effect at stage 3")])
def test_a_reduction_to_one_rank_is_spoken_of(tmp_path: Path, stage: int, words: str) -> None:
    """What it changes and which implementation has it; nothing where it is left at its default."""
    key = "use_multi_rank_bucket_allreduce"
    zero = {"stage": stage, key: False}
    assert said(config(tmp_path, {"train_batch_size": 64, "zero_optimization": zero}), f"{key} false", words)
    assert not said(config(tmp_path, {"train_batch_size": 64, "zero_optimization": zero | {key: True}}), key)


def test_a_byte_order_mark_is_no_content() -> None:
    assert read_json('\ufeff{"a": 1}', "x.json") == {"a": 1}


def test_json_and_script_disagree_on_the_batch(tmp_path: Path) -> None:
    """Both values are reported."""
    result = beside(tmp_path, {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 2}, "--global-batch-size 64")
    assert said(result, "train_batch_size 128 in the DeepSpeed JSON and --global-batch-size 64")
    assert said(result, "train_micro_batch_size_per_gpu 2 in the DeepSpeed JSON and --micro-batch-size 1")
    assert len(result.problems) >= 2


def test_json_wins_for_zero(tmp_path: Path) -> None:
    """Both stages are named."""
    result = beside(
        tmp_path, {"train_batch_size": 64, "zero_optimization": {"stage": 1}}, "--zero-stage 2 --global-batch-size 64"
    )
    assert result.run_dict["plan"]["zero_stage"] == 1
    assert said(result, "stage 1 in the DeepSpeed JSON and --zero-stage 2 in the script: the JSON wins")


def test_json_and_script_disagree_on_precision(tmp_path: Path) -> None:
    """fp16 in one and bf16 in the other cannot both be."""
    assert said(beside(tmp_path, {"fp16": {"enabled": True}}, "--bf16"), "two precisions: fp16", "bf16")


def test_a_missing_configuration_is_a_warning(tmp_path: Path) -> None:
    """The flags still say the stage."""
    result = imported(
        tmp_path, script("--deepspeed --deepspeed_config other.json --zero-stage 1"), cluster="dgx-a100-80gb"
    )
    assert said(result, "other.json is neither written by the script nor beside it")
    assert result.run_dict["plan"]["zero_stage"] == 1


def test_bf16_optimizer_shards_by_itself(tmp_path: Path) -> None:
    """Stage 0 with bf16 is ZeRO-1 in DeepSpeed."""
    result = beside(tmp_path, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}, "--bf16")
    assert result.run_dict["plan"]["zero_stage"] == 1
    assert result.run_dict["plan"]["implementation"] == "deepspeed"


def test_the_engine_around_megatrons_layers(tmp_path: Path) -> None:
    """fp32 gradients beside bf16 weights, fp16 beside fp16; nothing is said to stand for something else."""
    for precision, gradients in (("bf16", None), ("fp16", "fp16")):
        text = {precision: {"enabled": True}, "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0}
        result = beside(tmp_path, text, f"--{precision}")
        plan = result.run_dict["plan"]
        assert (plan["implementation"], plan["attention"], plan["zero_stage"]) == ("deepspeed", "unfused", 1)
        assert plan.get("gradient_dtype") == gradients
        assert not any("implementation" in warning for warning in result.warnings)


def test_blocking_launches_are_read_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "gradient_clipping": 1.0}))
    for before, blocking in (("export CUDA_LAUNCH_BLOCKING=1", True), ("export CUDA_LAUNCH_BLOCKING=0", None)):
        text = script("--bf16 --deepspeed --deepspeed_config ds.json", before=before)
        result = imported(tmp_path, text)
        assert result.run_dict["plan"].get("launch_blocking") is blocking


@given(st.text(alphabet='{}[]",:\\/*# \n1e-.TrueNone$', max_size=50))
def test_any_text_is_json_or_refused(soak_count: Callable[..., None], text: str) -> None:
    """No text fails in another way than an InputError."""
    soak_count("fuzzed inputs")
    try:
        assert isinstance(read_json(text, "x"), dict)
    except InputError as error:
        assert str(error)
