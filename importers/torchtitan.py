"""torchtitan configurations: TOML of three generations, and the `--section.key=value` overrides of its command line.

    translate(tomllib.loads(text), ledger, world=64)  ->  {"model": ..., "plan": ..., ...}

Old names are first rewritten to those of torchtitan 0.2 (`RENAMED`), so that one translation serves all generations.
Unknown tables and keys are warnings: many files come from forks.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from importers.partitioned import fsdp
from importers.torchtitan_batch import batch_section, data_parallel
from importers.torchtitan_keys import COUNTS, FLAVORS, NO_EFFECT, OPEN, RATES, READ, RENAMED, SWITCHES, WORDS
from importers.torchtitan_training import training_sections
from importers.torchtitan_values import on, whole
from plan.ledger import Ledger, nearest
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


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        path = f"{prefix}{key}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def translate(tables: Mapping[str, Any], ledger: Ledger, world: int | None = None) -> dict[str, Any]:
    """Model, plan, optimizer, train and checkpoint sections; `world` (GPUs) settles data parallelism."""
    for table in TABLES & tables.keys():
        if not isinstance(tables[table], Mapping):
            ledger.problem(f"{table} is {shown(tables[table])}, but must be a table [{table}]")
    written = flatten({key: value for key, value in tables.items() if key not in TABLES or isinstance(value, Mapping)})
    keys = _renamed(written, ledger)
    plan = _plan(keys, ledger)
    fsdp(plan, "torchtitan's FSDP2", ledger)
    ranks = data_parallel(keys, plan, world, ledger)
    length = whole(keys, "training.seq_len", ledger) or 2048
    wrong = {RENAMED.get(key, key) for key in written} - keys.keys()
    if not wrong:  # a batch does not follow from a wrong number
        plan |= batch_section(keys, plan, length, ranks, ledger)
    run: dict[str, Any] = {"model": _model(keys, length, ledger), "plan": plan}
    run |= training_sections(keys, ledger)
    return run


def _renamed(keys: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    result: dict[str, Any] = {}
    without: list[str] = []
    for key, value in keys.items():
        new = RENAMED.get(key, key)
        if new != key:
            ledger.note(f"torchtitan key {key} is an old or new name of {new}")
        if new in result and result[new] != value:
            ledger.problem(f"two values of {new}: {result[new]} and {value} (as {key}); keep one")
        if not _legal(new, key, value, ledger):
            continue
        result[new] = value
        if new not in READ:
            table = new.rsplit(".", 1)[0]
            if new in NO_EFFECT or table in NO_EFFECT or new.split(".")[0] in NO_EFFECT:
                without.append(new)
            else:
                tables = {each.split(".")[0] for each in READ | NO_EFFECT}
                kind = (
                    "torchtitan key" if new.split(".")[0] in tables else f"torchtitan table [{new.split('.')[0]}], key"
                )
                hint = nearest(new.rsplit(".", 1)[-1], [each.rsplit(".", 1)[-1] for each in READ])
                full = next((each for each in sorted(READ) if hint and each.endswith(f".{hint}")), None)
                ledger.unapplied(
                    f"unknown {kind} {new}: it is not applied" + (f"; did you mean {full}?" if full else "")
                )
    ledger.no_effect(without, "torchtitan keys")
    return result


def _legal(new: str, key: str, value: object, ledger: Ledger) -> bool:
    """Whether a value may be taken; a problem under the key that was written otherwise. -1 asks for the default."""
    if (new in OPEN and value == -1) or (new in SWITCHES and value == ""):  # "": off, in files of 2024
        return True
    if new in COUNTS or new in OPEN:
        return ledger.integer(value, key, least=1) is not None
    if new in SWITCHES:
        return ledger.boolean(value, key) is not None
    if new in WORDS:
        return ledger.choice(value, key, WORDS[new]) is not None
    return new not in RATES or ledger.number(value, key, **RATES[new]) is not None


def _plan(keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    tensor = whole(keys, "parallelism.tensor_parallel_degree", ledger) or 1
    pipeline = whole(keys, "parallelism.pipeline_parallel_degree", ledger) or 1
    plan: dict[str, Any] = {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "zero_stage": 3,
    }
    if tensor > 1:
        plan["sequence_parallel"] = True
        ledger.note("torchtitan's tensor parallelism always splits the sequence too: sequence_parallel true")
    if (context := whole(keys, "parallelism.context_parallel_degree", ledger) or 1) > 1:
        plan["context_parallel"] = context
    if (experts := whole(keys, "parallelism.expert_parallel_degree", ledger) or 1) > 1:
        plan["expert_parallel"] = experts
    if on(keys, "parallelism.enable_async_tensor_parallel", ledger):
        ledger.not_yet("asynchronous tensor parallelism", "enable_async_tensor_parallel false")
    schedule = str(keys.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if pipeline > 1 and schedule.lower() in SCHEDULES:
        plan["schedule"] = SCHEDULES[schedule.lower()]
        if plan["schedule"] == "interleaved-1f1b":
            plan["virtual_pipeline"] = 2
            ledger.note("Interleaved1F1B: two stages a rank, torchtitan's default")
    elif pipeline > 1:
        ledger.not_yet(f"pipeline_parallel_schedule {schedule}", "1F1B or Interleaved1F1B")
    reshard = str(keys.get("parallelism.fsdp_reshard_after_forward", "default"))
    plan["zero"] = {"reshard": reshard == "always" or (reshard == "default" and pipeline == 1)}
    if keys.get("training.dtype", "float32") != "float32":
        ledger.not_yet(f"parameters and optimizer state in {keys['training.dtype']} (training.dtype)", "float32")
    if "compile.enable" in keys:
        plan["kernels"] = "compiled" if ledger.boolean(keys["compile.enable"], "compile.enable") else "eager"
    if on(keys, "training.enable_cpu_offload", ledger):
        plan["offload"] = {"optimizer": "cpu", "parameters": "cpu"}
    plan |= _recompute(keys, ledger)
    param = str(keys.get("training.mixed_precision_param", "bfloat16"))
    plan["precision"] = DTYPES.get(param, "bf16")
    plan["gradient_dtype"] = DTYPES.get(str(keys.get("training.mixed_precision_reduce", "float32")), "fp32")
    if on(keys, "float8.enable_float8_linear", ledger) or "float8" in str(keys.get("model.converters", "")):
        plan["precision"] = "fp8"
    return plan


def _recompute(keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    mode = str(keys.get("activation_checkpoint.mode", "selective"))
    option = str(keys.get("activation_checkpoint.selective_ac_option", "op"))
    if mode == "selective" and re.fullmatch("[0-9]{1,9}", option) and int(option) > 1:
        ledger.not_yet(
            f"recompute of every {option}th layer (selective_ac_option {option!r})",
            "mode full or selective_ac_option op",
        )
    if mode not in ("none", "full", "selective"):
        ledger.not_yet(f"activation_checkpoint.mode {mode}", "none, selective or full")
        mode = "none"
    return {"recompute": mode}


def _model(keys: Mapping[str, Any], length: int, ledger: Ledger) -> dict[str, Any]:
    name, flavor = str(keys.get("model.name", "")), str(keys.get("model.flavor", ""))
    known = {(family.lower(), size.lower()): preset for (family, size), preset in FLAVORS.items()}
    preset = known.get((name.lower().replace("_", "").replace("3.1", "3"), flavor.lower()))
    if preset is None:
        return {}
    return {"preset": preset, "seq_length": length}


def unknown_model(keys: Mapping[str, Any]) -> str:
    """What is wrong with the name and flavor of a model that no preset is."""
    given = {key: keys.get(f"model.{key}") for key in ("name", "flavor")}
    missing = [f"model.{key}" for key, value in given.items() if value is None]
    if missing:
        return f"the torchtitan configuration has no {' and no '.join(missing)}; add --model PRESET"
    known = [f"{family} {size}" for family, size in FLAVORS]
    near = nearest_name(f"{given['name']} {given['flavor']}", known)
    hint = f"; the nearest known is {near}" if near else f"; known: {', '.join(known)}"
    model = f"torchtitan model {shown(given['name'])} flavor {shown(given['flavor'])}"
    return f"{model} is not known here{hint}; or add --model PRESET"
