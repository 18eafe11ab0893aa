"""Two hand-made timelines of one tiny program: two tensor-parallel ranks, one layer's forward, a reduce-scatter, an
optimizer step."""

from collections.abc import Sequence

from program.timeline import Header, Row, Timeline

GROUPS = {"tp": ((0, 1),), "world": ((0, 1),)}
HASH = "ab" * 16


def header(source: str, step_time_s: Sequence[float], hash_: str = HASH, **more: object) -> Header:
    """A header of either source."""
    values = {"source": source, "program_hash": hash_, "device": "cpu" if source == "predicted" else "a machine"}
    values |= {"groups": GROUPS, "steps": tuple(range(len(step_time_s))), "step_times_s": tuple(step_time_s)}
    return Header(**(values | more))  # type: ignore[arg-type]


def rows(
    ranks: Sequence[int], core_s: float, transfer_s: float, late_s: Sequence[float] = (0, 0), step: int = 0
) -> list[Row]:
    """F attn.core for `core_s`, its reduce-scatter (`late_s` by rank: when each starts), STEP of 1 ms."""
    made = []
    for rank in ranks:
        begin = core_s + late_s[rank]
        end = core_s + max(late_s) + transfer_s
        made += [
            _row(rank, 0, "F", "F", "attn.core", "compute", 0.0, core_s, step),
            _row(rank, 1, "F", "RS", "attn.core", "tp", begin, end, step, bytes=4096, group="tp", channel="tp", seq=0),
            _row(rank, 2, "step", "STEP", "adamw", "compute", end, end + 1e-3, step),
        ]
    return made


def _row(
    rank: int,
    id_: int,
    phase: str,
    kind: str,
    piece: str,
    stream: str,
    start_s: float,
    end_s: float,
    step: int,
    **more: object,
) -> Row:
    values = {"rank": rank, "id": id_, "phase": phase, "kind": kind, "micro": -1 if phase == "step" else 0, "unit": 1}
    values |= {
        "piece": piece,
        "stream": stream,
        "issued_s": start_s,
        "ready_s": start_s,
        "start_s": start_s,
        "end_s": end_s,
    }
    return Row(**(values | {"step": step} | more))  # type: ignore[arg-type]


def predicted(
    core_s: float = 10e-3, transfer_s: float = 2e-3, ranks: Sequence[int] = (0, 1), **more: object
) -> Timeline:
    """The forecast: step = core + transfer + 1 ms."""
    return Timeline.from_rows(
        header("predicted", [core_s + transfer_s + 1e-3], **more), rows(ranks, core_s, transfer_s)
    )


def measured(
    core_s: float = 8e-3, transfer_s: float = 4e-3, late_s: Sequence[float] = (0, 0), steps: int = 3, **more: object
) -> Timeline:
    """The measurement: `steps` equal recorded steps."""
    times = [core_s + max(late_s) + transfer_s + 1e-3] * steps
    made = [row for step in range(steps) for row in rows((0, 1), core_s, transfer_s, late_s, step)]
    return Timeline.from_rows(header("measured", times, **more), made)
