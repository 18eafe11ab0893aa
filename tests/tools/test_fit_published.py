"""The shipped profiles are what the stated rows give, byte for byte."""

import math

import pytest

from calibration.collectives import Geometry
from calibration.profile import load_profile
from calibration.profile_paths import shipped_profiles
from program import KernelCall
from tools import fit_framework_host, fit_published, fit_uncertainty, fit_workspace
from tools import published_rows as published
from tools.fit_sections import EAGER, H100_FP8, PCIE, TREE, ranges
from tools.traffic import eager_table

MAKERS = {"a100-80gb": fit_published.a100, "h100": fit_published.h100, "h200-published": fit_published.h200}


def test_shipped_files_are_what_their_rows_give(tmp_path):
    """Four digits of a fit are the same on any machine; a fifth, where a simplex ended, is not written."""
    for path in fit_published.write_all(tmp_path):
        assert path.read_bytes() == (fit_published.FOLDER / path.name).read_bytes(), path.name
    assert sorted(path.stem for path in tmp_path.iterdir()) == shipped_profiles()


@pytest.mark.parametrize("name", MAKERS)
def test_every_source_is_used_and_every_row_exists(name: str) -> None:
    profile = load_profile(name)
    for source in profile.provenance.values():
        for entry in source.rows:
            first, _, last = entry.partition("..")
            ids = published.between(first, last or first)
            table = "gemm.csv" if first.startswith("gemm") else "nccl.csv"
            assert [row["id"] for row in published._pick(table, ids)] == ids


@pytest.mark.parametrize(("ranks", "row"), [(2, "nccl-0475"), (4, "nccl-0497"), (8, "nccl-0541")])
def test_in_node_all_reduce_is_the_published_table(ranks: int, row: str) -> None:
    measured = published.collective_rows([row])[0]
    assert (measured.ranks, measured.bytes) == (ranks, 64 * 2**20)
    cost = load_profile("a100-80gb").collective("all_reduce", measured.bytes, "bf16", Geometry(ranks))
    assert cost.seconds == pytest.approx(measured.seconds, rel=2e-3)


def test_hopper_scans_over_nodes_are_met_at_large_sizes() -> None:
    profile = load_profile("h100")
    large = [row for row in published.collective_rows(TREE) if row.bytes >= 2**30]
    assert len(large) > 20
    for row in large:
        cost = profile.collective("all_reduce", row.bytes, "bf16", Geometry(row.ranks, nodes=row.nodes))
        assert cost.seconds == pytest.approx(row.seconds, rel=0.12), row.id


def test_eager_operators_are_priced_by_what_their_references_move_and_launch() -> None:
    counted = eager_table()
    assert counted.keys() == EAGER.keys()
    for op, (launches, ratio, alive) in counted.items():
        assert (launches, pytest.approx(ratio, abs=0.006)) == EAGER[op], op
        assert fit_workspace.EAGER.get(op, 0.0) == pytest.approx(alive, abs=0.006), op
    profile = load_profile("h100")
    call = KernelCall("rmsnorm_forward", (8192, 8192), "bf16")
    eager, compiled = profile.for_kernels("eager"), profile.for_kernels("compiled")
    assert 9 < eager.kernel_s(call) / compiled.kernel_s(call) < 12
    assert eager.host_issue_s("F", [call]) > 9 * 6.6e-6 > compiled.host_issue_s("F", [call]) > 6.6e-6


def test_the_host_of_a_framework_is_priced_by_gpt_fast_and_one_h200_machine() -> None:
    """50 kernels a layer at 25.5 tokens/s of 32 layers are 24.5 µs each; recording a graph makes it 33."""
    kernel_s, collective_s = fit_framework_host.measured()
    assert kernel_s == pytest.approx((2729.2 / 63.6 + 4056.1 / 105.6) / 2 * 1e-6, rel=1e-3)
    assert collective_s == pytest.approx((4213.0 - 2729.2) / 10 * 1e-6, rel=1e-3)
    profile = load_profile("a100-80gb")
    theirs = profile.of_a_framework()
    add = KernelCall("add", (1024,), "bf16")
    assert theirs.host_issue_s("F", [add]) == pytest.approx(1 / 25.5 / 32 / 50 * 1.36, rel=1e-3)
    assert theirs.host_issue_s("AR") == pytest.approx(
        theirs.host_issue_s("F", [add]) * collective_s / kernel_s, rel=1e-3
    )
    assert theirs.of_a_framework() is theirs
    assert theirs.kernel_s(add) == profile.kernel_s(add)
    eager = profile.for_kernels("eager")
    norm = KernelCall("rmsnorm_forward", (1024, 1024), "bf16")
    assert eager.of_a_framework().host_issue_s("F", [norm]) == pytest.approx(
        9 * theirs.host_issue_s("F", [add]), rel=1e-3
    )
    assert theirs.scaled(3).host_issue_s("F", [add]) == pytest.approx(3 * theirs.host_issue_s("F", [add]))


def test_sigmas_are_how_far_the_procedure_missed_what_one_h200_measured() -> None:
    """Derived entries are held against measurements that did not make them; a fit's residuals would flatter them."""
    found = fit_uncertainty.kernel_sigmas(fit_published._h200())
    for part in load_profile("h100").file.attention:
        assert part.sigma >= 0.99 * found[part.op]
    h100 = {part.op: part.sigma for part in load_profile("h100").file.memory if part.kernels == "compiled"}
    for op in ("rmsnorm_backward", "swiglu_backward", "ce_loss"):
        assert h100[op] == pytest.approx(found[op], rel=0.01)
    assert h100["rope_forward"] >= 0.99 * found["one pass"] > found["rope_forward"]
    links = {part.source: part.sigma for part in load_profile("h100").file.collectives}
    assert links["reduce-derived"] == pytest.approx(math.log(319 / 249.8), rel=0.05)  # nccl-0693, against 319 GB/s


def test_h100_products_are_those_of_the_same_chip_where_arithmetic_binds_them() -> None:
    profile, rows = load_profile("h100"), fit_uncertainty.points()["gemm"]["bf16 nt"]
    shape, seconds = next((tuple(row[:3]), row[3]) for row in rows if row[:3] == [8192, 4096, 4096])
    call = KernelCall("gemm", shape, "bf16", "nt")
    assert profile.kernel_s(call) == pytest.approx(seconds * 762 / 663, rel=1e-3)
    kept = {tuple(point[1:4]) for part in profile.file.gemm if part.layout == "nt" for point in part.points}
    assert (32768, 768, 768) not in kept  # near its bound by memory, and the H200 has faster memory


def test_row_ranges_are_written_short() -> None:
    assert ranges(PCIE) == ["gemm-0087..gemm-0269"]
    assert ranges([*H100_FP8[:2], "gemm-0500"]) == ["gemm-0029..gemm-0030", "gemm-0500"]


def test_an_unknown_row_is_an_error() -> None:
    with pytest.raises(KeyError, match="gemm-9999"):
        published.gemm_rows(["gemm-9999"])
    with pytest.raises(KeyError, match="no memory bandwidth"):
        published.memory_bytes_per_s("gemm-0021")
