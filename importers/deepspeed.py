"""DeepSpeed JSON: batch, ZeRO, offload, precision, optimizer; alone or beside a Megatron-DeepSpeed script.

    pieces = translate(config, Setting(ranks=8, where="--nodes 1"), ledger)

Every key is checked against the known ones (`importers.deepspeed_table`); old names are rewritten with a note; values
left at "auto" are what a trainer makes of them, and listed. Defaults that changed between releases are pinned by
`semantics`: "current" (mid-2026 and later) or "before-2026".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from importers import deepspeed_table as keys
from importers import partitioned
from importers.deepspeed_batch import Batch, solve
from importers.deepspeed_optimizer import Semantics, clipping, optimizer_section
from importers.deepspeed_zero import zero_section
from importers.table import Values, unknown
from plan.ledger import Ledger
from plan.lenient_json import read_json
from program.nearest import shown


@dataclass(frozen=True, slots=True)
class Setting:
    """What surrounds a configuration: data-parallel ranks, where they come from, and what a script beside it says.

    `wrong`: a number beside it that the batch follows from is wrong, so the batch is left alone.
    """

    ranks: int | None = None
    wrong: bool = False
    where: str = "the cluster"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    script: bool = False
    micro: int | None = None
    train: int | None = None
    clip: float | None = None
    semantics: Semantics = "current"
    precision: str = "bf16"
    """What a trainer fills in: the type of the model's configuration, else bf16, which A100 and later have."""
    filler: str = "trainers fill it in on A100 and later (DeepSpeed by itself: fp32)"
    hidden: int | None = None
    """The model's hidden size, which "auto" buckets follow."""
    auto: Mapping[str, Any] = field(default_factory=dict)
    """What the trainer's own file says for "auto", by the dotted keys of DeepSpeed."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What --set says."""


class DeepSpeed(Values):
    """The dotted keys of a configuration."""

    kind = "DeepSpeed key"


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a DeepSpeed configuration."""
    marks = """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization
    zero_allow_untested_optimizer fp16 bf16""".split()
    return bool(set(marks) & set(config))


def read(text: str, where: str) -> dict[str, Any]:
    """The configuration in a (relaxed) JSON text."""
    return read_json(text, where)


def translate(config: Mapping[str, Any], setting: Setting, ledger: Ledger) -> dict[str, Any]:
    """Parts of a run: {"plan": ..., "optimizer": ...}. Problems and warnings go to the ledger."""
    values, unread = _values(config, setting, ledger)
    values.check()
    plan: dict[str, Any] = {"implementation": "deepspeed"}
    plan |= _batch(values, setting)
    plan |= _precision(values, setting)
    plan |= zero_section(values)
    plan |= _activations(values, setting, plan.get("offload", {}))
    if setting.ranks == 1 and plan["zero_stage"]:
        ledger.note(f"zero_optimization.stage {plan['zero_stage']} does nothing at data-parallel 1: all is one rank's")
    if not setting.script:
        sizes = {key.rpartition(".")[2]: value for key, value in values.given.items()}
        partitioned.deepspeed(plan, sizes, ledger)
    optimizer = optimizer_section(values, plan) | clipping(values, setting.clip, setting.semantics)
    _not_forecast(values)
    values.touched |= keys.OBJECTS
    values.account()
    unknown("DeepSpeed key", unread, list(keys.KEYS), ledger)
    return {"plan": plan, "optimizer": optimizer} if optimizer else {"plan": plan}


def _values(config: Mapping[str, Any], setting: Setting, ledger: Ledger) -> tuple[DeepSpeed, list[str]]:
    """The keys under their names of today, with what stands for "auto"; and the names that nobody knows."""
    given: dict[str, Any] = {}
    unread: list[str] = []

    def lay(part: Mapping[str, Any], inside: str) -> None:
        for key, value in part.items():
            path = f"{inside}{key}"
            if path in keys.RENAMED:
                new, stands_for = keys.RENAMED[path]
                ledger.note(f"{path} is an old name of {new}")
                if stands_for is not None:
                    if not ledger.boolean(value, path):
                        continue
                    value = stands_for
                path = new
            if path == "zero_optimization" and isinstance(value, bool):
                ledger.note(f"zero_optimization {str(value).lower()} is an old form of stage {int(value)}")
                value = {"stage": int(value)}
            if path == "zero_optimization.stage" and isinstance(value, bool):
                ledger.note(f"zero_optimization.stage {str(value).lower()} is an old form of {int(value)}")
                value = int(value)
            if path not in keys.OBJECTS:
                given[path] = value
            elif isinstance(value, Mapping):
                given[path] = value
                lay(value, f"{path}.")
            elif value is not None:
                example = keys.EXAMPLES.get(path, "enabled")
                ledger.problem(f'{path} is {shown(value)}, but must be an object such as {{"{example}": ...}}')

    lay(config, "")
    known = DeepSpeed(keys.KEYS, {}, ledger)
    unread += [path for path in given if known.find(path) is None]
    given = _filled_in({path: value for path, value in given.items() if path not in unread}, setting, ledger)
    if {"plan.global_batch_size", "plan.micro_batch_size"} & setting.asked.keys() and "train_batch_size" in {
        *given,
        *(["train_batch_size"] if "plan.global_batch_size" in setting.asked else []),
    }:
        given.pop("gradient_accumulation_steps", None)  # the whole batch that is asked for takes its place
    return DeepSpeed(keys.KEYS, given, ledger, setting.asked), unread


def _filled_in(given: dict[str, Any], setting: Setting, ledger: Ledger) -> dict[str, Any]:
    """With the values that a trainer fills in for "auto"."""
    left = [key for key, value in given.items() if isinstance(value, str) and value.strip().lower() == "auto"]
    found = {key: value for key, value in given.items() if key not in left}
    trainer: dict[str, Any] = {} if setting.script else {**keys.AUTO_OF_THE_TRAINER, **setting.auto}
    if setting.hidden:
        trainer |= {key: size(setting.hidden) for key, size in keys.AUTO_OF_THE_MODEL.items()}
    said = []
    for key in left:
        if key in trainer:
            found[key] = trainer[key]
        if setting.script or key not in ("fp16.enabled", "bf16.enabled"):  # a JSON alone has a sentence of its own
            said.append(f"{key} = {shown(trainer[key])}" if key in trainer else key)
    if said:
        ledger.warn(
            'still "auto", to be filled by a trainer (Hugging Face\'s Trainer, Accelerate): '
            f"{', '.join(said)}; a key without a value here is at DeepSpeed's default"
        )
    if {"train_batch_size", "train_micro_batch_size_per_gpu"} & set(left):
        found.setdefault("__auto_batch", True)
    return found


def _batch(values: Values, setting: Setting) -> dict[str, Any]:
    ledger, open_ = values.ledger, values.given.pop("__auto_batch", False)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = Batch(*map(values.whole, names))
    if setting.wrong or set(names) & values.wrong:
        return {}  # what would follow from the others is not what was meant
    _agree(given, setting, ledger)
    merged = Batch(
        setting.train if given.train is None else given.train,
        setting.micro if given.micro is None else given.micro,
        given.accumulation,
    )
    if merged.train is None and merged.micro is None and not setting.script:
        micro = setting.auto.get("train_micro_batch_size_per_gpu", keys.TRAINER_MICRO_BATCH if open_ else 1)
        merged = Batch(None, micro, merged.accumulation or 1)
        if "train_micro_batch_size_per_gpu" not in setting.auto:
            why = "the default of Hugging Face's Trainer" if open_ else "not given, which DeepSpeed refuses"
            ledger.assume(
                "batch", f"{micro} a GPU ({why})", "train_micro_batch_size_per_gpu", "memory, step time, tokens a step"
            )
    solved = solve(merged, setting.ranks, setting.where, ledger)
    if solved.train is None and solved.micro is not None and (solved.accumulation or 1) > 1:
        ledger.problem(
            f"the global batch is micro batch {solved.micro} × accumulation {solved.accumulation} × data-parallel"
            " ranks, but the number of GPUs is not known; give --cluster PRESET --nodes N"
        )
    found = {"micro_batch_size": solved.micro, "global_batch_size": solved.train}
    return {key: value for key, value in found.items() if value is not None}


def _agree(given: Batch, setting: Setting, ledger: Ledger) -> None:
    """The script beside the JSON must give the same batch sizes, where it gives any."""
    for key, value, flag, other in (
        ("train_batch_size", given.train, "--global-batch-size", setting.train),
        ("train_micro_batch_size_per_gpu", given.micro, "--micro-batch-size", setting.micro),
    ):
        if value is not None and other is not None and value != other:
            ledger.problem(
                f"two batch sizes: {key} {value} in the DeepSpeed JSON and {flag} {other} in the script; make them"
                " equal"
            )


def _precision(values: Values, setting: Setting) -> dict[str, Any]:
    ledger = values.ledger
    on = [name for name in ("fp16", "bf16") if values.on(f"{name}.enabled")]
    if len(on) == 2:
        ledger.problem("fp16.enabled and bf16.enabled exclude each other; keep one")
    if not on and setting.script:
        return {}
    if not on and any(values.has(f"{name}.enabled") for name in ("fp16", "bf16")):
        return {"precision": "fp32"}
    if not on:
        ledger.assume(
            "precision",
            f"{setting.precision}, as {setting.filler}",
            "bf16.enabled, fp16.enabled",
            "step time and memory",
        )
        if setting.precision == "fp32":
            return {"precision": "fp32"}
        on = [setting.precision]
    if on[0] == "fp16" and (scale := values.number("fp16.loss_scale", 0)):
        names = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
        unused = [name for name in names if values.has(f"fp16.{name}")]
        remark = f", so {', '.join(unused)} are unused" if unused else " and does not change the step's time"
        ledger.note(f"fp16.loss_scale {scale:g} is static{remark}")
    found: dict[str, Any] = {"precision": on[0]}
    wide = values.text("data_types.grad_accum_dtype")
    return found if setting.script else found | {"gradient_dtype": wide or on[0]}


def _activations(values: Values, setting: Setting, offload: dict[str, Any]) -> dict[str, Any]:
    """Activation checkpointing. The section tunes it; the model must switch it on, which a lone JSON cannot say."""
    section, ledger = "activation_checkpointing", values.ledger
    switches = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization")
    used = {name for name in switches if values.on(f"{section}.{name}")}
    if values.has(f"{section}.number_checkpoints") and values.given[f"{section}.number_checkpoints"]:
        used.add("number_checkpoints")
    if not used:
        return {}
    found: dict[str, Any] = {}
    if not setting.script:
        found["recompute"] = "full"
        ledger.assume(
            "recompute",
            f"full: {section} sets {', '.join(sorted(used))}, and the model must recompute by itself"
            " (deepspeed.checkpointing; Hugging Face's gradient_checkpointing does not read these keys)",
            "--set plan.recompute=none",
            "memory and step time",
        )
    if "partition_activations" in used and setting.tensor_parallel > 1:
        found["partition_activations"] = True
    elif "partition_activations" in used:
        ledger.note(f"{section}.partition_activations has no effect without tensor parallelism")
    if "contiguous_memory_optimization" in used:
        ledger.note(f"{section}.contiguous_memory_optimization has no effect on what is kept: one buffer")
    if "cpu_checkpointing" in used:
        found["offload"] = {**offload, "activations": "cpu"}
    return found


def _not_forecast(values: Values) -> None:
    for key, nearest in keys.NOT_FORECAST.items():
        if not values.has(key):
            continue
        value = values.given[key]
        on = value.get("enabled", True) if isinstance(value, Mapping) else value is True or (value and value != 1)
        if on:
            values.ledger.not_yet(f"DeepSpeed's {key}", nearest)
        else:
            values.ledger.note(f"DeepSpeed's {key} is switched off")
