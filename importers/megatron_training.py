"""Optimizer, length, seed, checkpoints and token budget of a Megatron command."""

from typing import Any

from importers.arguments import Arguments
from plan.ledger import Ledger

KINDS = {"constant": "constant", "linear": "linear", "cosine": "cosine"}


def training_sections(
    a: Arguments, batch: int | None, sequence: int | None, over: dict[str, Any], ledger: Ledger
) -> dict[str, Any]:
    """The sections `optimizer`, `train`, `checkpoint` and `budget`. `over` (from a DeepSpeed JSON) wins for the
    optimizer.
    """
    steps = _steps(a, batch, sequence, ledger)
    run: dict[str, Any] = {"optimizer": _optimizer(a, steps, batch, ledger) | over}
    if over.get("lr") is not None and "--lr" in a.given:
        ledger.note("the optimizer of the DeepSpeed JSON replaces --lr and the --adam-* flags")
    train = {"steps": steps, "seed": a.whole("--seed"), "eval_every": a.whole("--eval-interval")}
    run["train"] = {key: value for key, value in train.items() if value is not None}
    if (every := a.whole("--save-interval")) is not None:
        run["checkpoint"] = {"every": every}
    budget = _tokens(a, steps, batch, sequence)
    if budget:
        run["budget"] = {"tokens": budget}
    return {section: keys for section, keys in run.items() if keys}


def _steps(a: Arguments, batch: int | None, sequence: int | None, ledger: Ledger) -> int | None:
    iterations, samples, tokens = a.whole("--train-iters"), a.whole("--train-samples"), a.whole("--train-tokens")
    if iterations is not None and samples is not None:
        ledger.problem(f"--train-iters {iterations} and --train-samples {samples} exclude each other; keep one")
    if iterations is not None:
        return iterations
    if samples is not None and batch:
        ledger.note(f"{samples // batch} steps = {samples} samples / global batch {batch}")
        return samples // batch
    return tokens // (batch * sequence) if tokens is not None and batch and sequence else None


def _tokens(a: Arguments, steps: int | None, batch: int | None, sequence: int | None) -> float | None:
    """Tokens of the whole steps that run; of the samples asked for, where the batch is not known."""
    if steps and batch and sequence:
        return float(steps * batch * sequence)
    samples = a.whole("--train-samples")
    return float(samples * sequence) if samples is not None and sequence else None


def _optimizer(a: Arguments, steps: int | None, batch: int | None, ledger: Ledger) -> dict[str, Any]:
    name = a.text("--optimizer") or "adam"
    if name not in ("adam", "adamw"):
        ledger.not_yet(f"--optimizer {name}", "adam")
    found: dict[str, Any] = {"name": "adamw"}
    if (rate := a.number("--lr")) is not None:
        found["lr"] = rate
    found["betas"] = [a.number("--adam-beta1", 0.9), a.number("--adam-beta2", 0.999)]
    found["eps"] = a.number("--adam-eps", 1e-8)
    found["weight_decay"] = a.number("--weight-decay", 0.01)
    found["clip_norm"] = a.number("--clip-grad", 1.0)
    return found | {"schedule": _schedule(a, steps, batch, found.get("lr"), ledger)}


def _schedule(a: Arguments, steps: int | None, batch: int | None, rate: float | None, ledger: Ledger) -> dict[str, Any]:
    style = a.text("--lr-decay-style") or "linear"
    if style not in KINDS:
        ledger.warn(
            f"--lr-decay-style {style} is not translated: it changes the loss, not the step time; a constant rate is"
            " taken"
        )
    decay = a.whole("--lr-decay-iters")
    if decay is None and batch and (samples := a.whole("--lr-decay-samples")) is not None:
        decay = samples // batch
    decay = decay or steps
    floor = a.number("--min-lr", 0.0)
    schedule: dict[str, Any] = {
        "kind": KINDS.get(style, "constant"),
        "warmup_steps": _warmup(a, decay, batch, ledger),
        "min_lr": floor,
    }
    if decay is not None:
        schedule["decay_steps"] = decay
    if rate is None:
        schedule |= {"kind": "constant"}
        a.idle("--lr-decay-style", "without --lr")
    if decay is None:
        a.idle("--lr-warmup-fraction", "without --lr-decay-iters or --train-iters")
    if batch is None:
        for flag in ("--lr-decay-samples", "--lr-warmup-samples", "--train-samples"):
            a.idle(flag, "while the global batch is not known")
    return schedule


def _warmup(a: Arguments, decay: int | None, batch: int | None, ledger: Ledger) -> int:
    forms = {
        flag: a.number(flag)
        for flag in ("--lr-warmup-iters", "--lr-warmup-fraction", "--lr-warmup-samples")
        if a.has(flag)
    }
    if len([value for value in forms.values() if value]) > 1:
        ledger.problem(
            f"{' and '.join(f'{flag} {value:g}' for flag, value in forms.items() if value)} exclude each other;"
            " keep one"
        )
    if forms.get("--lr-warmup-iters"):
        return int(forms["--lr-warmup-iters"] or 0)
    if forms.get("--lr-warmup-fraction") and decay:
        return int((forms["--lr-warmup-fraction"] or 0) * decay)
    if forms.get("--lr-warmup-samples") and batch:
        return int((forms["--lr-warmup-samples"] or 0) // batch)
    return 0
