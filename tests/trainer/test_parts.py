"""The small parts on their own: text, initial weights, learning rate, status, streams that do not hang."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler import compile_run
from plan.run import LrSchedule, Optimizer
from program.errors import InputError
from tests.trainer.ranks import GPT, LLAMA, initial_weights, make_run
from trainer import status
from trainer.data import TokenFile, builtin_file, permuted
from trainer.init import shard
from trainer.schedule_lr import Rate, learning_rate
from trainer.streams import CpuStreams, Op, StreamError
from windtunnel.job import rate_of, text_of

# ---------------------------------------------------------------- text


def test_an_epoch_visits_every_window_once() -> None:
    for size in (1, 2, 3, 64, 100):
        assert sorted(permuted(i, size, "key") for i in range(size)) == list(range(size))
    assert [permuted(i, 100, "key") for i in range(100)] != [permuted(i, 100, "other") for i in range(100)]


def test_a_sample_depends_on_seed_step_and_its_number_alone() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    whole = TokenFile(tokens, 10, 8, seed=1, vocab=1000).batch(3, tuple(range(8)))
    again = TokenFile(tokens, 10, 8, seed=1, vocab=1000)
    assert torch.equal(torch.cat([again.batch(3, (s,)) for s in range(8)]), whole)
    assert not torch.equal(TokenFile(tokens, 10, 8, seed=2, vocab=1000).batch(3, tuple(range(8))), whole)
    assert all(int(row[-1]) - int(row[0]) == 10 for row in whole)


def test_the_builtin_text_is_python_source() -> None:
    data = text_of(make_run(LLAMA, {}))
    assert builtin_file() == builtin_file()
    assert len(data.tokens) > 1_000_000
    assert b"import " in bytes(data.tokens[:100_000])


def test_data_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros(100))
    np.save(tmp_path / "short.npy", np.zeros(3, np.uint8))
    np.savez(tmp_path / "several.npz", np.zeros(3))
    (tmp_path / "empty.npy").write_bytes(b"")
    for name, reason in (
        ("absent.npy", "not a token file"),
        ("empty.npy", "not a token file"),
        ("several.npz", "an archive of several arrays"),
        ("floats.npy", "integers"),
        ("short.npy", "needs 17"),
    ):
        with pytest.raises(InputError, match=reason):
            text_of(make_run(LLAMA, {}, data={"path": str(tmp_path / name)}))


# ---------------------------------------------------------------- initial weights


@pytest.mark.parametrize("tp", [2, 4])
def test_initial_weights_do_not_depend_on_the_layout(tp: int) -> None:
    run = make_run(GPT, {"tensor_parallel": tp})
    full = initial_weights(run)
    for param in compile_run(run).classes[0].params:
        if param.shard_dim is None:
            parts = [torch.cat([torch.from_numpy(v) for _, v in shard(param, run.train.seed, 0)])]
            assert torch.equal(parts[0].double(), full[param.name])
    table = next(p for p in compile_run(run).classes[0].params if p.name == "embed.tokens.weight")
    rows = [torch.from_numpy(v) for rank in range(tp) for _, v in shard(table, run.train.seed, rank)]
    joined = torch.cat(rows).double()
    assert torch.equal(joined[: run.model.vocab], full["embed.tokens.weight"])
    assert joined.shape[0] > run.model.vocab
    assert not joined[run.model.vocab :].any()
    assert float(joined[: run.model.vocab].std()) == pytest.approx(run.model.init_std, rel=0.05)


# ---------------------------------------------------------------- learning rate


def test_the_rate_warms_up_and_falls_to_its_floor() -> None:
    optimizer = Optimizer(lr=1.0, schedule=LrSchedule("cosine", warmup_steps=4, decay_steps=12, min_lr=0.1))
    rates = [learning_rate(rate_of(optimizer), step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == [pytest.approx(0.1)] * 8
    assert learning_rate(Rate(1.0, "linear", 0, 10, 0.0), 5) == pytest.approx(0.5)
    assert learning_rate(Rate(1.0, "constant", 0, 10, 0.0), 50) == 1.0


def test_the_rate_falls_with_the_root_of_the_step() -> None:
    rate = Rate(1.0, "inverse-sqrt", 4, 12, 0.1)
    assert [learning_rate(rate, step) for step in (1, 3, 15, 63)] == [0.5, 1.0, 0.5, 0.25]
    assert learning_rate(rate, 10**6) == 0.1


@pytest.mark.parametrize(
    ("anneal", "halfway"), [("linear", 0.5), ("cosine", 0.5), ("exponential", 2**0.5 - 1), ("minus-sqrt", 1 - 0.5**0.5)]
)
def test_the_rate_stays_and_falls_in_its_last_steps(anneal: str, halfway: float) -> None:
    rate = Rate(1.0, "wsd", 2, 100, 0.0, anneal_steps=20, anneal=anneal)
    assert [learning_rate(rate, step) for step in (2, 50, 80)] == [1.0, 1.0, 1.0]
    assert learning_rate(rate, 90) == pytest.approx(halfway)
    assert learning_rate(rate, 100) == learning_rate(rate, 200) == pytest.approx(0.0)


# ---------------------------------------------------------------- status


def test_another_process_reads_where_a_rank_is(tmp_path: Path) -> None:
    mine = status.Status(tmp_path / "rank-0")
    assert status.read(tmp_path / "rank-0") == (-1, {})
    mine.begin(7)
    mine.set("compute", 12)
    mine.set("send_fwd", 3)
    assert status.read(tmp_path / "rank-0") == (7, {"compute": 12, "send_fwd": 3})
    assert (tmp_path / "rank-0").stat().st_size == 64


# ---------------------------------------------------------------- streams


@pytest.fixture
def streams() -> Iterator[CpuStreams]:
    """Compute, tp and dp, with waits of half a second."""
    made = CpuStreams(3, ["compute", "dp", "tp"], status.Status(), wait_s=0.5)
    yield made
    made.close()


def _op(
    number: int, stream: str, ordinal: int, run: object = lambda: None, waits: tuple[tuple[str, int], ...] = ()
) -> Op:
    return Op(number, stream, ordinal, f"op {number}", run, waits, True, False)  # type: ignore[arg-type]


def test_streams_keep_their_order_and_their_waits(streams: CpuStreams) -> None:
    done: list[int] = []
    gate = threading.Event()

    def slow() -> None:
        gate.wait(2)
        done.append(0)

    streams.begin(0, record=True)
    streams.issue(_op(0, "tp", 0, slow))
    streams.issue(_op(1, "dp", 0, lambda: done.append(1), (("tp", 0),)))
    streams.issue(_op(2, "compute", 0, lambda: done.append(2)))
    gate.set()
    streams.issue(_op(3, "compute", 1, lambda: done.append(3), (("dp", 0),)))
    streams.drain({"tp": 1, "dp": 1, "compute": 2})
    assert done == [2, 0, 1, 3]
    stamps = streams.finish()
    assert set(stamps) == {0, 1, 2, 3}
    assert stamps[1].start_s >= stamps[0].end_s
    assert stamps[3].ready_s >= stamps[1].end_s


def test_the_host_waits_where_an_instruction_blocks_it(streams: CpuStreams) -> None:
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(0)

    streams.begin(0, record=False)
    streams.issue(replace(_op(0, "dp", 0, slow), host_sync=True))
    done.append(1)
    assert done == [0, 1]


def test_a_wait_that_cannot_end_says_who_waits_for_what(streams: CpuStreams) -> None:
    streams.begin(0, record=False)
    streams.issue(_op(0, "tp", 0, lambda: time.sleep(1.0)))
    with pytest.raises(
        StreamError, match=r"rank 3: op 1 waited 0\.5 s for instruction 0 of stream tp .*last began op 0"
    ):
        streams.issue(_op(1, "compute", 0, waits=(("tp", 0),)))


def test_a_stream_that_fails_wakes_who_waits_and_is_named(streams: CpuStreams) -> None:
    def fail() -> None:
        raise RuntimeError("connection closed by peer")

    streams.begin(0, record=False)
    streams.issue(_op(0, "dp", 0, fail))
    with pytest.raises(StreamError, match="dp stream at op 0 failed: connection closed by peer"):
        streams.issue(_op(1, "compute", 0, waits=(("dp", 0),)))
