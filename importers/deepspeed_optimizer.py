"""The optimizer of a DeepSpeed JSON, its learning-rate schedule, and gradient clipping."""

from typing import Any, Literal

from plan.ledger import Ledger
from program.nearest import shown

Semantics = Literal["current", "before-2026"]
CLIPPING: dict[str, float] = {"current": 1.0, "before-2026": 0.0}
SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def optimizer_section(config: dict[str, Any], plan: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Optimizer and learning-rate schedule; 1-bit Adam is a choice of the plan."""
    section = config.get("optimizer")
    found: dict[str, Any] = {}
    if section:
        kind, values = _type(section, "optimizer", "AdamW", ledger), section.get("params") or {}
        if kind.lower() == "onebitadam":
            plan["gradient_compression"] = "onebit-adam"
            if plan["zero_stage"] > 0:
                ledger.problem(
                    f"1-bit Adam is not compatible with ZeRO: optimizer OneBitAdam with stage {plan['zero_stage']}; use"
                    " stage 0 or AdamW"
                )
        elif kind.lower() not in ("adam", "adamw"):
            ledger.not_yet(f"the optimizer {kind}", "AdamW")
        found |= {
            name: ledger.number(values[key], f"optimizer.params.{key}", above=0 if key == "eps" else None)
            for name, key in (("lr", "lr"), ("eps", "eps"), ("weight_decay", "weight_decay"))
            if key in values
        }
        if "betas" in values:
            found |= _betas(values["betas"], ledger)
    return found | _schedule(config.get("scheduler"), ledger)


def _type(section: dict[str, Any], name: str, usual: str, ledger: Ledger) -> str:
    """The `type` of an optimizer or a scheduler: a name."""
    given = section.get("type", usual)
    if isinstance(given, str):
        return given
    ledger.problem(f"{name}.type is {shown(given)}, but must be a name such as {usual!r}")
    return usual


def _betas(given: object, ledger: Ledger) -> dict[str, Any]:
    if not isinstance(given, list) or len(given) != 2:
        ledger.problem(f"optimizer.params.betas is {shown(given)}, but must be two numbers such as [0.9, 0.95]")
        return {}
    return {"betas": [ledger.number(beta, "optimizer.params.betas", least=0, below=1) for beta in given]}


def _schedule(section: dict[str, Any] | None, ledger: Ledger) -> dict[str, Any]:
    if not section:
        return {}
    kind, values = _type(section, "scheduler", "WarmupLR", ledger), section.get("params") or {}
    if kind not in SCHEDULES:
        ledger.warn(
            f"the scheduler {kind} is not translated: it changes the loss, not the step time; a constant rate is taken"
        )
        return {"schedule": {"kind": "constant", "warmup_steps": 0}}
    schedule: dict[str, Any] = {
        "kind": SCHEDULES[kind],
        "warmup_steps": ledger.integer(values.get("warmup_num_steps", 0), "scheduler.params.warmup_num_steps"),
    }
    if "total_num_steps" in values:
        schedule["decay_steps"] = ledger.integer(values["total_num_steps"], "scheduler.params.total_num_steps")
    found: dict[str, Any] = {"schedule": schedule | ({"min_lr": 0.0} if kind != "WarmupLR" else {})}
    if "warmup_max_lr" in values:
        found["lr"] = ledger.number(values["warmup_max_lr"], "scheduler.params.warmup_max_lr")
    return found


def clipping(config: dict[str, Any], clip: float | None, semantics: Semantics, ledger: Ledger) -> dict[str, Any]:
    """Where gradients are clipped: the JSON's word, else the script's (`clip`), else the release's default."""
    if "gradient_clipping" in config:
        value = ledger.number(config["gradient_clipping"], "gradient_clipping")
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
