"""DeepSpeed's batch equation: train_batch_size = micro batch × accumulation × data-parallel ranks, any two of the first
three given.

`solve` explains what it derived and, where the equation does not close, gives the values that would close it.
"""

from dataclasses import dataclass

from plan.ledger import Ledger
from program.nearest import divisors


@dataclass(frozen=True, slots=True)
class Batch:
    """The three numbers; None where not given or not derivable."""

    train: int | None = None
    micro: int | None = None
    accumulation: int | None = None


def solve(given: Batch, ranks: int | None, where: str, ledger: Ledger) -> Batch:
    """Complete the batch for `ranks` data-parallel ranks (None: not known yet). `where` says what the number of ranks
    comes from.
    """
    train, micro, steps = given.train, given.micro, given.accumulation
    named = {"train_batch_size": train, "micro batch": micro, "accumulation": steps}
    wrong = [f"{name} {value}" for name, value in named.items() if value is not None and value < 1]
    if wrong:
        ledger.problem(f"batch sizes must be at least 1: {', '.join(wrong)}")
        return given
    if train is None and micro is None:
        return given
    if train is None:
        steps = steps or 1
        if ranks is None:
            return Batch(None, micro, steps)
        assert micro is not None
        ledger.note(
            f"global batch {micro * steps * ranks} = micro batch {micro} × accumulation {steps} × {ranks} data-parallel"
            " ranks"
        )
        return Batch(micro * steps * ranks, micro, steps)
    if ranks is None:
        return Batch(train, micro, steps)
    if micro is None:
        return _derive_micro(train, steps or 1, ranks, where, ledger)
    if steps is None:
        if train % (micro * ranks) == 0:
            ledger.note(
                f"accumulation {train // (micro * ranks)} = train_batch_size {train} / (micro batch {micro} × {ranks}"
                " data-parallel ranks)"
            )
            return Batch(train, micro, train // (micro * ranks))
        ledger.problem(_broken(train, micro, max(1, train // (micro * ranks)), ranks, where))
        return given
    if train != micro * steps * ranks:
        ledger.problem(_broken(train, micro, steps, ranks, where))
    return given


def _derive_micro(train: int, steps: int, ranks: int, where: str, ledger: Ledger) -> Batch:
    micro, rest = divmod(train, steps * ranks)
    if rest or not micro:
        per_step = train // steps if train % steps == 0 else None
        legal = f"; legal numbers of ranks: {', '.join(map(str, divisors(per_step)))}" if per_step else ""
        ledger.problem(
            f"micro batch = train_batch_size {train} / (accumulation {steps} × {ranks} data-parallel ranks) ="
            f" {train / (steps * ranks):.4g} is not whole ({ranks} ranks from {where}){legal}; or train_batch_size"
            f" {max(1, round(train / (steps * ranks))) * steps * ranks}"
        )
        return Batch(train, None, steps)
    ledger.note(
        f"micro batch {micro} = train_batch_size {train} / (accumulation {steps} × {ranks} data-parallel ranks)"
    )
    return Batch(train, micro, steps)


def _broken(train: int, micro: int, steps: int, ranks: int, where: str) -> str:
    """The equation with its numbers, each single change that closes it, and the launcher where it may be at fault."""
    product = micro * steps * ranks
    repairs = []
    if train % (micro * steps) == 0:
        repairs.append(f"{train // (micro * steps)} data-parallel ranks")
    if train % (micro * ranks) == 0:
        repairs.append(f"gradient_accumulation_steps {train // (micro * ranks)}")
    if train % (steps * ranks) == 0:
        repairs.append(f"train_micro_batch_size_per_gpu {train // (steps * ranks)}")
    repairs.append(f"train_batch_size {product}")
    sentence = (
        f"{train} != {micro} × {steps} × {ranks}: train_batch_size {train}, but micro batch {micro} × accumulation"
        f" {steps} × {ranks} data-parallel ranks ({where}) = {product}; repairs: {', or '.join(repairs)}"
    )
    if ranks == 1 and train % (micro * steps) == 0:
        sentence += (
            f". If {train // (micro * steps)} ranks were started, DeepSpeed saw a world size of 1: a launcher that does"
            " not set RANK, WORLD_SIZE and LOCAL_RANK (plain python, or mpirun, which sets OMPI_COMM_WORLD_SIZE) hides"
            " the others; start it with deepspeed or torchrun"
        )
    return sentence
