"""Schedules: golden orders, closed forms, and the one global order of transfers."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.schedules import placements
from plan.parallel import Plan
from plan.pipeline import ROWS, SCHEDULES, TIMES, Slot, abstract_ends, orders
from program import Repeated
from tests.simulator.runs import small

ROOT = Path(__file__).parents[2]


def plan(p: int, m: int, v: int = 1, schedule: str = "1f1b", group: int | None = None) -> Plan:
    return Plan(
        pipeline_parallel=p,
        virtual_pipeline=v,
        schedule="interleaved-1f1b" if v > 1 else schedule,
        global_batch_size=m,
        microbatch_group=group or p,
    )


def text(slots: tuple[Slot, ...], chunks: bool = False) -> str:
    return " ".join(f"{s.phase}{s.micro}" + (f"c{s.chunk}" if chunks else "") for s in slots)


def test_1f1b_warms_up_alternates_and_drains() -> None:
    first, last = orders(plan(2, 4))
    assert text(first) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(last) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_zb_h1_keeps_weight_gradients_for_the_drain() -> None:
    """The first stage parts nothing; the last of three keeps two back, and those that meet their own are joined."""
    first, middle, last = orders(plan(3, 4, schedule="zb-h1"))
    assert text(first) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(middle) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"
    assert text(last) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"
    assert text(orders(plan(2, 1, schedule="zb-h1"))[1]) == "F0 B0"


@pytest.mark.parametrize(("p", "m"), [(1, 64), (2, 63), (4, 80)])
def test_the_steady_state_of_zb_h1_is_a_repetition(p: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"pipeline_parallel": p, "schedule": "zb-h1", "global_batch_size": m}
    short, _ = small(wanted)
    assert all(isinstance(stage.calls, Repeated) for stage in short.classes)
    monkeypatch.setattr("compiler.schedules.FEWEST", m)
    whole, _ = small(wanted)
    assert not any(isinstance(stage.calls, Repeated) for stage in whole.classes)
    assert short.hash == whole.hash


def test_nobody_compares_names_of_schedules() -> None:
    """They are asked what they do (`plan.pipeline`); importers and rows of measurements read other people's names."""
    names = {ast.unparse(ast.Constant(name)) for name in (*SCHEDULES, ROWS.name)} - {"'csv'"}
    rooms = ("plan", "compiler", "program", "simulator", "trainer", "reports", "windtunnel")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    trees = {str(file): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    compared = {file: node.lineno for file, tree in trees.items() for node in ast.walk(tree)
                if isinstance(node, ast.Compare) and names & set(map(ast.unparse, ast.walk(node)))}  # fmt: skip
    assert compared == {}


def test_gpipe_runs_all_forwards_first() -> None:
    assert text(orders(plan(2, 3, schedule="gpipe"))[1]) == "F0 F1 F2 B0 B1 B2"


def test_interleaved_golden_order_of_two_stages_two_chunks_four_micro_batches() -> None:
    """The case of Megatron-LM: p = 2, v = 2, m = 4."""
    first, last = orders(plan(2, 4, 2))
    assert text(first, True) == ("F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0")
    assert text(last, True) == ("F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (8, 8), (5, 17)])
def test_bubble_is_p_minus_1_of_m_plus_p_minus_1(p: int, m: int, schedule: str) -> None:
    ends = abstract_ends(orders(plan(p, m, schedule=schedule)), 1)
    span, busy = max(ends.values()), m * (TIMES["F"] + TIMES["B"])
    assert (span - busy) / span == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 32)])
def test_1f1b_holds_at_most_p_minus_r_micro_batches(p: int, m: int) -> None:
    for stage, slots in enumerate(orders(plan(p, m))):
        held = peak = 0
        for slot in slots:
            held += 1 if slot.phase == "F" else -1
            peak = max(peak, held)
        assert peak == min(m, p - stage)


def test_orders_that_wait_for_each_other_are_named() -> None:
    swapped = [list(o) for o in orders(plan(2, 2))]
    swapped[1] = swapped[1][::-1]
    with pytest.raises(ValueError, match="waits in a circle: stage 0 .*; stage 1"):
        abstract_ends(tuple(tuple(o) for o in swapped), 1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    p, v = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    v = v if p > 1 else 1
    m = draw(st.integers(1, 5)) * (p if v > 1 else 1)
    return plan(p, m, v, draw(st.sampled_from(["gpipe", "1f1b"])))


@given(plans())
def test_every_slot_once_and_transfers_in_one_global_order(drawn: Plan) -> None:
    placed = placements(drawn)
    sent, received = [], []
    for placement in placed:
        assert len(set(placement.slots)) == len(placement.slots) == 2 * drawn.microbatches * drawn.virtual_pipeline
        issued = [t for i in range(len(placement.slots)) for t in (*placement.receives[i], *placement.sends[i])]
        assert issued == sorted(issued)
        for i, slot in enumerate(placement.slots):
            assert all(t.micro == slot.micro and t.chunk == slot.chunk for t in placement.sends[i])
            received += placement.receives[i]
            sent += placement.sends[i]
    assert sorted(sent) == sorted(received)


@given(plans())
def test_a_receive_is_posted_before_its_consumer(drawn: Plan) -> None:
    for placement in placements(drawn):
        where = {slot: i for i, slot in enumerate(placement.slots)}
        for i, transfers in enumerate(placement.receives):
            for t in transfers:
                assert i <= where[Slot("B" if t.backward else "F", t.micro, t.target_chunk)]


def test_1f1b_posts_a_receive_one_slot_ahead_where_the_global_order_allows() -> None:
    """The last stage of four computes F0 B0 F1 …: it posts F1 before B0, so that the transfer runs beside B0."""
    last = placements(plan(4, 8))[3]
    assert [[t.micro for t in posted] for posted in last.receives[:4]] == [[0], [1], [], [2]]
