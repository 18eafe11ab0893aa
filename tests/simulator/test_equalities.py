"""Coarse equals fine and folded equals unfolded, to the picosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plan.timeline import TIMES
from simulator.flight import Flight, fly
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import small

PLANS: dict[str, dict[str, Any]] = {
    "one": {"global_batch_size": 2},
    "tp2": {"tensor_parallel": 2, "global_batch_size": 2},
    "tp2-sp": {"tensor_parallel": 2, "sequence_parallel": True, "global_batch_size": 3},
    "dp2": {"data_parallel": 2, "global_batch_size": 4},
    "dp2-zero1": {"data_parallel": 2, "global_batch_size": 4, "zero_stage": 1},
    "pp2": {"pipeline_parallel": 2, "global_batch_size": 5},
    "pp4-gpipe": {"pipeline_parallel": 4, "schedule": "gpipe", "global_batch_size": 6},
    "tp2-pp2-dp2": {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "data_parallel": 2,
        "global_batch_size": 12,
        "zero_stage": 1,
    },
    "sp-pp4-full": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "pipeline_parallel": 4,
        "global_batch_size": 8,
        "recompute": "full",
    },
    "interleaved": {
        "pipeline_parallel": 2,
        "virtual_pipeline": 2,
        "schedule": "interleaved-1f1b",
        "data_parallel": 3,
        "global_batch_size": 12,
    },
}
PROFILES = {
    "device-bound": FakeProfile(issue_s=1e-8),
    "host-bound": FakeProfile(issue_s=4e-4),
    "between": FakeProfile(issue_s=2e-5),
    "one-way": FakeProfile(issue_s=2e-6, factors={("compute", "tp"): 1.25, ("compute", "dp"): 1.4}),
    "one-way-transfers": FakeProfile(issue_s=2e-5, factors={("compute", "tp"): 1.25, ("compute", "transfer"): 1.5}),
    "both-ways": FakeProfile(
        factors={("compute", "tp"): 1.25, ("tp", "compute"): 1.1, ("compute", "dp"): 1.4, ("dp", "compute"): 1.2}
    ),
    "all-ways": FakeProfile(
        issue_s=2e-6,
        factors={
            ("compute", "transfer"): 1.3,
            ("transfer", "compute"): 1.2,
            ("tp", "transfer"): 2.0,
            ("compute", "tp"): 1.5,
        },
    ),
}


def rows(flight: Flight) -> dict[str, Any]:
    """Every time of the timeline in whole picoseconds."""
    columns = flight.timeline().columns
    return {name: np.rint(columns[name] * 1e12).astype(np.int64).tolist() for name in TIMES} | {
        "id": columns["id"].tolist()
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("plan", PLANS)
def test_coarse_equals_fine(plan: str, profile: str) -> None:
    program, run = small(PLANS[plan])
    coarse = fly(program, run, PROFILES[profile])
    fine = fly(program, run, PROFILES[profile], coarse=False)
    assert coarse.periods_ps == fine.periods_ps
    assert rows(coarse) == rows(fine)
    assert coarse.accounts == fine.accounts
    assert coarse.events <= fine.events


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("plan", PLANS)
def test_folded_equals_unfolded(plan: str, profile: str) -> None:
    program, run = small(PLANS[plan])
    folded = fly(program, run, PROFILES[profile])
    unfolded = fly(program, run, PROFILES[profile], unfold=True)
    assert len(unfolded.colours) == program.world
    periods = {
        rank: time for colour, time in zip(folded.colours, folded.periods_ps, strict=True) for rank in colour.ranks
    }
    assert periods == dict(enumerate(unfolded.periods_ps))
    accounts = {
        rank: account for colour, account in zip(folded.colours, folded.accounts, strict=True) for rank in colour.ranks
    }
    assert accounts == dict(enumerate(unfolded.accounts))


def test_whole_nodes_fold_to_stages() -> None:
    program, run = small({"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "global_batch_size": 4})
    flight = fly(program, run, FakeProfile())
    assert [len(colour.ranks) for colour in flight.colours] == [8, 8]


def test_ranks_that_cross_nodes_are_told_apart() -> None:
    """Three replicas of two stages on nodes of four: one pipeline edge stays on its node, two cross."""
    plan = {"pipeline_parallel": 2, "data_parallel": 3, "global_batch_size": 6}
    program, run = small(plan)
    folded, unfolded = fly(program, run, FakeProfile()), fly(program, run, FakeProfile(), unfold=True)
    assert len(folded.colours) > 2
    periods = {
        rank: time for colour, time in zip(folded.colours, folded.periods_ps, strict=True) for rank in colour.ranks
    }
    assert periods == dict(enumerate(unfolded.periods_ps))
