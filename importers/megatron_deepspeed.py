"""DeepSpeed beside a Megatron script: the JSON is found, checked against the flags, and laid over the plan. The JSON
wins for ZeRO; both must agree on batch and precision.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from importers import deepspeed, partitioned
from importers.arguments import Arguments
from importers.megatron_plan import model_parallel
from importers.shell.script import Script
from importers.world import Request, World
from plan.ledger import Ledger
from program.errors import InputError


def lay_deepspeed(
    script: Script,
    a: Arguments,
    run: dict[str, Any],
    world: World,
    request: Request,
    ledger: Ledger,
) -> None:
    """Lay the DeepSpeed configuration over the plan: JSON wins for ZeRO, both must agree on the batch."""
    used, name, stage = a.has("--deepspeed"), a.file("--deepspeed_config", script.files), a.whole("--zero-stage")
    alone, plan = a.has("--no-pipeline-parallel"), run["plan"]
    a.idle("--deepspeed-activation-checkpointing", "of its own: --checkpoint-activations decides what is recomputed")
    a.idle("--zero-reduce-bucket-size", "here: the buckets of the DeepSpeed JSON are taken")
    a.idle("--zero-allgather-bucket-size", "here: DeepSpeed's parameter gather is forecast in whole buckets")
    if a.has("--enable-zbh1-pipeline"):
        plan["schedule"] = "zb-h1"
    if not used and name is None:
        a.idle("--no-pipeline-parallel", "without --deepspeed")
        if stage is not None:
            ledger.warn(f"--zero-stage {stage} has no effect without --deepspeed")
        return
    if not used:
        shown = script.expander.show(name or "")
        ledger.warn(
            f"--deepspeed_config {shown} has no effect without --deepspeed; it is applied, as the script seems"
            " to mean it"
        )
    config = _config(script, name, ledger)
    pieces = _pieces(config, stage, _setting(a, plan, world, request), "--clip-grad" in a.given, ledger)
    _same_precision(plan, pieces["plan"], ledger)
    _lay_over(plan, pieces["plan"], (config or {}).get("zero_optimization"), alone, ledger)
    run["optimizer"] = pieces.get("optimizer", {})


def _setting(a: Arguments, plan: dict[str, Any], world: World, request: Request) -> deepspeed.Setting:
    """What the script's flags say of the configuration's surroundings."""
    size, copy = world.size, model_parallel(plan)
    batches = {"--micro-batch-size": "micro_batch_size", "--global-batch-size": "global_batch_size"}
    return deepspeed.Setting(
        ranks=size // copy if size and copy and size % copy == 0 else None,
        wrong=copy is None or any(flag in a.given and ours not in plan for flag, ours in batches.items()),
        where=f"{size} GPUs / model parallel {copy}",
        tensor_parallel=plan["tensor_parallel"] or 1,
        pipeline_parallel=plan["pipeline_parallel"] or 1,
        script=True,
        micro=plan.get("micro_batch_size"),
        train=plan.get("global_batch_size"),
        clip=a.number("--clip-grad", 1.0),
        semantics=request.semantics,
        asked=request.asked,
    )


def _pieces(
    config: dict[str, Any] | None, stage: int | None, setting: deepspeed.Setting, clips: bool, ledger: Ledger
) -> dict[str, Any]:
    """The sections of the JSON; without one, the stage of the flags. `clips`: the script says where to clip."""
    if config is None:
        return {"plan": {"zero_stage": stage if stage is not None else 1}}
    pieces = deepspeed.translate(config, setting if clips else replace(setting, clip=None), ledger)
    pieces["plan"] |= {"zero_stage": _stage(config, pieces["plan"]["zero_stage"], stage, ledger)}
    return pieces


def _same_precision(plan: Mapping[str, Any], pieces: Mapping[str, Any], ledger: Ledger) -> None:
    precision = pieces.get("precision")
    if precision is not None and precision != plan["precision"]:
        ledger.problem(
            f"two precisions: {precision} in the DeepSpeed JSON and {plan['precision']} from the script's flags; make"
            " them equal"
        )


def _config(script: Script, name: str | None, ledger: Ledger) -> dict[str, Any] | None:
    """The JSON a script writes in a heredoc, or the file beside it."""
    if name is None:
        ledger.warn("--deepspeed without --deepspeed_config: ZeRO settings come from the flags only")
        return None
    shown = script.expander.show(name)
    text = script.files.get(name)
    if text is not None:
        unknown = script.expander.why(text)
        if unknown:
            ledger.problem(
                f"{shown}, written by the script, contains {unknown[0].detail}, whose value is unknown:"
                f" {unknown[0].sentence()}"
            )
            return None
        return deepspeed.read(text, shown)
    try:
        text = None if script.expander.why(name) else script.beside.text(name)
    except InputError as error:
        ledger.problem(str(error))
        return None
    if text is not None:
        return deepspeed.read(text, shown)
    ledger.warn(
        f"{shown} is neither written by the script nor beside it: ZeRO settings come from the flags only, and without"
        " --zero-stage that is stage 1"
    )
    return None


def _stage(config: Mapping[str, Any], found: int, flag: int | None, ledger: Ledger) -> int:
    if flag is not None and flag != found and "zero_optimization" in config:
        ledger.warn(
            f"zero_optimization.stage {found} in the DeepSpeed JSON and --zero-stage {flag} in the script: the JSON"
            " wins"
        )
    return found if "zero_optimization" in config or flag is None else flag


def _lay_over(plan: dict[str, Any], pieces: dict[str, Any], section: object, alone: bool, ledger: Ledger) -> None:
    stage = pieces["zero_stage"]
    if stage == 0 and plan["precision"] == "bf16":
        ledger.note(
            "ZeRO stage 0 with bf16: DeepSpeed's bf16 optimizer shards its states over the data-parallel ranks by"
            " itself, so zero_stage 1"
        )
        pieces = {**pieces, "zero_stage": 1}
    pipeline = plan["pipeline_parallel"] or 1
    if stage >= 2 and not alone and pipeline == 1:
        ledger.problem(
            f"ZeRO stage {stage} needs --no-pipeline-parallel even at pipeline size 1: without it DeepSpeed's pipeline"
            " engine runs, which refuses ZeRO-2 and ZeRO-3"
        )
    plan["implementation"] = "deepspeed"
    plan.setdefault("attention", "unfused")  # the layers are still Megatron's
    if plan["precision"] == "fp16":
        plan["gradient_dtype"] = "fp16"
    for key in (
        "zero_stage",
        "zero",
        "communication",
        "partition_activations",
        "micro_batch_size",
        "global_batch_size",
    ):
        if key in pieces:
            plan[key] = pieces[key]
    if "offload" in pieces:
        plan["offload"] = {**plan.get("offload", {}), **pieces["offload"]}
    partitioned.deepspeed(plan, section, ledger)
    if plan.get("partition_activations") and (plan["recompute"] != "full" or plan["tensor_parallel"] == 1):
        plan.pop("partition_activations")
        ledger.note("partition_activations has no effect without full recompute and tensor parallelism")
