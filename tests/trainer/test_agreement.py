"""Before the first step: all ranks hold the same program, and know how far apart their clocks are."""

import pytest

from compiler import compile_run
from plan.run import Run
from program.errors import InputError
from program.timeline import Clock
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, make_run
from trainer import clocks
from trainer.run import _agree
from windtunnel.job import job_of


def _said(rank: int, runs: list[Run]) -> str:
    try:
        _agree(compile_run(runs[rank]), job_of(runs[rank]), rank)
    except InputError as error:
        return str(error)
    return ""


def test_a_rank_with_another_program_or_run_is_named_on_every_rank(pool: Pool) -> None:
    run = make_run(LLAMA, {"data_parallel": 4})
    other, longer = make_run(GPT, {"data_parallel": 4}), make_run(LLAMA, {"data_parallel": 4}, train={"steps": 7})
    assert pool.run(_said, [run] * 4) == [""] * 4
    for different in (other, longer):  # another program; the same program of another run
        for text in pool.run(_said, [run, run, different, run]):
            assert "ranks [2] compiled another program or run than rank 0" in text


def _clocks(rank: int, one_machine: bool) -> dict[int, Clock]:
    if one_machine:
        return clocks.clocks(rank, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "_boot", lambda r: f"rank {r}")
        return clocks.clocks(rank, 4)


def test_ranks_of_one_machine_share_a_clock(pool: Pool) -> None:
    assert pool.run(_clocks, True) == [{rank: Clock() for rank in range(4)}] * 4


def test_ranks_of_several_machines_measure_their_offsets(pool: Pool) -> None:
    """Here all clocks are really one, so the true offset is 0 and must lie inside the stated error."""
    first, *others = pool.run(_clocks, False)
    assert all(found == first for found in others)
    assert first[0] == Clock()
    for rank in (1, 2, 3):
        assert 0 < first[rank].error_s < 0.1
        assert abs(first[rank].offset_s) <= first[rank].error_s
