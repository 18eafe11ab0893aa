"""torchtitan configurations: TOML of three generations, and the `--section.key=value` overrides of its command line.

    translate(tomllib.loads(text), ledger, world=64)  ->  {"model": ..., "plan": ..., ...}

Old names are first rewritten to those of torchtitan 0.2 (`importers.torchtitan_table`), so that one translation serves
all generations. Unknown tables and keys are warnings: many files come from forks.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from importers.partitioned import fsdp
from importers.table import Values, nested
from importers.torchtitan_table import FLAVORS, KEYS, RENAMED
from plan import presets
from plan.ledger import Ledger
from program.errors import InputError
from program.files import parsing, refuse_long, refuse_unreadable
from program.nearest import nearest_name, shown

TABLES = {"model", "training", "parallelism", "optimizer", "lr_scheduler", "activation_checkpoint", "checkpoint"}
SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved-1f1b"}
MOST_DOTS = 100
"""In one key."""
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def is_torchtitan(tables: Mapping[str, Any]) -> bool:
    """Whether parsed TOML looks like torchtitan's."""
    return bool({"training", "parallelism", "model"} & set(tables)) and not {"plan", "cluster"} & set(tables)


def read(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    refuse_long(text, where, "=,[{\n")
    with parsing(where, "tables"):
        try:
            _refuse_deep_keys(text, where)
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{where} is not TOML: {error}") from None
        refuse_unreadable(tables, where)
    return tables


def _refuse_deep_keys(text: str, where: str) -> None:
    """A dotted key names a table a dot, and tomllib takes time that grows with the square of the dots."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") <= MOST_DOTS or line.lstrip().startswith("#"):
            continue
        dots = max(piece.count(".") for piece in re.split("[={,]", line))
        if dots > MOST_DOTS:
            raise InputError(
                f"{where}: line {number} nests tables too deeply to be read: {dots} dots, at most {MOST_DOTS}"
            )


class Titan(Values):
    """The dotted keys of a configuration under their names of today."""

    kind = "torchtitan key"
    sections = r"(model|parallelism|float8|quantize)\."


def translate(
    tables: Mapping[str, Any],
    ledger: Ledger,
    world: int | None = None,
    asked: Mapping[str, Any] | None = None,
    accept_unknown: bool = False,
) -> dict[str, Any]:
    """Model, plan, optimizer, train and checkpoint sections; `world` (GPUs) settles data parallelism, `asked` is what
    --set says."""
    for table in TABLES & tables.keys():
        if not isinstance(tables[table], Mapping):
            ledger.problem(f"{table} is {shown(tables[table])}, but must be a table [{table}]")
    written = nested({key: value for key, value in tables.items() if key not in TABLES or isinstance(value, Mapping)})
    asked = dict(asked or {})
    local = asked.get("plan.micro_batch_size")
    values = _values(written, ledger, asked | ({} if local is None else {"local": local}))
    plan = _plan(values)
    ranks = _data_parallel(values, plan, world)
    if plan["pipeline_parallel"] > 1:
        _in_stages(plan, ranks, asked, ledger)
    else:
        fsdp(plan, "torchtitan's FSDP2", ledger)
    length = values.whole("training.seq_len", 2048) or 2048
    if not values.has("training.seq_len"):
        ledger.assume("sequence length", "2048, torchtitan's default", "training.seq_len", "memory and step time")
    if not values.wrong:  # a batch does not follow from a wrong number
        plan |= _batch(values, plan, length, ranks)
    run: dict[str, Any] = {"model": _model(values, length), "plan": plan} | _training(values)
    values.account(accept_unknown)
    return run


def _values(written: dict[str, Any], ledger: Ledger, asked: Mapping[str, Any]) -> Titan:
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in written.items():
        new = RENAMED.get(key, key)
        if new != key:
            ledger.note(f"torchtitan key {key} is an old or new name of {new}")
            names[new] = key
        if new in given and given[new] != value:
            ledger.problem(f"two values of {new}: {given[new]} and {value} (as {key}); keep one")
        given[new] = value
    values = Titan(KEYS, given, ledger, asked, names)
    if "local" in asked and "plan.pipeline_parallel" not in asked and _pipeline(values) == 1:
        values.given["training.local_batch_size"] = asked["local"]
    elif "local" in asked:
        values.given["parallelism.pipeline_parallel_microbatch_size"] = asked["local"]
        values.given.pop("parallelism.num_pp_microbatches", None)
    values.check()
    return values


def _pipeline(values: Values) -> int:
    return values.whole("parallelism.pipeline_parallel_degree", 1) or 1


def _plan(values: Values) -> dict[str, Any]:
    ledger = values.ledger
    tensor, pipeline = values.whole("parallelism.tensor_parallel_degree", 1) or 1, _pipeline(values)
    plan: dict[str, Any] = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "zero_stage": 3}
    if tensor > 1:
        plan["sequence_parallel"] = True
        ledger.note("torchtitan's tensor parallelism always splits the sequence too: sequence_parallel true")
    for ours in ("context_parallel", "expert_parallel"):
        if (degree := values.whole(f"parallelism.{ours}_degree", 1) or 1) > 1:
            plan[ours] = degree
    if values.on("parallelism.enable_async_tensor_parallel"):
        ledger.not_yet("asynchronous tensor parallelism", "enable_async_tensor_parallel false")
    schedule = values.text("parallelism.pipeline_parallel_schedule", "1F1B") or "1F1B"
    if pipeline > 1 and schedule.lower() in SCHEDULES:
        plan["schedule"] = SCHEDULES[schedule.lower()]
        if plan["schedule"] == "interleaved-1f1b":
            plan["virtual_pipeline"] = 2
            ledger.note("Interleaved1F1B: two stages a rank, torchtitan's default")
    elif pipeline > 1:
        ledger.not_yet(f"pipeline_parallel_schedule {schedule}", "1F1B or Interleaved1F1B")
    reshard = values.text("parallelism.fsdp_reshard_after_forward", "default")
    plan["zero"] = {"reshard": reshard == "always" or (reshard == "default" and pipeline == 1)}
    if (kept := values.text("training.dtype", "float32")) != "float32":
        ledger.not_yet(f"parameters and optimizer state in {kept} (training.dtype)", "float32")
    if values.has("compile.enable"):
        plan["kernels"] = "compiled" if values.on("compile.enable") else "eager"
    if values.on("training.enable_cpu_offload"):
        plan["offload"] = {"optimizer": "cpu", "parameters": "cpu"}
    plan |= _recompute(values)
    plan["precision"] = DTYPES[values.text("training.mixed_precision_param", "bfloat16") or ""]
    plan["gradient_dtype"] = DTYPES[values.text("training.mixed_precision_reduce", "float32") or ""]
    if values.on("float8.enable_float8_linear") or "float8" in (values.text("model.converters") or ""):
        plan["precision"] = "fp8"
    return plan


def _in_stages(plan: dict[str, Any], ranks: int | None, asked: Mapping[str, Any], ledger: Ledger) -> None:
    """torchtitan shards inside pipeline stages, which no engine here does; one rank has nothing to shard."""
    plan.pop("zero")
    plan["zero_stage"] = 1
    if ranks != 1 and "plan.zero_stage" not in asked:
        ledger.not_yet(
            f"FSDP inside {plan['pipeline_parallel']} pipeline stages (data_parallel_shard_degree with"
            " pipeline_parallel_degree)",
            "--set plan.pipeline_parallel=1, or --set plan.zero_stage=1 for sharded optimizer state alone",
        )


def _recompute(values: Values) -> dict[str, Any]:
    """torchtitan recomputes selectively where nothing is said."""
    mode = values.text("activation_checkpoint.mode", "selective")
    option = values.text("activation_checkpoint.selective_ac_option", "op") or "op"
    if not values.has("activation_checkpoint.mode"):
        values.ledger.assume("recompute", "selective, torchtitan's default", "activation_checkpoint.mode", "memory")
    if mode == "selective" and re.fullmatch("[0-9]{1,9}", option) and int(option) > 1:
        values.ledger.not_yet(
            f"recompute of every {option}th layer (selective_ac_option {option!r})",
            "mode full or selective_ac_option op",
        )
    if mode == "memory_budget":
        values.ledger.not_yet(f"activation_checkpoint.mode {mode}", "none, selective or full")
        mode = "none"
    return {"recompute": mode}


def _data_parallel(values: Values, plan: Mapping[str, Any], world: int | None) -> int | None:
    """Data-parallel ranks: shard × replicate, with -1 (rest of the world) settled where the world is known."""
    shard = values.whole("parallelism.data_parallel_shard_degree")
    copies = values.whole("parallelism.data_parallel_replicate_degree", 1) or 1
    if copies > 1:
        values.ledger.not_yet(
            f"hybrid sharding (data_parallel_replicate_degree {copies})", "data_parallel_replicate_degree 1"
        )
    if shard is not None:
        return shard * copies
    share: int = plan["tensor_parallel"] * plan["pipeline_parallel"] * plan.get("context_parallel", 1)
    if world is None or world % share:
        return None
    values.ledger.note(f"data_parallel {world // share} = {world} GPUs / {share} (tensor × pipeline × context)")
    return world // share


def _batch(values: Values, plan: Mapping[str, Any], length: int, ranks: int | None) -> dict[str, Any]:
    """Micro-batch and global batch; `length` is of a sequence, `ranks` (None: not known) are data-parallel."""
    ledger = values.ledger
    local = _sequences(values, "training.local_batch_size", "num_tokens_per_microbatch_per_dp_rank", length)
    step = _sequences(values, "training.global_batch_size", "num_tokens_per_train_step", length)
    if local is None:
        local = 8
        ledger.assume("batch", "8 a GPU, torchtitan's default", "training.local_batch_size", "memory and step time")
    micro = local
    if plan["pipeline_parallel"] > 1:
        count = values.whole("parallelism.num_pp_microbatches")
        micro = (local // count if count else values.whole("parallelism.pipeline_parallel_microbatch_size")) or 1
        ledger.note(f"with a pipeline the local batch {local} is cut into micro-batches of {micro}")
    found: dict[str, Any] = {"micro_batch_size": micro}
    if step is not None:
        found["global_batch_size"] = step
        if ranks and step % (local * ranks):
            ledger.problem(
                f"global batch {step} is not a multiple of local batch {local} × {ranks} data-parallel ranks ="
                f" {local * ranks}"
            )
    elif ranks:
        found["global_batch_size"] = local * ranks
        ledger.note(f"global batch {local * ranks} = local batch {local} × {ranks} data-parallel ranks")
    elif micro != local:
        ledger.problem(
            "the global batch is local batch × data-parallel ranks, but the number of GPUs is not known; give --cluster"
            " PRESET --nodes N"
        )
    return found


def _sequences(values: Values, key: str, tokens_key: str, length: int) -> int | None:
    """A batch in sequences, or made of one in tokens where that alone is given."""
    given, tokens = values.whole(key), values.whole(f"training.{tokens_key}")
    if given is not None or tokens is None:
        return given
    if tokens % length:
        values.ledger.problem(
            f"{tokens_key} {tokens} is not a multiple of seq_len {length} (nearest"
            f" {max(1, round(tokens / length)) * length})"
        )
    return max(1, tokens // length)


def _training(values: Values) -> dict[str, Any]:
    """The sections that say how long and at which rate; torchtitan's defaults where a key is not given."""
    ledger, name = values.ledger, values.text("optimizer.name", "AdamW") or ""
    if name.lower() not in ("adamw", "adam"):
        ledger.not_yet(f"the optimizer {name}", "AdamW")
    usual = {"name": "adamw", "lr": 8e-4, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
    optimizer: dict[str, Any] = usual | values.run("optimizer")
    steps = values.whole("training.steps", 10000) or 10000
    decay = values.text("lr_scheduler.decay_type", "linear")
    if decay == "sqrt":
        ledger.warn("lr_scheduler.decay_type sqrt changes the loss, not the step time; a constant rate is taken")
        decay = "constant"
    optimizer["betas"] = [values.number(f"optimizer.beta{i}", value) for i, value in ((1, 0.9), (2, 0.95))]
    optimizer["schedule"] = {
        "kind": decay,
        "warmup_steps": min(values.whole("lr_scheduler.warmup_steps", 200) or 0, steps - 1),
        "decay_steps": steps,
        "min_lr": (optimizer["lr"] or 0) * (values.number("lr_scheduler.min_lr_factor", 0.0) or 0),
    }
    run: dict[str, Any] = {"optimizer": optimizer, "train": {"steps": steps}}
    seed = values.whole("debug.seed", values.whole("training.seed"))
    run["train"] |= {} if seed is None else {"seed": seed}
    if values.on("checkpoint.enable") and values.has("checkpoint.interval"):
        run["checkpoint"] = {"every": values.whole("checkpoint.interval")}
    return run


def _model(values: Values, length: int) -> dict[str, Any]:
    name, flavor = values.text("model.name", "") or "", values.text("model.flavor", "") or ""
    known = {(family.lower(), size.lower()): preset for (family, size), preset in FLAVORS.items()}
    model = known.get((name.lower().replace("_", "").replace("3.1", "3"), flavor.lower()))
    if isinstance(model, dict):
        return {**model, "seq_length": length}
    return {"preset": model, "seq_length": length} if model in presets.names("models") else {}


def unknown_model(keys: Mapping[str, Any]) -> str:
    """What is wrong with the name and flavor of a model that no preset is."""
    given = {key: keys.get(f"model.{key}") for key in ("name", "flavor")}
    missing = [f"model.{key}" for key, value in given.items() if value is None]
    if missing:
        return f"the torchtitan configuration has no {' and no '.join(missing)}; add --model PRESET"
    presented = presets.names("models")
    known = [f"{family} {size}" for (family, size), model in FLAVORS.items() if str(model) in presented]
    near = nearest_name(f"{given['name']} {given['flavor']}", known)
    hint = f"; the nearest known is {near}" if near else f"; known: {', '.join(known)}"
    model = f"torchtitan model {shown(given['name'])} flavor {shown(given['flavor'])}"
    return f"{model} is not known here{hint}; or add --model PRESET"
