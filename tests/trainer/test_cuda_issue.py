"""What the host asks of CUDA for a step, with streams and events that keep order but need no device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiler import compile_run
from program import expand
from tests.trainer.fake_cuda import Device, Event, Knowledge, install
from tests.trainer.ranks import LLAMA, make_run
from trainer.bodies import computation
from trainer.marks import captured, marked
from trainer.status import Status
from trainer.storage import Storage
from trainer.streams import Op, StreamError
from trainer.streams_cuda import CudaStreams

LAYOUTS = {
    "tp": {"tensor_parallel": 2, "sequence_parallel": True},
    "pp": {"pipeline_parallel": 2},
    "dp": {"data_parallel": 2, "zero_stage": 1},
    "all": {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2, "data_parallel": 2},
    "host": {"zero_stage": 1, "offload": {"optimizer": "cpu"}},
}


def instructions(plan: dict[str, Any]) -> list[Op]:
    """The ops of rank 0 of a tiny run, with bodies that do nothing."""
    program = compile_run(make_run(LLAMA, plan)).classes[0]
    places: dict[int, tuple[str, int]] = {}
    ordinals: dict[str, int] = {}
    rows = list(expand(program))
    waited = {wait for row in rows for wait in row.waits}
    for row in rows:
        ordinal = ordinals.setdefault(row.instruction.stream, 0)
        places[row.id], ordinals[row.instruction.stream] = (row.instruction.stream, ordinal), ordinal + 1
    return [
        Op(
            row.id,
            *places[row.id],
            str(row.id),
            lambda: None,
            tuple(places[wait] for wait in row.waits),
            row.id in waited,
            row.instruction.host_sync,
        )
        for row in rows
    ]


def watched(ops: list[Op], device: Device) -> tuple[list[Op], dict[tuple[str, int], Knowledge], dict[str, int]]:
    """The ops with bodies that note what had finished before them, and the id of each stream."""
    known: dict[tuple[str, int], Knowledge] = {}
    ids: dict[str, int] = {}

    def watch(op: Op) -> Op:
        def run() -> None:
            ids[op.stream] = device.current.stream_id
            known[op.stream, op.ordinal] = device.run()

        return replace(op, run=run)

    return [watch(op) for op in ops], known, ids


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_instruction_runs_after_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, layout: str, record: bool
) -> None:
    device = install(monkeypatch)
    ops, known, ids = watched(instructions(LAYOUTS[layout]), device)
    streams = CudaStreams(0, sorted({op.stream for op in ops}), Status(), 1.0, torch.device("cpu"))
    for step in range(2):
        before = {s: device.streams[i].ran for s, i in ids.items()}
        streams.begin(step, record)
        streams.issue_all(ops)
        streams.drain({})
        for op in ops:
            for stream, ordinal in op.waits:
                assert known[op.stream, op.ordinal].get(ids[stream], 0) > before.get(stream, 0) + ordinal, op
        assert set(streams.finish()) == ({op.id for op in ops} if record else set())
    assert len(ids) == len({op.stream for op in ops})


def test_a_lost_wait_is_lost_on_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams order nothing that the program does not ask for."""
    device = install(monkeypatch)
    ops = instructions(LAYOUTS["tp"])
    lost = next(i for i, op in enumerate(ops) if op.stream == "tp" and op.waits)
    (wait,) = ops[lost].waits
    ops[lost] = replace(ops[lost], waits=())
    ops, known, ids = watched(ops, device)
    streams = CudaStreams(0, ["compute", "dp", "tp"], Status(), 1.0, torch.device("cpu"))
    streams.begin(0, False)
    streams.issue_all(ops)
    assert known["tp", ops[lost].ordinal].get(ids["compute"], 0) <= wait[1]


def test_a_later_step_makes_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """One event after an instruction that is waited for and one before what the host waits for, one wait for each
    declared, and no event made twice."""
    device = install(monkeypatch)
    ops = instructions(LAYOUTS["tp"])
    streams = CudaStreams(0, ["compute", "dp", "tp"], Status(), 1.0, torch.device("cpu"))
    made = []
    for step in range(2):
        device.asked.clear()
        streams.begin(step, False)
        streams.issue_all(ops)
        made.append(len(device.events))
    assert made[0] == made[1] == sum((op.waited or op.host_sync) + op.host_sync for op in ops)
    assert device.asked["record"] == made[0]
    assert device.asked["wait"] == sum(len(op.waits) for op in ops)
    assert device.asked["switch"] == sum(a.stream != b.stream for a, b in zip(ops, ops[1:] + ops[:1], strict=True))


def test_a_body_takes_its_arguments_and_puts_its_results() -> None:
    run = make_run(LLAMA, {})
    storage = Storage(compile_run(run).classes[0], torch.device("cpu"))
    first = len(storage.table)
    storage.table += [torch.ones(2), torch.full((2,), 3.0), None, torch.zeros(2)]
    for counts in (True, False):
        storage.counts = counts
        storage.table[first + 2] = None

        def add(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.stack(given).sum(0),)

        computation(storage, add, [first, first + 1], [first + 2], [])()
        made = storage.tensor(first + 2)
        assert made.tolist() == [4.0, 4.0]
        computation(storage, lambda *_: (), [first + 2], [], [first + 2])()
        assert storage.table[first + 2] is None
        with pytest.raises(ValueError, match="zip"):
            computation(storage, lambda: (), [], [first + 2], [])()


def test_a_read_of_what_never_happens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host asks the device before it reads from it: a collective whose peer is gone ends in an error, not in a
    hang inside torch."""
    device = install(monkeypatch)
    read: list[bool] = []
    op = Op(0, "compute", 0, "step LOSS0 loss", lambda: read.append(True), (), False, True)
    streams = CudaStreams(2, ["compute"], Status(), 0.02, torch.device("cpu"))
    monkeypatch.setattr(Event, "query", lambda _: False)
    streams.begin(0, False)
    with pytest.raises(StreamError, match="rank 2: waited 0.02 s for the device to finish step LOSS0 loss"):
        streams.issue_all([op])
    assert device.asked["record"] == 1
    assert read == []


def test_instructions_are_ranges_for_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by id and label, closed also when the instruction fails, and only a recorded step is captured."""
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: said.append(f"push {name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("pop"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("idle"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: said.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: said.append("stop"))
    ops = [marked(replace(op, run=lambda: said.append("run"))) for op in instructions({})[:2]]
    with captured(torch.device("cuda", 0), 7):
        for op in ops:
            op.run()
    inner = [word for op in ops for word in (f"push {op.id} {op.label}", "run", "pop")]
    assert said == ["idle", "start", "push step 7 on cuda:0", *inner, "idle", "pop", "stop"]
    said.clear()
    with pytest.raises(ZeroDivisionError):
        marked(replace(ops[0], run=lambda: 1 / 0)).run()  # type: ignore[arg-type, return-value]
    assert said[-1] == "pop"
