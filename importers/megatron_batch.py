"""The batch of a Megatron script: how global batch, micro batch and ranks hang together, what Megatron refuses."""

from collections.abc import Mapping
from typing import Any

from importers.arguments import Arguments
from importers.megatron_plan import model_parallel
from importers.world import World
from plan.ledger import Ledger


def explain_batch(a: Arguments, plan: Mapping[str, Any], world: World, ledger: Ledger) -> int | None:
    """The global batch, as given or as it follows; None where it cannot be known."""
    micro, whole = _whole(plan.get("micro_batch_size")), _whole(plan.get("global_batch_size"))
    if micro is None:
        if "--micro-batch-size" not in a.given:
            ledger.problem(
                "--micro-batch-size is missing; Megatron requires it (sequences of one forward pass of one"
                " data-parallel rank)"
            )
        return None
    size, copy = world.size, model_parallel(plan)
    if not size or copy is None or size % copy:
        return whole  # the rules name a world that does not divide
    ranks = size // copy
    context = f" × CP{plan['context_parallel']}" if "context_parallel" in plan else ""
    ledger.note(
        f"data_parallel {ranks} = {size} GPUs / (TP{plan['tensor_parallel']} × PP{plan['pipeline_parallel']}{context})"
    )
    if ranks == 1 and "--use-distributed-optimizer" in a.given:
        ledger.note("--use-distributed-optimizer does nothing at data-parallel 1: all is one rank's")
    if whole is None:
        _one_micro_batch(a, micro, ranks, plan["pipeline_parallel"] or 1, ledger)
    elif whole % (micro * ranks) == 0:
        count = whole // (micro * ranks)
        ledger.note(
            f"{count} micro-batch{'es' if count > 1 else ''} a step = global batch {whole} / (micro batch {micro} ×"
            f" {ranks} data-parallel ranks)"
        )
    _ramp(a, micro, ranks, ledger)
    return whole if whole is not None else micro * ranks


def _one_micro_batch(a: Arguments, micro: int, ranks: int, stages: int, ledger: Ledger) -> None:
    """Without a global batch a step is one micro-batch, which the old flag `--batch-size` often did not mean."""
    old = a.written.get("--micro-batch-size")
    ledger.note(
        f"--global-batch-size is not given: {micro * ranks} = micro batch {micro} × {ranks} data-parallel ranks,"
        " one micro-batch a step"
    )
    if old and micro > 1:
        ledger.note(f"if {micro} was meant as the global batch, write --micro-batch-size 1 --global-batch-size {micro}")
    if old and stages > 1:
        ledger.warn(
            f"{old} {micro} leaves one micro-batch in a pipeline of {stages} stages: all but one stage idle at any time"
        )


def _ramp(a: Arguments, micro: int, ranks: int, ledger: Ledger) -> None:
    """Every batch size of a ramp is whole micro-batches too."""
    for start in a.given.get("--rampup-batch-size", "").split()[:2]:
        number = ledger.integer(start, "--rampup-batch-size")
        if number is None or number % (micro * ranks) == 0:
            continue
        sentence = (
            f"--rampup-batch-size {start} is not a multiple of micro batch {micro} × {ranks} data-parallel ranks ="
            f" {micro * ranks}"
        )
        if "--load" in a.given:  # a run that goes on behind its ramp never meets the check
            ledger.warn(f"{sentence}: Megatron refuses that until the ramp has passed")
        else:
            ledger.problem(sentence)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
