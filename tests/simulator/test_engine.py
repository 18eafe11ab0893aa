"""Streams, host, meetings and sharing on programs small enough to work out by hand. Times in microseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.profile import CoreSharing
from program.errors import WindtunnelError
from simulator.breakdown import CLASSES
from simulator.simulation import simulate
from tests.simulator.runs import TABLE, by_hand, cluster_of, compute, move, starts

US = 1_000_000  # picoseconds


def periods(simulation: object) -> list[int]:
    return [time // US for time in simulation.periods_ps]  # type: ignore[attr-defined]


def test_a_stream_runs_in_order_and_a_wait_joins_streams() -> None:
    """compute 10, copy of 6 beside it, compute 3 that waits for the all-gather of 6 behind the first."""
    program = by_hand(
        [compute("F", 10), move("all_gather", "tp", "tp", 12, (0,)), compute("F", 3), compute("F", 1, (1,))],
        groups={"tp": ((0,),)},
    )
    assert periods(simulate(program, cluster_of(1), TABLE)) == [14]  # a group of one moves nothing


def test_partners_wait_for_each_other_and_pay_once() -> None:
    """Ranks of 10 and 4 us meet in an all-reduce of 8 bytes: 2(n-1)/n x 8 = 8 us, then 1 us."""
    first = [compute("F", 10), move("all_reduce", "dp", "dp", 8, (0,)), compute("STEP", 1, (1,))]
    second = [compute("F", 4), move("all_reduce", "dp", "dp", 8, (0,)), compute("STEP", 1, (1,))]
    simulation = simulate(by_hand(first, second, groups={"dp": ((0, 1),)}), cluster_of(2), TABLE)
    assert periods(simulation) == [19, 19]
    assert starts(simulation, 1) == [0, 4, 18]
    waiting = dict(
        zip(("compute", "exposed_data", "skew"), (simulation.accounts[1][i] // US for i in (0, 6, 8)), strict=True)
    )
    assert waiting == {"compute": 5, "exposed_data": 8, "skew": 6}


def test_the_host_holds_a_small_program_back() -> None:
    """Issue takes 5 us, kernels 1: the step is four issues long."""
    slow_host = replace(TABLE, issue_s=2.5e-6)  # base and one kernel
    program = by_hand([compute("F", 1), compute("F", 1), compute("F", 1), compute("STEP", 1)])
    simulation = simulate(program, cluster_of(1), slow_host)
    assert periods(simulation) == [20]
    assert simulation.breakdown["host"] == pytest.approx(16 / 20)


def test_a_host_synchronisation_stops_the_issue() -> None:
    """Without the synchronisation the host is 30 us ahead; with it the second instruction is issued when the first has
    ended."""
    host = replace(TABLE, issue_s=2.5e-6)
    free = by_hand([compute("F", 30), compute("STEP", 1)])
    held = by_hand([compute("F", 30, host_sync=True), compute("STEP", 1)])
    assert periods(simulate(free, cluster_of(1), host)) == [31]
    assert periods(simulate(held, cluster_of(1), host)) == [30 + 5 + 1 + 4]  # the issue of F overlaps STEP by 1


def test_a_host_blocked_by_a_transfer_is_not_blamed() -> None:
    """Rank 1 blocks its host on a receive: its host time is 5 us to issue STEP and what is left of issuing RECV (1.5
    us)."""
    slow_host = replace(TABLE, issue_s=2.5e-6)
    send = [compute("F", 15), move("send", "pp_next", "send_fwd", 8, (0,), "fwd"), compute("STEP", 1, (1,))]
    blocked = replace(move("recv", "pp_prev", "recv_fwd", 8, (), "fwd"), host_sync=True)
    groups = {"pp_next": ((0, 1),), "pp_prev": ((0, 1),)}
    simulation = simulate(by_hand(send, [blocked, compute("STEP", 1)], groups=groups), cluster_of(2), slow_host)
    account = dict(zip(CLASSES, (time / US for time in simulation.accounts[1]), strict=True))
    assert account == dict.fromkeys(CLASSES, 0) | {"compute": 1, "bubble": 8.5, "exposed_pipeline": 8, "host": 6.5}


def test_contention_slows_both_and_ends_with_the_overlap() -> None:
    """20 us of compute beside a 10 us reduction, at factors 2 and 1: the first 10 us do 5 us of work, 15 remain."""
    profile = replace(TABLE, factors={("compute", "dp"): 2.0})
    program = by_hand(
        [compute("F", 1), move("all_reduce", "dp", "dp", 10, (0,)), compute("F", 20), compute("STEP", 1, (1,))],
        [compute("F", 1), move("all_reduce", "dp", "dp", 10, (0,)), compute("F", 20), compute("STEP", 1, (1,))],
        groups={"dp": ((0, 1),)},
    )
    simulation = simulate(program, cluster_of(2), profile)
    assert periods(simulation) == [1 + 10 + 15 + 1] * 2


def test_cpu_ranks_share_cores() -> None:
    """Four ranks of one thread on two cores take twice as long; two ranks do not."""
    profile = replace(TABLE, cores=CoreSharing(2, 1, 0.5, {}))
    for world, expected in ((2, 10), (4, 20)):
        program = by_hand(*([compute("STEP", 10)] for _ in range(world)))
        assert periods(simulate(program, cluster_of(world, "cpu"), profile)) == [expected] * world


def test_a_cpu_kernel_slows_beside_busy_cores() -> None:
    """gemm takes 1.3 times as long when the other core computes too, and nothing longer alone."""
    profile = replace(TABLE, cores=CoreSharing(2, 1, 0.5, {"gemm": 1.3}))
    assert periods(simulate(by_hand([compute("STEP", 10)]), cluster_of(1, "cpu"), profile)) == [10]
    assert periods(simulate(by_hand([compute("STEP", 10)], [compute("STEP", 10)]), cluster_of(2, "cpu"), profile)) == [
        13,
        13,
    ]


def test_cpu_compute_occupies_the_host_and_communication_does_not() -> None:
    """The reduction is issued after the first compute, and the second compute runs beside it: 3 threads' worth on 2
    cores."""
    profile = replace(TABLE, cores=CoreSharing(2, 1, 0.5, {}))
    rank = [compute("F", 10), move("all_reduce", "dp", "dp", 6, (0,)), compute("F", 12), compute("STEP", 1, (1,))]
    simulation = simulate(by_hand(rank, rank, groups={"dp": ((0, 1),)}), cluster_of(2, "cpu"), profile)
    # 10, then 2 x (1 + 0.5) threads on 2 cores: compute takes 1.5 times as long for 6 us, in which 4 of the 12 are done
    assert periods(simulation) == [10 + 6 + 8 + 1] * 2


def test_a_collective_is_delayed_more_beside_compute_and_uses_no_core_meanwhile() -> None:
    """6 us of work and 2 us of delay while the ranks wait; beside compute 10 us of delay, in which its threads use no
    core."""
    delays = {"delay_s": 2e-6, "delay_beside_s": 10e-6}
    profile = replace(TABLE, cores=CoreSharing(2, 1, 0.5, {}), **delays)
    # its threads use 2 x 6 us x 0.5 of a core over 16 us: compute beside takes (2 + 0.375) / 2 times as long
    slow = 2.375 / 2
    for beside, expected in (
        (0, 10 + 8 + 1),
        (20, 10 + 16 + (20 - 16 / slow) + 1),
        (8, 10 + 8 * slow + 8 * (1 - 8 * slow / 16) + 1),  # compute is over first; what is left goes on undisturbed
    ):
        during = [compute("F", beside)] if beside else []
        last = compute("STEP", 1, (1,))
        rank = [compute("F", 10), move("all_reduce", "dp", "dp", 6, (0,)), *during, last]
        simulation = simulate(by_hand(rank, rank, groups={"dp": ((0, 1),)}), cluster_of(2, "cpu"), profile)
        assert simulation.periods_ps[0] / US == pytest.approx(expected, abs=1e-3)


def test_a_collective_competes_where_more_ranks_compute_than_there_are_cores() -> None:
    """Four computing ranks on two cores: compute and the collective (9 us on four ranks) take twice as long."""
    profile = replace(TABLE, cores=CoreSharing(2, 1, 0.0, {}))
    rank = [compute("F", 10), move("all_reduce", "dp", "dp", 6, (0,)), compute("F", 3), compute("STEP", 1, (1,))]
    simulation = simulate(by_hand(*[rank] * 4, groups={"dp": ((0, 1, 2, 3),)}), cluster_of(4, "cpu"), profile)
    assert periods(simulation) == [20 + 6 + (9 - 3) + 2] * 4


def test_a_blocked_cpu_host_needs_time_to_wake() -> None:
    """The optimizer waits 6 us for the reduction and 2 us more to come back from its thread; nothing is paid when it
    need not wait."""
    profile = replace(TABLE, wake_s=2e-6, cores=CoreSharing(8, 1, 0.5, {}))
    for beside, expected in ((3, 1 + 6 + 2 + 1), (7, 1 + 7 + 1)):
        rank = [
            compute("F", 1),
            move("all_reduce", "dp", "dp", 6, (0,)),
            compute("F", beside),
            compute("STEP", 1, (1,)),
        ]
        simulation = simulate(by_hand(rank, rank, groups={"dp": ((0, 1),)}), cluster_of(2, "cpu"), profile)
        assert periods(simulation) == [expected] * 2
        assert simulation.accounts[0][-1] // US == (2 if beside == 3 else 0)


def test_a_folded_cpu_node_shares_like_an_unfolded_one() -> None:
    profile = replace(TABLE, issue_s=3e-6, cores=CoreSharing(2, 1, 0.7, {"gemm": 1.2}))
    rank = [compute("F", 10), move("all_reduce", "dp", "dp", 6, (0,)), compute("F", 12), compute("STEP", 1, (1,))]
    program = by_hand(rank, groups={"dp": ((0, 1, 2),)})
    program = replace(program, class_of=(0, 0, 0))
    folded, unfolded = (simulate(program, cluster_of(3, "cpu"), profile, unfold=flag) for flag in (False, True))
    assert len(folded.symmetry_classes) == 1
    assert set(unfolded.periods_ps) == set(folded.periods_ps)


def test_a_program_that_cannot_finish_names_the_instruction() -> None:
    """One rank sends, nobody receives."""
    rank = [compute("F", 1), move("send", "pp_next", "send_fwd", 8, (0,)), compute("STEP", 1, (1,))]
    program = by_hand(rank, [compute("STEP", 1)], groups={"pp_next": ((0, 1),), "pp_prev": ((0, 1),)})
    with pytest.raises(WindtunnelError, match=r"rank 0 is stuck at F SEND0\.1 piece on send_fwd"):
        simulate(program, cluster_of(2), TABLE)


def test_the_number_of_events_is_known() -> None:
    """One event for each instruction alone, one for a meeting of both ranks, two periods."""
    rank = [compute("F", 10), move("all_reduce", "dp", "dp", 8, (0,)), compute("STEP", 1, (1,))]
    simulation = simulate(by_hand(rank, rank, groups={"dp": ((0, 1),)}), cluster_of(2), TABLE, coarse=False)
    assert simulation.events == 2 * (2 + 1 + 2)
