"""The proofs are proved by mutation: an edit of a program is refused, or trains to the same numbers; a sound one is
accepted. A sample here, everything under `make soak`, which counts by kind what became of the edits."""

from collections import Counter
from collections.abc import Callable

import pytest

from compiler import compile_run
from program.proofs import prove
from tests.program.kinds_of_edit import KINDS
from tests.program.sound_edits import SOUND
from tests.soak import soaking
from tests.trainer.campaign import PLANS, apart, numbers, run_of, verdict
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, make_run

SOAK = soaking()
DRAWS, EVERY, TRAINED = (12, 1, 10_000) if SOAK else (1, 6, 1)


def test_there_are_enough_kinds_and_plans() -> None:
    assert len(KINDS) >= 40
    assert len(PLANS) >= 14
    assert len(SOUND) + 2 >= 8


@pytest.mark.scaled
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plan", PLANS)
def test_an_edit_is_refused_or_trains_to_the_same_numbers(
    plan: str, pool: Pool, soak_count: Callable[[str, int], None]
) -> None:
    program = compile_run(run_of(plan))
    first = list(PLANS).index(plan) % EVERY
    accepted = []
    for kind in list(KINDS)[first::EVERY]:
        for number in range(DRAWS):
            found = verdict(plan, kind, number, program)
            soak_count(f"edits '{kind}' {found if found in ('none', 'accepted') else 'refused'}", 1)
            if found == "accepted":
                accepted.append((kind, number))
    expected = pool.run(numbers, plan, "", 0) if accepted else []
    other = []
    for kind, number in accepted[:TRAINED]:
        found_numbers = pool.run(numbers, plan, kind, number)
        worst = max(apart(a, b) for a, b in zip(expected, found_numbers, strict=True) if a is not None)
        other += [(kind, number, worst)] if not worst < 1e-9 else []
    assert not other


@pytest.mark.scaled
def test_sound_edits_are_accepted(soak_count: Callable[[str, int], None]) -> None:
    """At least 95 in a hundred of every kind together, and four in five of each."""
    counts = {kind: Counter[bool]() for kind in SOUND}
    for plan in list(PLANS)[:: 1 if SOAK else 2]:
        program = compile_run(run_of(plan))
        for kind in SOUND:
            for number in range(DRAWS):
                found = verdict(plan, kind, number, program)
                if found != "none":
                    counts[kind][found == "accepted"] += 1
                    soak_count(f"sound edits '{kind}' {'accepted' if found == 'accepted' else 'refused'}", 1)
    accepted, refused = (sum(count[verdict_] for count in counts.values()) for verdict_ in (True, False))
    assert accepted >= 0.95 * (accepted + refused)
    assert all(count[True] >= 4 * count[False] and count[True] for count in counts.values())


@pytest.mark.parametrize("plan", [{"communication": {"bucket_mb": 0.005}}, {"schedule": "gpipe"}])
def test_finer_buckets_and_another_schedule_are_accepted(plan: dict[str, object]) -> None:
    for layout in ({"pipeline_parallel": 2}, {"pipeline_parallel": 2, "data_parallel": 2, "tensor_parallel": 1}):
        prove(compile_run(make_run(GPT, layout | plan)))
