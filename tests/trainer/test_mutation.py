"""One program, two interpreters: an edit of the program shows in both timelines, and an unsound one never runs."""

from typing import Any

import pytest

from compiler import compile_run
from plan.run import Run
from program.proofs import ProofError, prove
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import cluster_of
from tests.trainer.edited import EDITS, Trained, train_edited
from tests.trainer.pool import Pool
from tests.trainer.ranks import LLAMA, make_run

Rows = dict[str, tuple[float, float, float]]


def predicted(run: Run, edit: str, rank: int) -> Rows:
    """label -> issued, start, end of a rank under the edited program, simulated on a made-up GPU."""
    program = EDITS[edit](compile_run(run))
    simulation = simulate(program, cluster_of(run.plan.world), FakeProfile(issue_s=1e-7))  # type: ignore[arg-type]
    timeline = simulation.timeline([rank])
    return {row.label: (row.issued_s, row.start_s, row.end_s) for row in timeline.rows()}


def measured(pool: Pool, run: Run, edit: str) -> list[Trained]:
    return pool.run(train_edited, run, edit, 3)[: run.plan.world]


def both(pool: Pool, run: Run, edit: str, rank: int) -> tuple[Rows, Rows]:
    return predicted(run, edit, rank), measured(pool, run, edit)[rank].rows


def tiny(**plan: Any) -> Run:
    return make_run(LLAMA, plan)


def test_swapped_gathers_swap_in_both_timelines(pool: Pool) -> None:
    run = tiny(tensor_parallel=2, sequence_parallel=True)
    gradient, again = "B AG3.2 mlp.out", "W AG3.2 mlp.in"  # the edit is in the last backward
    for edit, first, second in (("unchanged", gradient, again), ("swap_gathers", again, gradient)):
        for rows in both(pool, run, edit, 0):
            assert rows[first][2] <= rows[second][1]


def test_a_bucket_moved_to_the_end_is_reduced_at_the_end_in_both_timelines(pool: Pool) -> None:
    run = tiny(data_parallel=2, communication={"bucket_mb": 0.02})
    last = "W W1.0 embed"
    for rows in both(pool, run, "unchanged", 0):
        assert rows["step AR0 bucket"][0] < rows[last][1]
    for rows in both(pool, run, "move_bucket", 0):
        assert rows["step AR0 bucket"][0] >= rows["B B1.1 attn.in"][0]
        assert rows["step AR0 bucket"][1] >= rows["step AR1 bucket"][1]


def test_without_prefetch_receives_are_issued_after_the_backward_before_them(pool: Pool) -> None:
    run = tiny(pipeline_parallel=2)
    backward, receive = "B B0.3 attn.in", "F RECV1.3 x"
    for rows in both(pool, run, "unchanged", 1):
        assert rows[receive][0] < rows[backward][0]
    for rows in both(pool, run, "remove_prefetch", 1):
        assert rows[receive][0] >= rows[backward][0]


@pytest.mark.parametrize("edit", ["swap_gathers", "move_bucket", "remove_prefetch"])
def test_edits_of_the_order_change_no_loss(pool: Pool, edit: str) -> None:
    layout = {
        "swap_gathers": {"tensor_parallel": 2, "sequence_parallel": True},
        "move_bucket": {"data_parallel": 2, "communication": {"bucket_mb": 0.02}},
        "remove_prefetch": {"pipeline_parallel": 2},
    }[edit]
    run = tiny(**layout)
    if edit != "remove_prefetch":
        prove(EDITS[edit](compile_run(run)))
    losses = {name: [f.losses for f in measured(pool, run, name)] for name in (edit, "unchanged")}
    assert losses[edit] == losses["unchanged"]


def test_sound_edits_pass_every_proof() -> None:
    prove(EDITS["swap_gathers"](compile_run(tiny(tensor_parallel=2, sequence_parallel=True))))
    prove(EDITS["move_bucket"](compile_run(tiny(data_parallel=2, communication={"bucket_mb": 0.02}))))


def test_a_removed_prefetch_runs_here_but_may_hang_under_nccl_and_the_proof_says_where() -> None:
    """1F1B without receives ahead orders sends and receives in a circle across two ranks."""
    with pytest.raises(ProofError, match=r"(?s)rendezvous.*F SEND1\.2 x.*B SEND0\.3 d"):
        prove(EDITS["remove_prefetch"](compile_run(tiny(pipeline_parallel=2))))


def test_a_lost_wait_is_refused_by_a_proof_that_names_it() -> None:
    program = EDITS["lose_wait"](compile_run(tiny(tensor_parallel=2, sequence_parallel=True)))
    with pytest.raises(ProofError, match=r"B B\d\.2 mlp\.in"):
        prove(program)
