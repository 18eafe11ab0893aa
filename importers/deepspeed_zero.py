"""ZeRO in a DeepSpeed configuration: stage, sizes, buckets, overlap, offload."""

from typing import Any

from importers import deepspeed_table as keys
from importers.table import Values
from program.nearest import shown

BYTES_OF_FP32 = 4


def zero_section(values: Values) -> dict[str, Any]:
    """The stage, and what belongs to it."""
    ledger, stage = values.ledger, values.whole("zero_optimization.stage", 0) or 0
    for key, off in keys.ZERO_NOT_FORECAST.items():
        if values.has(f"zero_optimization.{key}") and (value := values.given[f"zero_optimization.{key}"]) != off:
            ledger.not_yet(f"zero_optimization.{key} {shown(value)}", f"{key} {shown(off)}")
    found: dict[str, Any] = {"zero_stage": stage}
    sizes = {"prefetch": "prefetch_bucket_size", "live": "max_live_parameters"}
    sizes |= {"persist_below": "param_persistence_threshold"}
    zero = {
        ours: values.whole(f"zero_optimization.stage3_{theirs}")
        for ours, theirs in sizes.items()
        if values.has(f"zero_optimization.stage3_{theirs}")
    }
    if zero and stage == 3:
        found["zero"] = {key: value for key, value in zero.items() if value is not None}
    elif zero:
        ledger.note(f"stage3_* keys have no effect at stage {stage}")
    if not values.has("zero_optimization.overlap_comm"):
        ledger.note(f"overlap_comm is not given: DeepSpeed's default at stage {stage} is {str(stage == 3).lower()}")
    communication: dict[str, Any] = {"overlap": values.on("zero_optimization.overlap_comm", stage == 3)}
    if (elements := values.whole("zero_optimization.reduce_bucket_size")) is not None:
        communication["bucket_mb"] = elements * BYTES_OF_FP32 / 1e6
    _reduction(values, stage)
    return found | {"communication": communication} | _offload(values, stage)


def _reduction(values: Values, stage: int) -> None:
    """`use_multi_rank_bucket_allreduce`: all ranks get the sum of a bucket, or the one rank that keeps it
    (stage_1_and_2.py, `average_tensor`)."""
    key = "zero_optimization.use_multi_rank_bucket_allreduce"
    if values.on(key, True):
        return
    if stage not in (1, 2):
        values.ledger.note(f"{key} false has no effect at stage {stage}")
        return
    values.ledger.warn(
        f"{key} false reduces every gradient to the one rank that keeps it, Ψ elements a rank, where the all-reduce"
        " that is forecast moves 2Ψ: gradient communication is forecast up to twice too slow; --set"
        " plan.implementation=windtunnel forecasts Ψ, as a reduce-scatter"
    )


def _offload(values: Values, stage: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    device, ratio = _device(values, "offload_optimizer"), values.number("zero_optimization.offload_optimizer.ratio")
    if device != "none" and stage == 0:
        values.ledger.warn("offload_optimizer has no effect at stage 0; ZeRO must be on")
    elif device != "none":
        found |= {"optimizer": device} | ({} if ratio is None else {"fraction": ratio})
    device = _device(values, "offload_param")
    if device != "none" and stage < 3:
        values.ledger.warn(
            f"offload_param {device} has no effect at stage {stage}: parameters are offloaded at stage 3 only"
        )
    elif device != "none":
        found["parameters"] = device
    return {"offload": found} if found else {}


def _device(values: Values, name: str) -> str:
    """Where a section offloads to; DeepSpeed's default is the host, null is nowhere."""
    section = values.given.get(f"zero_optimization.{name}") or {}
    nowhere = not section or section.get("device", "") is None
    return "none" if nowhere else values.text(f"zero_optimization.{name}.device", "cpu") or "none"
