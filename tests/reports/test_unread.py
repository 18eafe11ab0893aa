"""Keys of a cluster without effect on a forecast are named when a run sets them, and only then."""

from typing import Any

import pytest

from plan.run import load
from reports.unread import unread

MODEL = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 128, "seq_length": 32}


def said(**cluster: Any) -> tuple[str, ...]:
    return unread(load({"model": MODEL, "cluster": {"preset": "dgx-h100", **cluster}, "plan": {}}))


def test_a_preset_as_it_is_sets_nothing() -> None:
    """On one node, on several, and on a CPU."""
    assert said() == said(nodes=4) == said(preset="cpu") == ()


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (
            {"nvlink": {"latency_us": 3}},
            "cluster.nvlink.latency_us 3.0: latencies inside a node are those of the profile",
        ),
        ({"pcie_gb_s": 64}, "cluster.pcie_gb_s 64.0: nothing of this plan crosses PCIe"),
        ({"host": {"cores": 4}}, "cluster.host.cores 4: the host's own times are those of the profile"),
        ({"host": {"memory_gib": 64}}, "cluster.host.memory_gib 64.0: nothing of this plan is kept on the host"),
        ({"fabric": {"kind": "fat-tree"}}, "cluster.fabric.kind fat-tree: without oversubscription"),
        ({"threads_per_rank": 4}, "cluster.threads_per_rank 4: only ranks of a cpu cluster"),
        ({"nics": {"count": 4}}, "cluster.nics.count 4: no message leaves the node"),
        (
            {"preset": "cpu", "nvlink": {"bandwidth_gb_s": 9}},
            "cluster.nvlink.bandwidth_gb_s 9.0: ranks of a cpu cluster",
        ),
    ],
)
def test_a_key_that_is_set_without_effect_is_named_with_its_reason(cluster: dict[str, Any], words: str) -> None:
    """One sentence for the one key."""
    (sentence,) = said(**cluster)
    assert sentence.startswith(words)


def test_network_cards_matter_once_messages_leave_the_node() -> None:
    """Then they are read."""
    assert said(nodes=2, nics={"count": 4, "bandwidth_gb_s": 25, "latency_us": 9}) == ()


def test_buckets_of_a_partitioned_plan_are_its_layers() -> None:
    plan = {"data_parallel": 2, "global_batch_size": 4, "zero_stage": 3, "communication": {"bucket_mb": 50}}
    assert unread(load({"model": MODEL, "cluster": "cpu", "plan": plan})) == (
        "plan.communication.bucket_mb 50: ZeRO-2 and ZeRO-3 reduce a layer at a time",
    )
