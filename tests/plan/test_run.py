"""Loading a run: files, presets, overrides, what `auto` becomes, and the round trip."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plan.run import Run, Train, canonical_json, load
from program.errors import EXIT_INPUT, InputError
from program.files import parse_yaml

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
BASE: dict[str, Any] = {"model": "gpt2-124m", "cluster": {"preset": "dgx-h100", "nodes": 2}, "plan": {}}


def problems_of(*args: Any) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load(*args)
    assert caught.value.exit_code == EXIT_INPUT
    return caught.value.problems


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_and_survives_being_written_as_resolved(path: Path, tmp_path: Path) -> None:
    run = load(path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.to_dict()))
    assert load(tmp_path / "run.yaml") == run


def test_what_is_left_over_becomes_data_parallel() -> None:
    plan = load(BASE | {"plan": {"tensor_parallel": 4, "pipeline_parallel": 2}}).plan
    assert (plan.data_parallel, plan.world, plan.global_batch_size, plan.microbatches) == (2, 16, 2, 1)


def test_every_auto_is_decided() -> None:
    plan = load(BASE | {"plan": {"pipeline_parallel": 2, "virtual_pipeline": 3, "global_batch_size": 16}}).plan
    assert (plan.schedule, plan.microbatch_group, plan.attention, plan.loss_chunks) == (
        "interleaved-1f1b",
        2,
        "flash",
        1,
    )
    assert plan.communication.bucket_mb == 160
    assert load({**BASE, "cluster": {"preset": "dgx-h100", "nodes": 16}}).plan.communication.bucket_mb == 4 * 128


def test_float64_keeps_its_gradients_in_float64() -> None:
    assert load(BASE | {"plan": {"precision": "fp64"}}).plan.gradient_dtype == "fp64"
    assert load(BASE | {"plan": {"precision": "bf16"}}).plan.gradient_dtype == "fp32"


def test_megatron_and_attention_dropout_mean_unfused_attention() -> None:
    assert load(BASE | {"plan": {"implementation": "megatron"}}).plan.attention == "unfused"
    assert load({**BASE, "model": {"preset": "gpt2-124m", "attention_dropout": 0.1}}).plan.attention == "unfused"


def test_the_smallest_learning_rate_follows_the_largest() -> None:
    assert load(BASE | {"optimizer": {"lr": 1e-3}}).optimizer.schedule.min_lr == 1e-4


def test_overrides_reach_any_key_and_open_a_preset_given_by_name() -> None:
    run = load(
        BASE,
        [
            "model.seq_length=512",
            "plan.tensor_parallel=4",
            "train.steps=1_000",
            "budget.tokens=5e8",
            "plan.communication.overlap=false",
            "cluster.nics.count=4",
        ],
    )
    assert (run.model.seq_length, run.plan.tensor_parallel, run.train.steps) == (512, 4, 1000)
    assert (run.budget.tokens, run.plan.communication.overlap, run.cluster.nics.count) == (5e8, False, 4)
    assert BASE["plan"] == {}, "the dict given is not changed"


def test_a_resolved_run_without_chunks_takes_another_pipeline() -> None:
    """The group of micro-batches follows the pipeline until somebody sets it."""
    plan = {"pipeline_parallel": 2, "global_batch_size": 8}
    resolved = load({"model": "gpt2-124m", "cluster": {"preset": "dgx-h100"}, "plan": plan}).to_dict()
    assert load(resolved, ["plan.pipeline_parallel=4", "plan.data_parallel=2"]).plan.microbatch_group == 4


def test_an_override_may_replace_a_whole_section() -> None:
    run = load(BASE, ["model=llama-3-8b", "model.layers=2", "cluster=dgx-h200"])
    assert (run.model.vocab, run.model.layers, run.cluster.gpu) == (128256, 2, "h200")


@pytest.mark.parametrize("text", ["plan.tensor_parallel", "tensor_parallel=4", "plan.=4", "=4"])
def test_an_override_that_is_not_one_says_how_to_write_it(text: str) -> None:
    assert "write section.key=value" in problems_of(BASE, [text])[0]


def test_unknown_keys_at_any_depth_name_the_nearest() -> None:
    problems = problems_of(
        {
            "model": {"preset": "gpt2-124m", "rope": {"thetta": 1}},
            "cluster": {"preset": "dgx-h100", "nics": {"counts": 3}},
            "plan": {"communication": {"bucket_size_mb": 40}, "tensor_paralel": 2},
            "optimiser": {"lr": 1e-4},
        }
    )
    assert problems == (
        "unknown section 'optimiser': did you mean 'optimizer'?",
        "unknown key model.rope.thetta: did you mean 'theta'?",
        "unknown key cluster.nics.counts: did you mean 'count'?",
        "unknown key plan.communication.bucket_size_mb: did you mean 'bucket_mb'?",
        "unknown key plan.tensor_paralel: did you mean 'tensor_parallel'?",
    )


def test_a_misspelt_key_still_counts_for_the_other_rules() -> None:
    """Otherwise one typo would drag a false 'world size' problem behind it."""
    assert (
        len(problems_of(BASE | {"plan": {"tensor_paralel": 8, "data_parallel": 2}})) == 2
    )  # 12 heads % 8, and the typo
    assert len(problems_of(BASE | {"plan": {"tensor_paralel": 4, "data_parallel": 4}})) == 1


def test_bad_values_are_all_reported_with_their_path() -> None:
    problems = problems_of(
        {
            "model": {"preset": "gpt2-124m", "hidden": 5.5},
            "cluster": "dgx-h1000",
            "plan": {"precision": "bf17", "micro_batch_size": 0, "sequence_parallel": "ja", "recompute": "fulll"},
        }
    )
    assert problems == (
        "model.hidden: 5.5 is not a whole number; the nearest are 5 and 6",
        "cluster.preset: 'dgx-h1000' is not one of the preset clusters: did you mean 'dgx-h100'?",
        "plan.sequence_parallel is 'ja'; it must be true or false",
        "plan.micro_batch_size is 0; it must be at least 1; the nearest is 1",
        "plan.recompute is 'fulll'; it must be one of none, selective, full, or {layers: n}; the nearest is 'full'",
        "plan.precision is 'bf17'; it must be one of fp64, fp32, fp16, bf16, fp8; the nearest is 'bf16'",
    )


def test_missing_sections_show_an_example() -> None:
    problems = problems_of({"model": "gpt2-124m"})
    assert [p.split(":")[0] for p in problems] == ["the section cluster", "the section plan"]
    assert "cluster: {preset: dgx-h100, nodes: 1}" in problems[0]


def test_empty_sections_show_an_example() -> None:
    """A plan may be empty: every key has a default."""
    problems = problems_of({"model": None, "cluster": None, "plan": None})
    assert problems == (
        "the section model: is empty; for example `model: llama-3-8b`",
        "the section cluster: is empty; for example `cluster: {preset: dgx-h100, nodes: 1}`",
    )
    assert load({"model": "gpt2-124m", "cluster": "dgx-h100", "plan": None}).plan.tensor_parallel == 1


def test_values_are_shown_as_a_file_spells_them() -> None:
    """null and {"a": 1}, not None and {'a': 1}; keys too."""
    model = {"layers": None, "hidden": {"a": 1}, "heads": True, "vocab": [1], "seq_length": 8, None: 3}
    problems = problems_of({"model": model, "cluster": "dgx-h100", "plan": {}})
    for said in ("layers: null is", 'hidden: {"a": 1} is', "heads: true is", "vocab: [1] is", "unknown key model.null"):
        assert any(said in problem for problem in problems), said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; a run file needs the sections model, cluster and plan"),
        (b"# nothing\n", "is empty"),
        (b"- a\n- b\n", "holds a list; a run file is a mapping"),
        (b"model: [1\n", "is not valid YAML"),
        (b"plan: {a: 1}\nplan: {b: 2}\n", "key 'plan' is given twice (line 2, column 1)"),
        (b"- a\n---\n- b\n", "expected a single document in the stream but found another document (line 2"),
        (b"just words\n", "holds text; a run file is a mapping"),
        (b"7\n", "holds a number; a run file is a mapping"),
        (b"\xff\xfe", "is not text: byte 0 is not UTF-8"),
        (b"model: {layers: !!int many}\n", "holds a value that cannot be read: invalid literal"),
        (b"model: {layers: !!bool many}\n", "a tag does not fit its value"),
        (b"model: {layers: " + b"9" * 5000 + b"}\n", "Exceeds the limit (4300 digits)"),
        (b"model: " + b"{a: " * 950 + b"1" + b"}" * 950, "nests lists or mappings too deeply"),
        (b"model: &a [*a]\n", "an alias stands inside itself"),
        (
            b"a: &a [x, x, x, x, x, x, x, x, x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (n, n, b", ".join([b"*%c" % (n - 1)] * 9)) for n in b"bcdefgh"),
            "aliases written out are more than 1,000,000 values",
        ),
    ],
)
def test_an_unreadable_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    (problem,) = problems_of(path)
    assert sentence in problem


def test_a_missing_file_lists_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("x: 1")
    assert "does not exist" in problems_of(tmp_path / "demo2.yaml")[0]
    assert "demo.yaml" in problems_of(tmp_path / "demo2.yaml")[0]
    assert "cannot be read" in problems_of(tmp_path)[0]


def test_a_model_may_be_the_path_of_a_hugging_face_config(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 128256,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert load({**BASE, "model": str(path)}).model.parameters() == 8_030_261_248
    assert load({**BASE, "model": {"preset": str(path), "layers": 2}}, ["model.seq_length=64"]).model.seq_length == 64
    assert "does not exist" in problems_of({**BASE, "model": str(tmp_path / "other.json")})[0]


def test_5e8_is_a_number_wherever_a_number_is_asked_for(tmp_path: Path) -> None:
    """Case 072: YAML 1.1 reads 5e8 as a string."""
    path = tmp_path / "run.yaml"
    path.write_text("model: gpt2-124m\ncluster: dgx-h100\nplan: {}\nbudget: {tokens: 5e8}\ntrain: {steps: 1_000}\n")
    run = load(path)
    assert (run.budget.tokens, run.train.steps) == (500_000_000, 1000)


@pytest.mark.parametrize(
    ("text", "value"), [("010", "010"), ("1:30", "1:30"), ("0x10", "0x10"), ("2026-01-02", "2026-01-02"), ("1_0", 10)]
)
def test_numbers_of_a_file_are_decimal(text: str, value: object) -> None:
    """YAML 1.1 reads 8, 90, 16 and a date."""
    assert parse_yaml(text, "here") == value


def test_ten_layers_are_not_eight() -> None:
    assert load({"model": "gpt2-124m", "cluster": "dgx-h100", "plan": {}}, ["model.layers=010"]).model.layers == 10


def test_a_peak_of_a_precision_that_does_not_exist() -> None:
    raw = {"model": "gpt2-124m", "cluster": {"preset": "dgx-h100", "peak_tflops": {"bf15": 10}}, "plan": {}}
    assert any("cluster.peak_tflops.bf15" in problem for problem in problems_of(raw))


def test_equal_runs_have_equal_canonical_text() -> None:
    assert canonical_json(load(BASE)) == canonical_json(load(BASE, ["plan.tensor_parallel=1"]))
    assert canonical_json(load(BASE)) != canonical_json(load(BASE, ["train.seed=1"]))


@pytest.mark.parametrize(
    ("train", "recorded"),
    [
        (Train(steps=10), [7, 8, 9]),
        (Train(steps=5), [4]),
        (Train(steps=6, record_every=2), [1, 3, 5]),
        (Train(steps=6, record_every=1000), [5]),
        (Train(steps=504), [499, 501, 502, 503]),
    ],
)
def test_which_steps_are_recorded(train: Train, recorded: list[int]) -> None:
    assert [step for step in range(train.steps) if train.records(step)] == recorded


def test_a_cpu_records_as_many_steps_as_the_gate_wants() -> None:
    run = load({"model": "gpt2-124m", "cluster": "cpu", "plan": {}, "train": {"steps": 60}})
    assert [step for step in range(60) if run.records(step)] == list(range(36, 60))


degree = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def raw_runs(draw: st.DrawFn) -> dict[str, Any]:
    t, p, d, k, m = draw(degree), draw(degree), draw(degree), draw(degree), draw(st.integers(1, 6))
    v = draw(st.sampled_from([1, 2])) if p > 1 else 1
    micro = draw(st.integers(1, 3))
    model = {
        "layers": draw(st.integers(max(1, p * v - 2), 40)),
        "hidden": 16 * t * k,
        "heads": t * k,
        "kv_heads": t,
        "vocab": draw(st.integers(1, 999)),
        "seq_length": 8 * t,
        "ffn": 8 * t,
        "activation": draw(st.sampled_from(["gelu", "swiglu"])),
        "norm": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        "positions": draw(st.sampled_from(["learned", "rotary", "alibi"])),
        "tied_embeddings": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0, 0.1])),
        "norm_eps": draw(st.floats(1e-12, 1e-3)),
        "rope": {
            "theta": draw(st.floats(1, 1e9)),
            "scaling": draw(st.sampled_from(["none", {"kind": "linear", "factor": 2}])),
        },
    }
    plan = {
        "tensor_parallel": t,
        "pipeline_parallel": p,
        "virtual_pipeline": v,
        "data_parallel": d,
        "micro_batch_size": micro,
        "sequence_parallel": t > 1 and draw(st.booleans()),
        "global_batch_size": micro * d * m * p,
        "zero_stage": draw(st.sampled_from([0, 1])),
        "recompute": draw(st.sampled_from(["none", "selective", "full", {"layers": 1}])),
        "precision": draw(st.sampled_from(["fp64", "fp32", "bf16"])),
        "communication": {"bucket_mb": draw(st.one_of(st.just("auto"), st.floats(0.1, 1000)))},
    }
    cluster = draw(st.sampled_from(["cpu", {"preset": "dgx-a100-80gb", "gpus": t * p * d}]))
    train = {"steps": draw(st.integers(1, 10**9)), "record_every": draw(st.sampled_from(["auto", 7]))}
    budget = draw(st.sampled_from([{}, {"tokens": "300e9", "price_per_gpu_hour": 2.5}]))
    return {"model": model, "cluster": cluster, "plan": plan, "train": train, "budget": budget}


@given(raw_runs())
def test_a_resolved_run_loads_to_an_equal_run(raw: dict[str, Any]) -> None:
    run: Run = load(raw)
    assert load(run.to_dict()) == run
    text = yaml.safe_dump(run.to_dict())
    assert load(yaml.safe_load(text)) == run
    assert canonical_json(load(yaml.safe_load(text))) == canonical_json(run)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=8,
    ),
    st.sampled_from(["model", "cluster", "plan", "optimizer", "train", "data", "checkpoint", "budget"]),
)
def test_no_value_whatever_gives_a_traceback(soak_count: Callable[..., None], value: Any, section: str) -> None:
    soak_count("fuzzed inputs")
    try:
        load({**BASE, section: value})
    except InputError as error:
        assert error.problems
        assert str(error)


@given(st.sampled_from(["model", "plan", "optimizer", "train"]), st.data())
def test_no_value_in_a_known_key_gives_a_traceback(
    soak_count: Callable[..., None], section: str, data: st.DataObject
) -> None:
    soak_count("fuzzed inputs")
    keys = load(BASE).to_dict()[section]
    key = data.draw(st.sampled_from(sorted(keys)))
    value = data.draw(
        st.none() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
    )
    try:
        load({**BASE, section: {**keys, key: value}})
    except InputError as error:
        assert error.problems


def test_loading_a_run_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from plan.run import load; load(sys.argv[1]); "
        "print(sorted({'torch', 'triton', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(EXAMPLES[0])], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
