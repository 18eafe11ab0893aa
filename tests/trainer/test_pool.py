"""A test of ranks never gets the answers, the workers or the process groups that an earlier test left behind."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.trainer.pool import WORKERS, Pool


def total(rank: int) -> int:
    """The sum of the ranks, by an all-reduce."""
    value = torch.tensor(rank)
    dist.all_reduce(value)
    return int(value)


def rank_2_stays_away(rank: int) -> int:
    """The others wait in the collective for a rank that sleeps."""
    if rank == 2:
        time.sleep(30)
    return total(rank)


def rank_1_fails(rank: int) -> int:
    """One rank raises, the others do not."""
    if rank == 1:
        raise ValueError("one rank's own")
    return rank


def rank_3_dies(rank: int) -> int:
    """One worker ends without a word."""
    if rank == 3:
        os._exit(7)
    return rank


def same(_: int, value: str) -> str:
    """What was asked."""
    return value


@pytest.fixture(scope="module")
def own() -> Iterator[Pool]:
    """Workers of this file's own, so that nobody else's end."""
    workers = Pool()
    yield workers
    workers.close()


def test_a_timeout_is_named_and_the_next_test_gets_its_own_answers(own: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own.run(total) == [6] * WORKERS
    monkeypatch.setattr(own, "answer_s", 1.0)
    with pytest.raises(TimeoutError, match="rank 0 did not answer rank_2_stays_away within 1 s"):
        own.run(rank_2_stays_away)
    monkeypatch.undo()
    assert own.run(total) == [6] * WORKERS  # by a group that nobody waits in


def test_a_late_answer_is_dropped(own: Pool) -> None:
    own.run(same, "first")
    for pipe in own._pipes:
        pipe.send((0, same, ("late",)))  # as a request that an earlier call gave up on
    assert own.run(same, "now") == ["now"] * WORKERS


def test_a_rank_that_raises_or_dies_is_named(own: Pool) -> None:
    with pytest.raises(AssertionError, match=r"rank 1:\n(.*\n)*ValueError: one rank's own"):
        own.run(rank_1_fails)
    with pytest.raises(AssertionError, match="rank 3:\nthe worker died in rank_3_dies"):
        own.run(rank_3_dies)
    assert own.run(total) == [6] * WORKERS
