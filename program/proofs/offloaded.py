"""Offloaded buckets: the gradient reaches the host once, complete; the host steps it; the weights come back once.

The race proofs order what touches a buffer. That the copies are there at all, and in this order in host order, which is
the meaning of the program, is proved here.
"""

from __future__ import annotations

from collections.abc import Callable

from program import Bucket, Instruction, RankProgram, rank_wide
from program.proofs.error import ProofError, name

Place = tuple[int, int]  # call, local id


def prove_offloaded(stage: RankProgram, class_: int, bucket: Bucket, complete: Place, stepped: Place) -> None:
    """Raises ProofError unless the gradient's copy follows `complete` (and whatever else writes it), the STEP at
    `stepped` follows that copy, and the weights' copy follows the STEP."""
    gradient, weights = rank_wide(bucket.reduced_buffer), rank_wide(bucket.weight_buffer)
    written = _places(stage, lambda i: i.kind not in ("ZERO", "D2H") and gradient in i.writes)
    target = rank_wide(bucket.host_grad_buffer)
    down = _places(stage, lambda i: i.kind == "D2H" and i.reads == (gradient,) and i.writes == (target,))
    _once(stage, class_, bucket, down, max([complete, *written]), "copied to the host after its last gradient")
    if stepped < down[0]:
        raise _error(stage, class_, f"bucket {bucket.index} is stepped before its gradient is on the host", stepped)
    if bucket.host_weight_buffer >= 0:
        source = rank_wide(bucket.host_weight_buffer)
        up = _places(stage, lambda i: i.kind == "H2D" and i.reads == (source,) and i.writes == (weights,))
        _once(stage, class_, bucket, up, stepped, "copied back to the device after its step")


def _places(stage: RankProgram, wanted: Callable[[Instruction], bool]) -> list[Place]:
    """Where in the step such instructions stand, in host order."""
    of_block = [[k for k, i in enumerate(block.instructions) if wanted(i)] for block in stage.blocks]
    return [(index, local) for index, call in enumerate(stage.calls) for local in of_block[call.block]]


def _once(stage: RankProgram, class_: int, bucket: Bucket, found: list[Place], after: Place, what: str) -> None:
    if len(found) != 1 or found[0] < after:
        at = found[0] if found else after
        raise _error(stage, class_, f"bucket {bucket.index} is not once {what}", at)


def _error(stage: RankProgram, class_: int, reason: str, at: Place) -> ProofError:
    named = [name(stage, class_, *at)] if at[0] >= 0 else []
    return ProofError("complete", f"class {class_} (stage {stage.stage}): {reason}", named)
