"""Clusters: sizes, partial nodes, links, and this machine as a cluster."""

import os

import pytest

from plan.run import load
from program.cluster import Cluster
from program.errors import InputError

NUMBERS = {
    "gpu": "a100-80gb",
    "gpus_per_node": 8,
    "nodes": 128,
    "nvlink": {"bandwidth_gb_s": 300, "latency_us": 2},
    "nics": {"count": 8, "bandwidth_gb_s": "200 Gb/s", "latency_us": "5 us"},
    "pcie_gb_s": 25,
    "host": {"cores": 128, "memory_gib": "1 TiB"},
    "fabric": {"kind": "fat-tree", "oversubscription": 1},
}


def cluster_of(cluster: object, **plan: object) -> Cluster:
    return load({"model": "gpt2-124m", "cluster": cluster, "plan": plan}).cluster


def test_a_cluster_is_written_in_numbers() -> None:
    cluster = cluster_of(NUMBERS)
    assert (cluster.gpus, cluster.nodes, cluster.profile, cluster.gpu_memory_gib) == (1024, 128, "a100-80gb", 79.15)
    assert (cluster.nics.bandwidth_gb_s, cluster.nics.latency_us, cluster.host.memory_gib) == (25, 5, 1024)
    assert (cluster.fabric.kind, cluster.fabric.oversubscription) == ("fat-tree", 1)


def test_gpus_instead_of_nodes_leaves_a_partial_last_node() -> None:
    cluster = cluster_of({"preset": "dgx-h100", "gpus": 20})
    assert (cluster.gpus, cluster.nodes) == (20, 3)
    assert [cluster.node_of(rank) for rank in (0, 7, 8, 19)] == [0, 0, 1, 2]


def test_gpus_and_nodes_must_agree() -> None:
    with pytest.raises(InputError, match="20 on nodes of 8 is 3 nodes, but cluster.nodes says 2"):
        cluster_of({"preset": "dgx-h100", "gpus": 20, "nodes": 2})


def test_another_gpu_in_a_known_node_brings_its_own_memory_and_profile() -> None:
    cluster = cluster_of({"preset": "dgx-h100", "gpu": "h200"})
    assert (cluster.profile, cluster.gpu_memory_gib) == ("h200", 139.81)


def test_an_unknown_gpu_names_the_nearest_and_what_to_give_instead() -> None:
    with pytest.raises(InputError, match=r"'a100-80g' is not a known GPU \(did you mean 'a100-80gb'\?\)"):
        cluster_of(NUMBERS | {"gpu": "a100-80g"})
    assert cluster_of(NUMBERS | {"gpu": "b300", "gpu_memory_gib": 268, "peak_tflops": {"bf16": 2250}}).profile == "b300"


def test_oversubscription_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="oversubscription is 0.5; it must be at least 1"):
        cluster_of(NUMBERS | {"fabric": {"oversubscription": 0.5}})


def test_this_machine_has_one_device_for_each_rank_and_shares_itself_out() -> None:
    cluster = cluster_of("cpu", tensor_parallel=2, data_parallel=2)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert (cluster.device, cluster.gpus, cluster.gpus_per_node, cluster.nodes) == ("cpu", 4, 4, 1)
    assert cluster.gpu_memory_gib == pytest.approx(memory / 4)
    assert cluster.threads_per_rank == max(1, cluster.host.cores // 4)
    assert cluster.profile == "cpu"


def test_a_cpu_cluster_of_one_rank_when_nothing_is_said() -> None:
    assert cluster_of("cpu").gpus == 1
