"""The timeline: what is stored comes back, waits are told apart from transfers, traces nest."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.errors import InputError
from program.timeline import (
    Clock,
    Header,
    Row,
    Timeline,
    load,
    merge,
    save,
)
from program.timeline.chrome_trace import to_chrome
from program.timeline.skew import split

HEADER = Header(
    source="measured",
    program_hash="ab" * 16,
    device="cpu",
    run={"model": {"preset": "gpt2-124m"}},
    versions={"torch": "2.13"},
    clocks={0: Clock(), 1: Clock(1.5e-3, 2e-6)},
    groups={"tp": ((0, 1),), "pp_next": ((0, 2),), "pp_prev": ((0, 2),)},
    steps=(7,),
    step_times_s=(0.25,),
)


def row(rank: int, start_s: float, end_s: float, **more: object) -> Row:
    values: dict[str, object] = {
        "id": 3, "phase": "F", "kind": "AG", "micro": 0, "unit": 1, "piece": "attn.in", "stream": "tp",
        "issued_s": start_s, "ready_s": start_s, "bytes": 4096, "group": "tp", "channel": "fwd", "seq": 0, "step": 7,
    }  # fmt: skip
    return Row(**(values | {"rank": rank, "start_s": start_s, "end_s": end_s} | more))  # type: ignore[arg-type]


def test_a_saved_timeline_loads_equal_and_its_bytes_do_not_depend_on_the_file(tmp_path: Path) -> None:
    rows = [row(0, 0.0, 1.0), row(1, 0.5, 1.0, issued_s=math.inf * 0)]
    timeline = Timeline.from_rows(HEADER, rows)
    save(timeline, tmp_path / "a.json.gz")
    save(timeline, tmp_path / "deeper" / "b.json.gz")
    loaded = load(tmp_path / "a.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "deeper" / "b.json.gz").read_bytes()
    assert loaded.header == HEADER
    assert next(iter(loaded.rows())) == rows[0]
    assert math.isnan(list(loaded.rows())[1].issued_s)
    assert loaded.labels() == ["F AG0.1 attn.in"] * 2 == [r.label for r in rows]


@pytest.mark.parametrize("content", [b"", b"not gzip", None])
def test_what_is_no_timeline_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.json\.gz"):
        load(path)


def test_a_row_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    save(Timeline.from_rows(HEADER, [row(0, 2.0, 1.0)]), tmp_path / "t.json.gz")
    with pytest.raises(InputError, match=r"rank 0, F AG0.1 attn.in.*ends at 1.0"):
        load(tmp_path / "t.json.gz")


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InputError, match="column rank has 1 entries"):
        Timeline.from_columns(HEADER, {"id": [1, 2], "rank": [0]})


def test_a_collective_waits_until_its_last_member_starts() -> None:
    timeline = Timeline.from_rows(HEADER, [row(0, 0.0, 3.0), row(1, 2.0, 3.0), row(0, 3.0, 4.0, group="", seq=-1)])
    wait_s, transfer_s = split(timeline)
    assert wait_s.tolist() == [2.0, 0.0, 0.0]
    assert transfer_s.tolist() == [1.0, 1.0, 1.0]


def test_a_transfer_meets_its_neighbour_on_the_ring_of_stages() -> None:
    sent = row(0, 0.0, 2.0, group="pp_next", kind="SEND", stream="send_fwd")
    received = row(2, 1.5, 2.0, group="pp_prev", kind="RECV", stream="recv_fwd")
    wait_s, _ = split(Timeline.from_rows(HEADER, [sent, received]))
    assert wait_s.tolist() == [1.5, 0.0]


def test_a_folded_rank_speaks_for_the_members_it_stands_for() -> None:
    header = Header(
        source="predicted",
        program_hash="",
        device="h200",
        groups={"dp": ((0, 5), (1, 4))},
        stands_for={0: (0, 1), 4: (4, 5)},
    )
    late = [row(0, 0.0, 2.0, group="dp"), row(4, 1.0, 2.0, group="dp")]
    wait_s, _ = split(Timeline.from_rows(header, late))
    assert wait_s.tolist() == [1.0, 0.0]


def test_ranks_record_apart_and_are_merged() -> None:
    one = Timeline.from_rows(HEADER, [row(0, 0.0, 1.0)])
    two = Timeline.from_rows(HEADER, [row(1, 0.0, 1.0, piece="mlp.in")])
    assert [r.rank for r in merge([one, two]).rows()] == [0, 1]
    assert merge([one, two]).header == HEADER
    other = Timeline.from_rows(Header(source="measured", program_hash="cd", device="cpu"), [])
    with pytest.raises(InputError, match="cannot be merged"):
        merge([one, other])


times = st.integers(0, 10**6)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["compute", "tp"]), times, times), max_size=30))
def test_slices_of_a_track_never_overlap_and_come_sorted(spans: list[tuple[int, str, int, int]]) -> None:
    rows = [
        row(rank, a * 1e-7, (a + b) * 1e-7, stream=stream, id=i, seq=-1, group="")
        for i, (rank, stream, a, b) in enumerate(spans)
    ]
    predicted = Timeline.from_rows(Header(source="predicted", program_hash="", device="h200"), rows)
    trace = json.loads(json.dumps(to_chrome(predicted, Timeline.from_rows(HEADER, rows)), allow_nan=False))
    free: dict[tuple[int, int], float] = {}
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 2 * len(rows)
    for event in slices:
        track = (event["pid"], event["tid"])
        assert event["ts"] >= free.get(track, 0.0) - 1e-6
        free[track] = event["ts"] + event["dur"]
    named = {event["args"].get("name") for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {f"rank {rank} predicted (h200)" for rank, *_ in spans} <= named


def test_a_whole_program_is_stored_as_columns_quickly_and_small() -> None:
    count = 20_000
    columns = {name: np.arange(count) for name in ("id", "rank", "micro", "unit")}
    columns |= {name: np.arange(count) * 1e-6 for name in ("issued_s", "ready_s", "start_s", "end_s")}
    words = {name: ["F"] * count for name in ("phase", "kind", "piece", "stream")}
    timeline = Timeline.from_columns(HEADER, columns | words)
    assert len(timeline) == count
    assert timeline.words.count("F") == 1
    assert sum(column.nbytes for column in timeline.columns.values()) <= 100 * count
