"""Edits of a step program, each made by name so that every rank of a worker pool makes the same one."""

from collections.abc import Callable
from dataclasses import dataclass

from compiler import compile_run
from plan.run import Run
from program import StepProgram
from tests.program.edit import drop_wait, find, move, move_call, swap
from tests.trainer.ranks import make_executor

Start = dict[str, tuple[float, float, float]]  # label -> issued, start, end


def _one(program: StepProgram, class_: int, block: str, kind: str, unit: int, piece: str) -> tuple[int, int]:
    (found,) = find(
        program, class_, lambda b, i: (b.name, i.kind, i.unit, i.piece) == (block, kind, unit, piece) and i.phase != "R"
    )
    return found


def swap_gathers(program: StepProgram) -> StepProgram:
    """The input is gathered again before the gradient is, not after."""
    block, gradient = _one(program, 0, "B0.last", "AG", 2, "mlp.out")
    _, again = _one(program, 0, "B0.last", "AG", 2, "mlp.in")
    return swap(program, 0, block, gradient, again)


def move_bucket(program: StepProgram) -> StepProgram:
    """The first bucket is reduced at the end of the last backward."""
    block, local = _one(program, 0, "B0.last", "AR", 0, "bucket")
    return move(program, 0, block, local, len(program.classes[0].blocks[block].instructions) - 1)


def remove_prefetch(program: StepProgram) -> StepProgram:
    """On the last stage no input is received ahead: each receive is issued right before its forward."""
    stage = program.classes[1]
    for micro in sorted({c.micro for c in stage.calls if c.micro > 0}):
        calls = program.classes[1].calls
        names = [program.classes[1].blocks[c.block].name for c in calls]
        receive = next(k for k, c in enumerate(calls) if c.micro == micro and names[k].startswith("recv.fwd"))
        forward = next(k for k, c in enumerate(calls) if c.micro == micro and names[k] == "F0")
        program = move_call(program, 1, receive, forward - 1)
    return program


def lose_wait(program: StepProgram) -> StepProgram:
    """The norm's backward no longer waits for the reduce-scatter of its gradient: unsound."""
    block, local = _one(program, 0, "B0", "B", 2, "mlp.in")
    return drop_wait(program, 0, block, local)


def unchanged(program: StepProgram) -> StepProgram:
    """No edit."""
    return program


EDITS: dict[str, Callable[[StepProgram], StepProgram]] = {
    edit.__name__: edit for edit in (swap_gathers, move_bucket, remove_prefetch, lose_wait, unchanged)
}


@dataclass(frozen=True)
class Trained:
    """What a rank did under an edited program."""

    losses: list[float]
    rows: Start


def train_edited(rank: int, run: Run, edit: str, steps: int) -> Trained | None:
    """Train under the edited program on this rank, recording the last step."""
    executor = make_executor(rank, run, EDITS[edit](compile_run(run)))
    if executor is None:
        return None
    results = [executor.step(step, record=step == steps - 1) for step in range(steps)]
    labels = {op.id: op.label for op in executor.ops}
    rows = {labels[i]: (s.issued_s, s.start_s, s.end_s) for i, s in results[-1].stamps.items()}
    executor.close()
    return Trained([r.loss for r in results], rows)
