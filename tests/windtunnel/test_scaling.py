"""`windtunnel forecast RUN --nodes 1,2,4`: a row is the forecast of that many nodes; refused counts are rows too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.windtunnel.test_schemas import obeys

Call = Callable[..., Any]
SMALL = {"model": "gpt2-124m", "cluster": {"preset": "dgx-h100"}, "plan": {"global_batch_size": 64, "zero_stage": 1}}
JSON = '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}'
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
 --num-layers 2 --hidden-size 512 --num-attention-heads 8 \\
 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 32 --vocab-size 32000 --bf16 \\
 --tensor-model-parallel-size 2 --use-flash-attn
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    import yaml

    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path / "small.yaml"


def test_a_point_is_the_forecast_of_its_nodes(small: Path, wt: Call) -> None:
    found = wt("forecast", small, "--nodes", "1,2,4", "--json")
    assert found.code == 0
    obeys("scaling", found.json)
    assert found.json["scaling"] == "strong"
    for point, nodes in zip(found.json["points"], (1, 2, 4), strict=True):
        alone = wt("forecast", small, "--nodes", nodes, "--json").json
        assert point.pop("nodes") == nodes
        point.pop("efficiency")
        assert point == alone


def test_strong_keeps_the_batch_and_weak_grows_it_with_the_nodes(small: Path, wt: Call) -> None:
    def batches(kind: str) -> list[int]:
        points = wt("forecast", small, "--nodes", "2,4,1", "--scaling", kind, "--json").json["points"]
        return [point["run"]["plan"]["global_batch_size"] for point in points]

    assert batches("strong") == [64, 64, 64]
    assert batches("weak") == [64, 128, 32]


def test_a_count_that_does_not_divide_is_a_row_with_its_reason(small: Path, wt: Call) -> None:
    called = wt("forecast", small, "--nodes", "1,3,2", "--json")
    first, refused, last = called.json["points"]
    assert called.code == 0
    assert set(refused) == {"nodes", "problems"}
    assert "batch: 64 != 1" in refused["problems"][0]
    assert last["efficiency"] == last["tokens_per_s_per_gpu"] / first["tokens_per_s_per_gpu"]
    text = wt("forecast", small, "--nodes", "1,3,2").out
    assert "- 3 nodes: batch: 64" in text
    assert max(map(len, text.splitlines())) <= 100
    odd = wt("forecast", small, "--nodes", "3,2", "--set", "plan.global_batch_size=25", "--scaling", "weak", "--json")
    assert "25 != 1" in odd.json["error"]["problems"][0]  # no count is a run: the first says why


def test_what_several_nodes_lose_in_practice_is_named_as_not_modelled(small: Path, wt: Call) -> None:
    one, two = wt("forecast", small, "--nodes", "1,2", "--json").json["points"]
    assert not any("stragglers" in text for text in one["not_modelled"])
    assert any("stragglers" in text for text in two["not_modelled"])


def test_the_share_that_grows_most_is_named(small: Path, wt: Call) -> None:
    found = wt("forecast", small, "--nodes", "1,8", "--json").json
    first, last = (point["time"] for point in found["points"])
    name = max(first, key=lambda key: last[key] - first[key])
    assert found["grows_most"] == {"name": name, "first": first[name], "last": last[name]}
    assert f"what grows most: {name.replace('_', ' ')}" in wt("forecast", small, "--nodes", "1,8").out


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("ds.json", JSON, ("--model", "gpt2-124m", "--cluster", "dgx-a100-80gb")),
        ("train.sh", SCRIPT, ("--cluster", "dgx-a100-80gb")),
    ],
)
def test_imported_files_scale_alike(name: str, text: str, options: tuple[str, ...], tmp_path: Path, wt: Call) -> None:
    """The file's own batch stays, and data parallelism takes the nodes."""
    (tmp_path / name).write_text(text)
    alone = wt("forecast", tmp_path / name, *options, "--nodes", 1, "--json").json
    one, two = wt("forecast", tmp_path / name, *options, "--nodes", "1,2", "--json").json["points"]
    assert one["step_time_s"] == alone["step_time_s"]
    batches = [point["run"]["plan"]["global_batch_size"] for point in (alone, one, two)]
    assert batches[0] == batches[1] == batches[2]
    assert two["run"]["plan"]["data_parallel"] == 2 * one["run"]["plan"]["data_parallel"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "1,0"), "give at least 1"),
        (("--nodes", "1,two"), "not a valid integer"),
        (("--nodes", ",".join(map(str, range(1, 100)))), "at most 64"),
        (("--nodes", "2", "--scaling", "weak"), "several numbers of nodes"),
        (("--nodes", "1,2", "--timeline", "t.json.gz"), "of one run"),
        (("--nodes", "1,2", "--set", "cluster.gpus=8"), "leave one out"),
    ],
)
def test_what_makes_no_table_is_refused(words: tuple[str, ...], said: str, small: Path, wt: Call) -> None:
    called = wt("forecast", small, *words)
    assert called.code == 2
    assert said in called.err
