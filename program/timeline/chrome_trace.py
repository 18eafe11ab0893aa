"""Timelines as a Chrome trace (chrome://tracing, ui.perfetto.dev): forecast and measurement of the same ranks, one
above the other.

A process is one rank of one source, a thread one of its streams. Slices of a thread never overlap and come sorted, as
the format asks of complete ("X") events: times are rounded to whole nanoseconds, both ends of a slice alike, and a
slice that a clock error let begin before its predecessor ended is cut there (`args.cut_us` says by how much). The
first start of each timeline is time zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from program import STREAMS
from program.timeline import Timeline
from program.timeline.skew import split

Event = dict[str, Any]


def to_chrome(*timelines: Timeline) -> dict[str, Any]:
    """All timelines side by side as one trace object: `json.dump` it into a .json file. Times are microseconds."""
    events: list[Event] = []
    for number, timeline in enumerate(timelines):
        pids = {
            rank: 1 + number + len(timelines) * place for place, rank in enumerate(sorted(set(timeline.ints("rank"))))
        }
        events += _names(timeline, pids)
        events += _slices(timeline, pids)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _tid(stream: str) -> int:
    return STREAMS.index(stream) + 1 if stream in STREAMS else len(STREAMS) + 1


def _names(timeline: Timeline, pids: dict[int, int]) -> Iterator[Event]:
    """Metadata events: what each process and thread is called, and in which order they are drawn."""
    header = timeline.header
    for rank, pid in pids.items():
        yield _meta("process_name", pid, 0, name=f"rank {rank} {header.source} ({header.device})")
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    used = sorted(
        set(zip(timeline.ints("rank"), timeline.text("stream"), strict=True)), key=lambda pair: (pair[0], _tid(pair[1]))
    )
    for rank, stream in used:
        yield _meta("thread_name", pids[rank], _tid(stream), name=stream)
        yield _meta("thread_sort_index", pids[rank], _tid(stream), sort_index=_tid(stream))


def _meta(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _slices(timeline: Timeline, pids: dict[int, int]) -> Iterator[Event]:
    """One complete event a row, by process, thread and start."""
    if not len(timeline):
        return
    ranks, streams, labels = timeline.ints("rank"), timeline.text("stream"), timeline.labels()
    zero = float(timeline.columns["start_s"].min())
    start_ns = np.rint((timeline.columns["start_s"] - zero) * 1e9).astype(np.int64)
    end_ns = np.rint((timeline.columns["end_s"] - zero) * 1e9).astype(np.int64)
    wait_s, transfer_s = split(timeline)
    order = sorted(range(len(timeline)), key=lambda r: (pids[ranks[r]], _tid(streams[r]), start_ns[r], end_ns[r]))
    kinds, steps, ids, seqs = timeline.text("kind"), timeline.ints("step"), timeline.ints("id"), timeline.ints("seq")
    bytes_, groups = timeline.ints("bytes"), timeline.text("group")
    track, free_ns = (-1, -1), 0
    for row in order:
        here = (pids[ranks[row]], _tid(streams[row]))
        free_ns = free_ns if here == track else 0
        track = here
        begin = max(int(start_ns[row]), free_ns)
        free_ns = max(int(end_ns[row]), begin)
        args: Event = {"id": ids[row], "step": steps[row]}
        if begin > start_ns[row]:
            args["cut_us"] = (begin - int(start_ns[row])) / 1000
        for name in ("issued_s", "ready_s"):
            if not np.isnan(moment := timeline.columns[name][row]):
                args[name[:-2] + "_us"] = round((float(moment) - zero) * 1e6, 3)
        if seqs[row] >= 0:
            args |= {"group": groups[row], "seq": seqs[row], "bytes": bytes_[row]}
            args |= {"wait_us": round(wait_s[row] * 1e6, 3), "transfer_us": round(transfer_s[row] * 1e6, 3)}
        yield {
            "ph": "X", "name": labels[row], "cat": kinds[row], "pid": here[0], "tid": here[1],
            "ts": begin / 1000, "dur": (free_ns - begin) / 1000, "args": args,
        }  # fmt: skip
