"""Collective costs are the closed forms where no table says otherwise; a group across nodes uses every NIC."""

from pathlib import Path

import pytest

from calibration.collectives import Geometry, Wires, steps, wire_factor
from calibration.profile import Profile, load_profile

MIB = 2**20


@pytest.fixture
def small() -> Profile:
    return load_profile(Path(__file__).parent / "small_profile.yaml")


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_ring_closed_forms(n: int) -> None:
    assert wire_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
    assert wire_factor("all_gather", n) == wire_factor("reduce_scatter", n) == pytest.approx((n - 1) / n)
    assert wire_factor("send", n) == 1
    assert steps("all_reduce", n) == 2 * (n - 1)
    assert steps("all_gather", n) == n - 1


@pytest.mark.parametrize("n", [2, 4, 8])
def test_inside_a_node_alpha_beta(small: Profile, n: int) -> None:
    cost = small.collective("all_reduce", 64 * MIB, "bf16", Geometry(n))
    assert cost.latency_s == pytest.approx(2 * (n - 1) * 1e-6)
    assert cost.transfer_s == pytest.approx(2 * (n - 1) / n * 64 * MIB / 1e11)
    assert cost.bus_bytes == pytest.approx(2 * (n - 1) / n * 64 * MIB)


def test_reduce_scatter_without_a_table_is_the_ring_of_all_gather(small: Profile) -> None:
    cost = small.collective("reduce_scatter", MIB, "bf16", Geometry(8))
    assert cost.seconds == small.collective("all_gather", MIB, "bf16", Geometry(8)).seconds


def test_across_nodes_a_group_uses_every_nic(small: Profile) -> None:
    alone = small.collective("all_gather", 1024 * MIB, "bf16", Geometry(2, nodes=2))
    assert alone.transfer_s == pytest.approx(0.5 * 1024 * MIB / (8 * 25e9 * 0.9))


def test_groups_share_the_nics(small: Profile) -> None:
    alone = small.collective("all_gather", 1024 * MIB, "bf16", Geometry(2, nodes=2))
    eight = small.collective("all_gather", 1024 * MIB, "bf16", Geometry(2, nodes=2, links=8))
    assert eight.transfer_s == pytest.approx(8 * alone.transfer_s)


def test_the_node_inside_can_be_the_slower_wire(small: Profile) -> None:
    cost = small.collective("all_reduce", 1024 * MIB, "bf16", Geometry(16, nodes=2))
    assert cost.transfer_s == pytest.approx(2 * 15 / 16 * 1024 * MIB / 1e11)  # 100 GB/s NVLink ring < 180 GB/s of NICs


def test_the_cluster_may_have_other_wires(small: Profile) -> None:
    half = Wires(3e11, 25e9, 4, 5e-6)
    cost = small.collective("all_gather", 1024 * MIB, "bf16", Geometry(2, nodes=2, wires=half))
    assert cost.transfer_s == pytest.approx(0.5 * 1024 * MIB / (4 * 25e9 * 0.9))


def test_a_small_all_reduce_across_many_nodes_climbs_a_tree(small: Profile) -> None:
    auto = small.collective("all_reduce", 64, "bf16", Geometry(512, nodes=64))
    ring = small.collective("all_reduce", 64, "bf16", Geometry(512, nodes=64), "ring")
    assert auto.latency_s < ring.latency_s / 5
    assert auto.latency_s == pytest.approx(2 * 6 * 5e-6 + 14 * 1e-6)


def test_one_rank_or_no_bytes_cost_nothing(small: Profile) -> None:
    assert small.collective("all_reduce", MIB, "bf16", Geometry(1)).seconds == 0
    assert small.collective("all_reduce", 0, "bf16", Geometry(8)).seconds == 0


def test_point_to_point(small: Profile) -> None:
    assert small.transfer(MIB, same_node=True).seconds == pytest.approx(2e-6 + MIB / 2e11)
    assert small.transfer(MIB, same_node=False).seconds == pytest.approx(5e-6 + MIB / (25e9 * 0.9))
    assert small.transfer(MIB, same_node=False, links=16).transfer_s == pytest.approx(MIB / (25e9 * 8 * 0.9 / 16))
