"""ZeRO in a DeepSpeed configuration: stage, sizes, buckets, overlap, offload."""

from typing import Any

from importers import deepspeed_keys as keys
from plan.ledger import Ledger
from program.nearest import shown

BYTES_OF_FP32 = 4


def _stage(value: object, ledger: Ledger) -> int:
    if isinstance(value, bool):
        ledger.note(f"zero_optimization.stage {str(value).lower()} is an old form of {int(value)}")
        return int(value)
    stage = ledger.integer(value, "zero_optimization.stage")
    if stage is not None and not 0 <= stage <= 3:
        ledger.problem(f"zero_optimization.stage is {stage}; it must be 0, 1, 2 or 3")
    return stage or 0


def zero_section(config: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    section = config.get("zero_optimization", {})
    if isinstance(section, bool):
        ledger.note(f"zero_optimization {str(section).lower()} is an old form of stage {int(section)}")
        section = {"stage": int(section)}
    stage = _stage(section.get("stage", 0), ledger)
    for key, off in keys.ZERO_NOT_FORECAST.items():
        if key in section and section[key] not in off:
            ledger.not_yet(f"zero_optimization.{key} {shown(section[key])}", f"{key} {shown(off[0])}")
    found: dict[str, Any] = {"zero_stage": stage}
    sizes = {
        "prefetch": "stage3_prefetch_bucket_size",
        "live": "stage3_max_live_parameters",
        "persist_below": "stage3_param_persistence_threshold",
    }
    zero = {
        ours: ledger.integer(section[theirs], f"zero_optimization.{theirs}")
        for ours, theirs in sizes.items()
        if theirs in section
    }
    if zero and stage == 3:
        found["zero"] = {key: value for key, value in zero.items() if value is not None}
    elif zero:
        ledger.note(f"stage3_* keys have no effect at stage {stage}")
    communication: dict[str, Any] = {
        "overlap": bool(ledger.boolean(section.get("overlap_comm", stage == 3), "zero_optimization.overlap_comm"))
    }
    if "overlap_comm" not in section:
        ledger.note(f"overlap_comm is not given: DeepSpeed's default at stage {stage} is {str(stage == 3).lower()}")
    for key in ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size"):
        elements = ledger.integer(section[key], f"zero_optimization.{key}") if key in section else None
        if key == "reduce_bucket_size" and elements is not None:
            communication["bucket_mb"] = elements * BYTES_OF_FP32 / 1e6
    found["communication"] = communication
    _reduction(section, stage, ledger)
    return found | _offload(section, stage, ledger)


def _reduction(section: dict[str, Any], stage: int, ledger: Ledger) -> None:
    """`use_multi_rank_bucket_allreduce`: all ranks get the sum of a bucket, or the one rank that keeps it
    (stage_1_and_2.py, `average_tensor`)."""
    key = "zero_optimization.use_multi_rank_bucket_allreduce"
    value = section.get("use_multi_rank_bucket_allreduce")
    if value is None or ledger.boolean(value, key) is not False:
        return
    if stage not in (1, 2):
        ledger.note(f"{key} false has no effect at stage {stage}")
        return
    ledger.warn(
        f"{key} false reduces every gradient to the one rank that keeps it, Ψ elements a rank, where the all-reduce"
        " that is forecast moves 2Ψ: gradient communication is forecast up to twice too slow; --set"
        " plan.implementation=windtunnel forecasts Ψ, as a reduce-scatter"
    )


def _offload(section: dict[str, Any], stage: int, ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = {}
    optimizer, parameters = section.get("offload_optimizer") or {}, section.get("offload_param") or {}
    ratio = ledger.number(optimizer.get("ratio", 1), "zero_optimization.offload_optimizer.ratio", least=0, most=1)
    device = _device(optimizer, "offload_optimizer", ledger)
    if device != "none" and stage == 0:
        ledger.warn("offload_optimizer has no effect at stage 0; ZeRO must be on")
    elif device != "none":
        found["optimizer"] = device
        if "ratio" in optimizer:
            found["fraction"] = ratio
    device = _device(parameters, "offload_param", ledger)
    if device != "none" and stage < 3:
        ledger.warn(f"offload_param {device} has no effect at stage {stage}: parameters are offloaded at stage 3 only")
    elif device != "none":
        found["parameters"] = device
    return {"offload": found} if found else {}


def _device(section: dict[str, Any], name: str, ledger: Ledger) -> str:
    """Where a section offloads to; DeepSpeed's default is the host."""
    given = section.get("device", "cpu" if section else "none")
    return "none" if given is None else ledger.choice(given, f"zero_optimization.{name}.device", keys.DEVICES) or "none"
