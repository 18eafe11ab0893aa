"""The optimizer of a DeepSpeed JSON, its learning-rate schedule, and gradient clipping."""

from typing import Any, Literal

from importers.table import Values
from plan.ledger import Ledger
from program.nearest import shown

Semantics = Literal["current", "before-2026"]
CLIPPING: dict[str, float] = {"current": 1.0, "before-2026": 0.0}
SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def optimizer_section(values: Values, plan: dict[str, Any]) -> dict[str, Any]:
    """Optimizer and learning-rate schedule; 1-bit Adam is a choice of the plan."""
    found: dict[str, Any] = {}
    if values.given.get("optimizer"):
        kind = _type(values, "optimizer", "AdamW")
        if kind.lower() == "onebitadam":
            plan["gradient_compression"] = "onebit-adam"
            if plan["zero_stage"] > 0:
                values.ledger.problem(
                    f"1-bit Adam is not compatible with ZeRO: optimizer OneBitAdam with stage {plan['zero_stage']}; use"
                    " stage 0 or AdamW"
                )
        elif kind.lower() not in ("adam", "adamw"):
            values.ledger.not_yet(f"the optimizer {kind}", "AdamW")
        found = {key: value for key, value in values.run("optimizer").items() if key != "clip_norm"}
        if values.has("optimizer.params.betas"):
            found |= _betas(values.given["optimizer.params.betas"], values.ledger)
    return found | _schedule(values)


def _type(values: Values, name: str, usual: str) -> str:
    """The `type` of an optimizer or a scheduler: a name."""
    given = values.given[f"{name}.type"] if values.has(f"{name}.type") else usual
    if isinstance(given, str):
        return given
    values.ledger.problem(f"{name}.type is {shown(given)}, but must be a name such as {usual!r}")
    return usual


def _betas(given: object, ledger: Ledger) -> dict[str, Any]:
    if not isinstance(given, list) or len(given) != 2:
        ledger.problem(f"optimizer.params.betas is {shown(given)}, but must be two numbers such as [0.9, 0.95]")
        return {}
    return {"betas": [ledger.number(beta, "optimizer.params.betas", least=0, below=1) for beta in given]}


def _schedule(values: Values) -> dict[str, Any]:
    if not values.given.get("scheduler"):
        return {}
    kind = _type(values, "scheduler", "WarmupLR")
    if kind not in SCHEDULES:
        values.ledger.warn(
            f"the scheduler {kind} is not translated: it changes the loss, not the step time; a constant rate is taken"
        )
        return {"schedule": {"kind": "constant", "warmup_steps": 0}}
    schedule: dict[str, Any] = {
        "kind": SCHEDULES[kind],
        "warmup_steps": values.whole("scheduler.params.warmup_num_steps", 0),
    }
    if values.has("scheduler.params.total_num_steps"):
        schedule["decay_steps"] = values.whole("scheduler.params.total_num_steps")
    found: dict[str, Any] = {"schedule": schedule | ({"min_lr": 0.0} if kind != "WarmupLR" else {})}
    if values.has("scheduler.params.warmup_max_lr"):
        found["lr"] = values.number("scheduler.params.warmup_max_lr")
    return found


def clipping(values: Values, clip: float | None, semantics: Semantics) -> dict[str, Any]:
    """Where gradients are clipped: the JSON's word, else the script's (`clip`), else the release's default."""
    ledger = values.ledger
    if values.has("gradient_clipping"):
        value = values.number("gradient_clipping")
        if clip is not None and value is not None and value != clip:
            ledger.warn(
                f"gradient_clipping {value:g} in the DeepSpeed JSON and --clip-grad {clip:g} in the script:"
                f" DeepSpeed clips at {value:g}"
            )
        return {"clip_norm": value}
    if clip is not None:
        return {"clip_norm": clip}
    pinned = CLIPPING[semantics]
    ledger.warn(
        f"gradient_clipping is not given: 0 (off) in DeepSpeed before mid-2026 (PR #8068), 1.0 since; {pinned:g} is"
        " taken"
    )
    return {"clip_norm": pinned}
