"""GPT-NeoX configurations: YAML whose keys are DeepSpeed's plus the model's, with '-' or '_' between words.

translate(yaml_mapping, Setting(...), world, ledger)  ->  {"model": ..., "plan": ..., "optimizer": ...}
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from importers import deepspeed
from importers import neox_table as known
from importers.neox_model import model_section
from importers.table import Values
from plan.ledger import Ledger
from program.nearest import shown

MAXIMUM_LAYERS = 10_000


def is_neox(config: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like a GPT-NeoX configuration."""
    names = {str(key).replace("-", "_") for key in config}
    return "num_layers" in names and bool(
        {"pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu"} & names
    )


class NeoX(Values):
    """The keys of a configuration, '_' between words."""

    kind = "GPT-NeoX key"
    sections = ""


def translate(
    config: Mapping[str, Any],
    setting: deepspeed.Setting,
    world: int | None,
    ledger: Ledger,
    asked: Mapping[str, Any] | None = None,
    accept_unknown: bool = False,
) -> dict[str, Any]:
    """The run of a configuration; `world` is the number of GPUs, if known, `asked` what `--set` says."""
    given = _one_spelling(config, ledger)
    values = NeoX(
        known.KEYS, {key: value for key, value in given.items() if key not in known.OF_DEEPSPEED}, ledger, asked
    )
    degrees = (values.whole("model_parallel_size", 1), values.whole("pipe_parallel_size", 1))  # 0: no engine
    tensor, pipeline = (degree or 1 for degree in degrees)
    share = None if None in degrees else tensor * pipeline
    ranks = world // share if world and share and world % share == 0 else None
    if ranks:
        ledger.note(f"data_parallel {ranks} = {world} GPUs / (TP{tensor} × PP{pipeline})")
    setting = replace(
        setting,
        ranks=ranks,
        wrong=share is None,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        precision="fp32",
        filler="GPT-NeoX's default",
    )
    run = deepspeed.translate(_json_part(values, given), replace(setting, asked=asked or {}), ledger)
    plan = run["plan"] | {"tensor_parallel": tensor, "pipeline_parallel": pipeline}
    plan |= _activations(values, tensor)
    if values.on("sequence_parallel"):
        _sequence_parallel(plan, tensor, ledger)
    if plan["zero_stage"] <= 1:
        plan.pop("gradient_dtype", None)  # the engine's own: fp32 beside bf16, fp16 beside fp16
        ledger.note("GPT-NeoX is DeepSpeed's engine around Megatron's layers: implementation deepspeed")
    model = model_section(values)
    plan["attention"] = _attention(values, model)
    _fusions(values, plan["attention"], model)
    run |= {"plan": plan, "model": model}
    _training(values, run)
    values.account(accept_unknown)
    return run


def _one_spelling(config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in config.items():
        name = str(key).replace("-", "_")
        if name in keys and keys[name] != value:
            ledger.problem(f"the key {name} stands twice, with {shown(keys[name])} and {shown(value)}; keep one")
        keys[name] = value
    return keys


def _json_part(values: Values, given: Mapping[str, Any]) -> dict[str, Any]:
    """What DeepSpeed is handed: its own keys, with `precision` written out as GPT-NeoX does."""
    found = {key: value for key, value in given.items() if key in known.OF_DEEPSPEED}
    precision = known.PRECISIONS.get(values.text("precision") or "")
    half = found.get("fp16")
    if isinstance(half, Mapping) and half.get("type") == "bfloat16":  # as its configurations of 2022 ask for bf16
        found |= {"bf16": {"enabled": half.get("enabled", False)}}
        del found["fp16"]
    if precision is None:
        return found
    for name in ("fp16", "bf16"):
        section = found.get(name)
        enabled = isinstance(section, Mapping) and bool(section.get("enabled"))
        if enabled and name != precision:
            values.ledger.problem(f"precision is {values.given['precision']!r}, but {name}.enabled is true; keep one")
    if precision != "fp32":
        section = found.get(precision)
        found[precision] = {**(section if isinstance(section, Mapping) else {}), "enabled": True}
    return found


def _activations(values: Values, tensor: int) -> dict[str, Any]:
    """Recompute."""
    partitioned, count = values.on("partition_activations"), values.whole("checkpoint_num_layers", 1)
    synchronized = values.on("synchronize_each_layer")
    if not values.on("checkpoint_activations"):
        values.ledger.assume("recompute", "none", "checkpoint_activations", "memory against step time")
        named = [key for key in _RECOMPUTE if values.has(key)]
        if named:
            values.ledger.note(f"{', '.join(named)} have no effect without checkpoint_activations")
        return {}
    if count is not None and count > 1:
        values.ledger.warn(
            f"checkpoint_num_layers {count}: one stored input for {count} layers is forecast as one for each layer"
        )
    if synchronized:
        values.ledger.warn("synchronize_each_layer waits for the device at every layer, which is not forecast")
    if partitioned and tensor == 1:
        values.ledger.note("partition_activations has no effect without tensor parallelism")
    return {"recompute": "full"} | ({"partition_activations": True} if partitioned and tensor > 1 else {})


_RECOMPUTE = ("partition_activations", "checkpoint_num_layers", "synchronize_each_layer")


def _sequence_parallel(plan: dict[str, Any], tensor: int, ledger: Ledger) -> None:
    if tensor > 1:
        plan["sequence_parallel"] = True
    else:
        ledger.warn("sequence_parallel has no effect at model_parallel_size 1; it is left out")


def _attention(values: Values, model: dict[str, Any]) -> str:
    """The kernel of every layer: `global` is Megatron's unfused attention, `flash` the fused one. Attention dropout
    inside the fused one is not forecast."""
    if not values.has("attention_config"):
        values.ledger.assume(
            "attention", "unfused (global), GPT-NeoX's default", "attention_config", "memory (scores are kept), time"
        )
    ledger, config = values.ledger, values.given["attention_config"] if values.has("attention_config") else None
    kinds = _attention_kinds(config, model["layers"], ledger)
    other = [kind for kind in kinds if kind not in ("global", "flash")]
    if other:
        ledger.not_yet(f"attention of the kind {', '.join(other)} (attention_config)", "global or flash")
    elif len(kinds) > 1:
        ledger.not_yet("global beside flash attention (attention_config)", "the same kind in every layer")
    if "flash" not in kinds:
        return "unfused"
    if model["attention_dropout"]:
        ledger.warn(
            f"attention_dropout {model['attention_dropout']:g} happens inside the flash kernel, where it is not"
            " forecast; it is set to 0"
        )
        model["attention_dropout"] = 0.0
    return "flash"


def _fusions(values: Values, attention: str, model: dict[str, Any]) -> None:
    """Fused kernels that the configuration leaves off and this layer would use."""
    uses = {
        "scaled_upper_triang_masked_softmax_fusion": attention == "unfused",
        "bias_gelu_fusion": model["activation"] == "gelu" and model["bias"],
        "rope_fusion": model["positions"] == "rotary",
        "layernorm_fusion": model["norm"] == "layernorm",
        "rmsnorm_fusion": model["norm"] == "rmsnorm",
    }
    on = {key: values.on(key) for key in known.FUSIONS}
    idle = [key for key in known.FUSIONS if values.has(key) and not uses[key]]
    if idle:
        values.ledger.note(f"{', '.join(idle)}: this model has nothing to fuse by it")
    off = [key for key in known.FUSIONS if uses[key] and not on[key]]
    if off:
        values.ledger.warn(f"{', '.join(off)} false (GPT-NeoX's default): the forecast keeps the fused kernel")


def _attention_kinds(config: object, layers: int | None, ledger: Ledger) -> list[str]:
    """The kinds of attention that a configuration names, each once: `[[["flash"], 24]]`, `[[["local", "global"],
    "all"]]`, or one word a layer."""
    if config is None:
        return ["global"]
    words = _attention_words(config, layers)
    if words is None:
        ledger.problem(f'attention_config is {shown(config)}; it must be such as [[["flash"], {layers or 24}]]')
        return ["global"]
    found = [ledger.choice(word, "attention_config", known.ATTENTION) for word in dict.fromkeys(words)]
    if layers is not None and None not in found and len(words) != layers:
        ledger.problem(f"attention_config names the attention of {len(words)} layers, but num_layers is {layers}")
    return [kind for kind in found if kind is not None] or ["global"]


def _attention_words(config: object, layers: int | None) -> list[str] | None:
    """One word a layer; None when the configuration is of another form."""
    words: list[str] = []
    for item in config if isinstance(config, list) else [None]:
        pattern, count = item if isinstance(item, list) and len(item) == 2 else ([item], 1)
        if not isinstance(pattern, list) or not pattern or not all(isinstance(word, str) for word in pattern):
            return None
        repeats = (layers or 0) // len(pattern) if count == "all" else count
        if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats * len(pattern) > MAXIMUM_LAYERS:
            return None
        words += pattern * repeats
    return words


def _training(values: Values, run: dict[str, Any]) -> None:
    ledger, steps, optimizer = values.ledger, values.whole("train_iters"), run.setdefault("optimizer", {})
    style = values.text("lr_decay_style", "linear")
    if style == "exponential":
        ledger.warn("lr_decay_style exponential changes the loss, not the step time; a constant rate is taken")
        style = "constant"
    share, stated = values.number("warmup", 0.01), values.run("optimizer")
    schedule = {"kind": style, "decay_steps": steps, "warmup_steps": int((share or 0) * (steps or 0)), "min_lr": 0.0}
    schedule |= stated.pop("schedule", {})
    optimizer |= stated | ({"schedule": schedule} if steps else {})
    run["train"] = {key: value for key, value in values.run("train").items() if value is not None}
    if values.has("checkpoint_factor"):
        ledger.note("checkpoint_factor is the old name of save_interval")
    key = "save_interval" if values.has("save_interval") else "checkpoint_factor"
    every = values.given.get(key)
    if every is not None and not isinstance(every, Mapping):
        run["checkpoint"] = {"every": ledger.integer(every, key, least=0)}
