"""DeepSpeed JSON: batch, ZeRO, offload, precision, optimizer; alone or beside a Megatron-DeepSpeed script.

    pieces = translate(config, Setting(ranks=8, where="--nodes 1"), ledger)

Every key is checked against the known ones; old names are rewritten with a note; values left at "auto" are listed with
what is assumed. Defaults that changed between releases are pinned by `semantics`: "current" (mid-2026 and later) or
"before-2026".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from importers import deepspeed_keys as keys
from importers import partitioned
from importers.deepspeed_account import account, in_range
from importers.deepspeed_batch import Batch, solve
from importers.deepspeed_optimizer import Semantics, clipping, optimizer_section
from importers.deepspeed_zero import zero_section
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


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a DeepSpeed configuration."""
    marks = {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "fp16",
        "bf16",
    }
    return bool(marks & set(config))


def read(text: str, where: str) -> dict[str, Any]:
    """The configuration in a (relaxed) JSON text."""
    return read_json(text, where)


def translate(config: Mapping[str, Any], setting: Setting, ledger: Ledger) -> dict[str, Any]:
    """Parts of a run: {"plan": ..., "optimizer": ...}. Problems and warnings go to the ledger."""
    clean = in_range(_resolve_auto(_known(config, "", ledger), setting.script, ledger), ledger)
    plan: dict[str, Any] = {"implementation": "deepspeed"}
    plan |= _batch(clean, setting, ledger)
    plan |= _precision(clean, setting, ledger)
    plan |= zero_section(clean, ledger)
    plan |= _activations(clean, setting, plan.get("offload", {}), ledger)
    if not setting.script:
        partitioned.deepspeed(plan, clean.get("zero_optimization"), ledger)
    optimizer = optimizer_section(clean, plan, ledger)
    optimizer |= clipping(clean, setting.clip, setting.semantics, ledger)
    account(clean, ledger)
    return {"plan": plan, "optimizer": optimizer} if optimizer else {"plan": plan}


def _known(config: Mapping[str, Any], section: str, ledger: Ledger) -> dict[str, Any]:
    """The keys under their present names; unknown ones reported and dropped."""
    known = keys.SECTIONS.get(section, keys.TOP) if section in keys.SECTIONS or not section else None
    result: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{section}.{key}" if section else key
        if path in keys.RENAMED:
            new, stands_for = keys.RENAMED[path]
            ledger.note(f"{path} is an old name of {new}")
            if stands_for is not None:
                if not ledger.boolean(value, path):
                    continue
                value = stands_for
            key, path = new.rsplit(".", 1)[-1], new
        if (
            path in keys.OBJECTS
            and not isinstance(value, Mapping)
            and not (path == "zero_optimization" and isinstance(value, bool))
        ):
            if value is not None:
                example = keys.FIRST.get(path, "enabled")
                ledger.problem(f'{path} is {shown(value)}, but must be an object such as {{"{example}": ...}}')
            continue
        if known is not None and key not in known:
            ledger.unknown(key, known, "DeepSpeed key", inside=section)
            continue
        result[key] = _known(value, path, ledger) if isinstance(value, Mapping) else value
    return result


def _resolve_auto(config: dict[str, Any], script: bool, ledger: Ledger) -> dict[str, Any]:
    """Without the values a trainer was to fill in; one warning lists them."""
    found: list[str] = []

    def strip(part: dict[str, Any], path: str) -> dict[str, Any]:
        kept = {}
        for key, value in part.items():
            name = f"{path}{key}"
            if isinstance(value, str) and value.strip().lower() == "auto":
                found.append(name)
            else:
                kept[key] = strip(value, f"{name}.") if isinstance(value, dict) else value
        return kept

    result = strip(config, "")
    precision = () if script else ("fp16.enabled", "bf16.enabled")  # a JSON alone has a sentence of its own for it
    if open_ := [name for name in found if name not in precision]:
        ledger.warn(
            f'still "auto", to be filled by a trainer, and taken at their defaults here: {", ".join(open_)}; give them'
            " values"
        )
        if {"train_batch_size", "train_micro_batch_size_per_gpu"} & set(open_) and not {
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
        } & set(result):
            result["__auto_batch"] = True
    return result


def _batch(config: dict[str, Any], setting: Setting, ledger: Ledger) -> dict[str, Any]:
    def whole(key: str) -> int | None:
        return ledger.integer(config[key], key, least=1) if key in config else None

    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = Batch(*map(whole, names))
    if setting.wrong or any(key in config and whole(key) is None for key in names):
        return {}  # what would follow from the others is not what was meant
    _agree(given, setting, ledger)
    merged = Batch(
        setting.train if given.train is None else given.train,
        setting.micro if given.micro is None else given.micro,
        given.accumulation,
    )
    if merged.train is None and merged.micro is None and not setting.script:
        state = "open" if config.get("__auto_batch") else "not given, which DeepSpeed refuses"
        ledger.warn(
            f"the batch size is {state}: micro batch 1 is assumed; give train_batch_size, or"
            " --set plan.micro_batch_size=N"
        )
        merged = Batch(None, 1, merged.accumulation or 1)
    config.pop("__auto_batch", None)
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


def _precision(config: dict[str, Any], setting: Setting, ledger: Ledger) -> dict[str, Any]:
    on = [
        name
        for name in ("fp16", "bf16")
        if ledger.boolean(config.get(name, {}).get("enabled", False), f"{name}.enabled")
    ]
    if len(on) == 2:
        ledger.problem("fp16.enabled and bf16.enabled exclude each other; keep one")
    if not on and setting.script:
        return {}
    off = [name for name in ("fp16", "bf16") if "enabled" in config.get(name, {})]
    if not on and off:
        return {"precision": "fp32"}
    if not on:
        ledger.warn(
            f"the JSON leaves the precision to the trainer: {setting.precision} is taken, as trainers fill it in on"
            " A100 and later; --set plan.precision=fp32 is what DeepSpeed does by itself"
        )
        if setting.precision == "fp32":
            return {"precision": "fp32"}
        on = [setting.precision]
        config = {**config, on[0]: {}}
    section = config[on[0]]
    if on[0] == "fp16":
        scale = ledger.number(section.get("loss_scale", 0), "fp16.loss_scale")
        unused = [
            key
            for key in ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
            if key in section
        ]
        if scale:
            remark = f", so {', '.join(unused)} are unused" if unused else " and does not change the step's time"
            ledger.note(f"fp16.loss_scale {scale:g} is static{remark}")
    found: dict[str, Any] = {"precision": on[0]}
    wide = config.get("data_types", {}).get("grad_accum_dtype")
    if wide is not None:
        wide = ledger.choice(wide, "data_types.grad_accum_dtype", keys.ACCUMULATION)
    if not setting.script:
        found["gradient_dtype"] = wide or on[0]
    return found


def _activations(config: dict[str, Any], setting: Setting, offload: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Activation checkpointing. The section tunes it; the model must switch it on, which a lone JSON cannot say."""
    section = config.get("activation_checkpointing")
    if not section:
        return {}
    used = {
        key
        for key in (
            "partition_activations",
            "cpu_checkpointing",
            "contiguous_memory_optimization",
            "number_checkpoints",
        )
        if section.get(key)
    }
    if not used:
        return {}
    found: dict[str, Any] = {}
    if not setting.script:
        found["recompute"] = "full"
        ledger.warn(
            f"activation_checkpointing sets {', '.join(sorted(used))}: full recompute is taken to be on, which the"
            " model must do itself (deepspeed.checkpointing; Hugging Face's gradient_checkpointing does not read these"
            " keys)"
        )
    if "partition_activations" in used and setting.tensor_parallel > 1:
        found["partition_activations"] = True
    elif "partition_activations" in used:
        ledger.note("activation_checkpointing.partition_activations has no effect without tensor parallelism")
    if "cpu_checkpointing" in used:
        found["offload"] = {**offload, "activations": "cpu"}
    return found
