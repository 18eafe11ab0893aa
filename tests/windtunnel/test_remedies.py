"""A run that does not fit comes with changes, each of which, run as printed, forecasts what was said of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.windtunnel.test_schemas import obeys

Call = Callable[..., Any]
CARD = {"preset": "dgx-a100-40gb", "nodes": 1}
LARGE_BATCH = {
    "model": "gpt3-6.7b",
    "cluster": CARD,
    "plan": {"zero_stage": 2, "micro_batch_size": 8, "global_batch_size": 64},
}
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 16 --vocab-size 50257 --bf16 --use-flash-attn \\
 --attention-dropout 0 --hidden-dropout 0 --tensor-model-parallel-size 4 --use-distributed-optimizer
"""


def write(path: Path, run: dict[str, Any], **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**run, **changes}))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """A run of each kind that does not fit: too large a micro-batch, too much state, a foreign file."""
    folder = tmp_path_factory.mktemp("runs")
    states = LARGE_BATCH | {"plan": {"zero_stage": 0, "micro_batch_size": 1, "global_batch_size": 8}}
    (folder / "train.sh").write_text(SCRIPT)
    return {
        "activations": (write(folder / "activations.yaml", LARGE_BATCH),),
        "states": (write(folder / "states.yaml", states),),
        "script": (folder / "train.sh", "--cluster", "dgx-a100-40gb"),
    }


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    """Answers so far: looking for changes takes a second."""
    return {}


@pytest.fixture
def answer(files: Any, answered: dict[str, Any], wt: Call) -> Call:
    """answer("states"): what `forecast --json` says of that file, looked for once."""

    def of(name: str) -> Any:
        if name not in answered:
            called = wt("forecast", *files[name], "--json")
            assert called.code == 1
            answered[name] = called.json
        return answered[name]

    return of


@pytest.mark.parametrize("name", ["activations", "states", "script"])
def test_every_remedy_run_as_printed_forecasts_what_was_said(name: str, files: Any, answer: Call, wt: Call) -> None:
    found = answer(name)
    obeys("forecast", found)
    assert any(each["fits"] for each in found["remedies"])
    for remedy in found["remedies"]:
        sets = [word for text in remedy["set"] for word in ("--set", text)]
        again = wt("forecast", *files[name], *sets, "--json").json
        assert again["step_time_s"] == remedy["step_time_s"]
        assert again["memory"]["peak_reserved_gib"] + again["memory"]["context_gib"] == remedy["peak_gib"]
        assert (again["memory"]["fits"], again["memory"]["borderline"]) == (remedy["fits"], remedy["borderline"])
        plan, before = again["run"]["plan"], found["run"]["plan"]
        assert plan["global_batch_size"] == before["global_batch_size"]
        assert again["gpus"] == found["gpus"]


def test_a_smaller_micro_batch_comes_first_and_is_the_largest_that_fits(files: Any, answer: Call, wt: Call) -> None:
    found = answer("activations")
    first = found["remedies"][0]
    (size,) = (int(text.partition("=")[2]) for text in first["set"] if text.startswith("plan.micro_batch_size"))
    assert f"the largest micro-batch that fits is {size}" in found["advice"]
    more = wt("forecast", *files["activations"], "--set", f"plan.micro_batch_size={2 * size}", "--json").json
    assert not more["memory"]["fits"]
    kinds = [each["change"].split()[0] for each in found["remedies"]]
    assert kinds == sorted(kinds, key=["micro-batch", "recompute", "ZeRO-3", "tensor", "pipeline", "optimizer"].index)


def test_states_above_the_card_are_said_and_no_smaller_batch_is_offered_alone(
    files: Any, answer: Call, wt: Call
) -> None:
    found = answer("states")
    assert found["advice"][0].startswith("states alone exceed the card: ")
    assert not any(
        each["change"].startswith(("micro-batch", "recompute")) and "," not in each["change"]
        for each in found["remedies"]
    )
    text = wt("forecast", *files["states"]).out
    assert "It does not fit. What to change:" in text
    assert max(map(len, text.splitlines())) <= 100


def test_remedies_of_a_script_are_in_its_own_words(answer: Call) -> None:
    found = answer("script")["remedies"]
    words = {each["words"] for each in found}
    assert any(text.startswith("--micro-batch-size ") and "--global-batch-size 32" in text for text in words), words
    assert "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" in words


def test_changing_the_script_as_the_words_say_is_the_remedy(answer: Call, wt: Call, tmp_path: Path) -> None:
    found = answer("script")["remedies"]
    for remedy in [each for each in found if each["words"]]:
        script = tmp_path / "changed.sh"
        script.write_text(SCRIPT.replace("--micro-batch-size 16", "--micro-batch-size 16 --global-batch-size 32"))
        changed = _changed(script.read_text(), remedy["words"])
        script.write_text(changed)
        again = wt("forecast", script, "--cluster", "dgx-a100-40gb", "--json").json
        assert again["step_time_s"] == remedy["step_time_s"], remedy


def _changed(script: str, words: str) -> str:
    """The script with flags replaced, or added at its end."""
    flags = [f"--{flag.strip()}" for flag in words.split("--") if flag.strip()]
    for flag in flags:
        name = flag.split()[0]
        at = script.split().index(name) if name in script.split() else -1
        if at >= 0:
            script = script.replace(f"{name} {script.split()[at + 1]}", flag)
        else:
            script = script.rstrip("\n") + f" {flag}\n"
    return script


def test_a_run_that_fits_nowhere_says_how_many_cards_hold_its_states(wt: Call, tmp_path: Path) -> None:
    plan = {"zero_stage": 0, "micro_batch_size": 1, "global_batch_size": 1}
    path = write(tmp_path / "one.yaml", {"model": "gpt3-175b", "cluster": CARD | {"gpus": 1}, "plan": plan})
    path.write_text(path.read_text().replace("nodes: 1", ""))
    found = wt("forecast", path, "--json").json
    assert not any(each["fits"] for each in found["remedies"])
    assert "GiB in all, which" in found["advice"][-1]


def test_a_host_that_is_too_small_is_mended_on_the_device(wt: Call, tmp_path: Path) -> None:
    plan = {"zero_stage": 1, "global_batch_size": 8, "offload": {"optimizer": "cpu"}}
    run = {"model": "gpt2-124m", "cluster": CARD | {"host": {"cores": 64, "memory_gib": 1}}, "plan": plan}
    found = wt("forecast", write(tmp_path / "host.yaml", run), "--json")
    assert found.code == 1
    (remedy,) = found.json["remedies"]
    assert remedy["fits"]
    assert "plan.offload.optimizer=none" in remedy["set"]


def test_a_run_that_fits_has_no_remedies(wt: Call, tmp_path: Path) -> None:
    run = {"model": "gpt2-124m", "cluster": CARD, "plan": {"global_batch_size": 8}}
    found = wt("forecast", write(tmp_path / "small.yaml", run), "--json").json
    assert (found["remedies"], found["advice"]) == ([], [])


def test_zero_without_replicas_is_said_to_do_nothing(wt: Call, tmp_path: Path) -> None:
    plan = {"zero_stage": 2, "tensor_parallel": 4, "global_batch_size": 8}
    run = {"model": "gpt2-124m", "cluster": {"preset": "dgx-a100-40gb", "gpus": 4}, "plan": plan}
    notes = wt("forecast", write(tmp_path / "alone.yaml", run), "--json").json["notes"]
    assert any(text.startswith("ZeRO-2 does nothing at data-parallel 1") for text in notes)
    shared = run | {"plan": plan | {"tensor_parallel": 2}}
    assert not wt("forecast", write(tmp_path / "two.yaml", shared), "--json").json["notes"]


def test_the_answer_is_the_same_twice(files: Any, answer: Call, wt: Call) -> None:
    assert answer("script") == wt("forecast", *files["script"], "--json").json
