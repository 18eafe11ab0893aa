"""A run: everything about one training job, as resolved: a section each, and the whole."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from plan.model import Model
from plan.parallel import Plan
from program.cluster import Cluster


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """Learning rate over steps: linear warm-up to lr, then `kind` down to min_lr at decay_steps. `wsd` stays at lr and
    goes down in its last `anneal_steps` as `anneal` says; `inverse-sqrt` falls with the root of the step."""

    kind: Literal["constant", "linear", "cosine", "inverse-sqrt", "wsd"] = "cosine"
    warmup_steps: int = 100
    decay_steps: int = 10000
    min_lr: float = 6.0e-6
    anneal_steps: int = 1000
    anneal: Literal["linear", "cosine", "exponential", "minus-sqrt"] = "exponential"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW; clip_norm 0 means no clipping."""

    name: Literal["adamw"] = "adamw"
    lr: float = 6.0e-5
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1.0e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    schedule: LrSchedule = LrSchedule()


@dataclass(frozen=True, slots=True)
class Train:
    """How long, from which seed, which steps are recorded instruction by instruction (record_every None: see
    `records`), and what a loss or gradient norm that is not finite does: end the run, leave that step's update out, or
    nothing."""

    steps: int = 100
    seed: int = 1234
    record_every: int | None = None
    eval_every: int = 0
    nonfinite: Literal["stop", "skip", "continue"] = "stop"

    def records(self, step: int, last: int = 3) -> bool:
        """Whether step (0-based) is recorded. Given: every so many, the last of a run that is shorter. Auto: the last 3
        of a run of at least 8 steps (its last if shorter), the `last` of one twice as long, and every 500th."""
        if self.record_every is not None:
            return (step + 1) % self.record_every == 0 or (step == self.steps - 1 < self.record_every)
        kept = last if self.steps >= max(8, 2 * last) else 3 if self.steps >= 8 else 1
        return step >= self.steps - kept or (step + 1) % 500 == 0


@dataclass(frozen=True, slots=True)
class Data:
    """Where tokens come from: `builtin` (the Python standard library's source as bytes) or the path of a token file or
    of a text, whose tokens `tokenizer` makes: the path of a tokenizer.json, or `auto`, trained on the text."""

    path: str = "builtin"
    tokenizer: str = "auto"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save every n steps (0: never) under `path` (auto: the run folder)."""

    every: int = 0
    path: str = "auto"


@dataclass(frozen=True, slots=True)
class Budget:
    """What the job may spend: tokens to train on, and a price that overrides the cluster's."""

    tokens: float | None = None
    price_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One training job, complete and checked."""

    model: Model
    cluster: Cluster
    plan: Plan
    optimizer: Optimizer = Optimizer()
    train: Train = Train()
    data: Data = Data()
    checkpoint: Checkpoint = Checkpoint()
    budget: Budget = Budget()

    def to_dict(self) -> dict[str, Any]:
        """The run as resolved, in the keys of a run file: plain dicts, lists, strings and numbers."""
        return {
            "model": _model_dict(self.model),
            "cluster": asdict(self.cluster),
            "plan": _plan_dict(self.plan),
            "optimizer": asdict(self.optimizer) | {"betas": list(self.optimizer.betas)},
            "train": _auto(asdict(self.train)),
            "data": asdict(self.data),
            "checkpoint": asdict(self.checkpoint),
            "budget": asdict(self.budget),
        }

    def records(self, step: int) -> bool:
        """Whether step (0-based) is recorded. Two clock readings cost an instruction of a CPU nothing, so that many
        steps are: `windtunnel check` judges a class by the spread of 24."""
        return self.train.records(step, last=24 if self.cluster.device == "cpu" else 3)

    @property
    def tokens_per_step(self) -> int:
        """Tokens one optimizer step trains on."""
        return self.plan.global_batch_size * self.model.seq_length

    @property
    def price_per_gpu_hour(self) -> float:
        """USD of one GPU for an hour: the budget's price, else the cluster's."""
        given = self.budget.price_per_gpu_hour
        return self.cluster.price_per_gpu_hour if given is None else given


def canonical_json(run: Run) -> str:
    """The run as one JSON line with sorted keys: equal runs give equal text, so hash this."""
    return json.dumps(run.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _auto(values: dict[str, Any]) -> dict[str, Any]:
    return {key: "auto" if value is None else value for key, value in values.items()}


def _model_dict(model: Model) -> dict[str, Any]:
    values = asdict(model)
    names = ("theta", "local_theta", "fraction", "scaling")
    rope = {name: values.pop(f"rope_{name}") for name in names}
    if rope["scaling"]:
        rope["scaling"] |= {name: list(rope["scaling"][name]) for name in ("short_factor", "long_factor")}
    qkv, out, mlp = (values.pop(f"{name}_bias") for name in ("qkv", "out", "mlp"))
    biases = {"bias": out, "qkv_bias": qkv} if out == mlp else {"bias": {"qkv": qkv, "out": out, "mlp": mlp}}
    caps = {name: values[name] or "none" for name in ("attention_softcap", "logit_softcap", "window")}
    scale = {"attention_scale": values["attention_scale"] or "auto"}
    rope |= {"local_theta": rope["local_theta"] or "auto", "scaling": rope["scaling"] or "none"}
    return values | biases | caps | scale | {"rope": rope}


def _plan_dict(plan: Plan) -> dict[str, Any]:
    values = asdict(plan)
    layers = values.pop("recompute_layers")
    if plan.recompute == "layers":
        values["recompute"] = {"layers": layers}
    if plan.virtual_pipeline == 1:
        values["microbatch_group"] = "auto"  # it follows pipeline_parallel, also when that is overridden
    scale = plan.loss_scale
    if scale is None or scale.window == 0:
        values["loss_scale"] = "none" if scale is None else scale.initial
    if not isinstance(plan.pipeline_layout, str):
        values["pipeline_layout"] = list(plan.pipeline_layout)
    if not isinstance(plan.schedule, str):
        values["schedule"] = list(plan.schedule)
    return values | {"zero": _auto(values["zero"])}
