"""The parallel plan of a Megatron command: degrees, pipeline layout, sharding, batch, recompute, precision, offload.

Each function returns the keys it decides. What the world size decides (data parallelism) stays `auto`; rules between
values are left to
`plan.run.rules`, except those Megatron breaks silently (layers dropped by a virtual pipeline that does not divide).
"""

from collections.abc import Mapping
from typing import Any

from importers.arguments import Arguments
from importers.megatron_layout import pipeline_layout, virtual_stages
from importers.partitioned import fsdp
from plan.ledger import Ledger

BYTES_OF_FP32 = 4


RECOMPUTE_OPTIONS = {
    "--recompute-method": ("full",),
    "--recompute-num-layers": ("full",),
    "--recompute-modules": ("selective",),
}


def plan_section(a: Arguments, layers: int | None, ledger: Ledger) -> dict[str, Any]:
    """The `plan:` section of plain Megatron; DeepSpeed's part is laid over it by `importers.megatron`."""
    plan: dict[str, Any] = {"implementation": "megatron"}
    plan |= _degrees(a, ledger)
    plan |= virtual_stages(a, layers, plan["pipeline_parallel"], ledger)
    plan |= pipeline_layout(a, layers, plan["pipeline_parallel"], plan.get("virtual_pipeline", 1), ledger)
    plan |= _sharding(a, ledger)
    plan |= _batch(a, ledger)
    plan |= _recompute(a, plan["tensor_parallel"], ledger)
    plan |= _precision(a, ledger)
    plan |= _attention(a, ledger)
    plan |= _communication(a, ledger)
    if plan["implementation"] == "torch-fsdp":  # it overlaps by itself
        plan["communication"].pop("overlap")
    plan |= _offload(a)
    return plan


def model_parallel(plan: Mapping[str, Any]) -> int | None:
    """Ranks that hold one copy of the model, tensor × pipeline × context; None when one of them is wrong."""
    tensor, pipeline, context = plan["tensor_parallel"], plan["pipeline_parallel"], plan.get("context_parallel", 1)
    return None if None in (tensor, pipeline, context) else int(tensor * pipeline * context)


def _degrees(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    tensor = a.whole("--tensor-model-parallel-size", 1)
    found: dict[str, Any] = {
        "tensor_parallel": tensor,
        "pipeline_parallel": a.whole("--pipeline-model-parallel-size", 1),
    }
    if a.has("--sequence-parallel"):
        if tensor == 1:
            ledger.warn("--sequence-parallel has no effect at --tensor-model-parallel-size 1; it is left out")
        else:
            found["sequence_parallel"] = True
    context = a.whole("--context-parallel-size", 1)
    ulysses = a.whole("--ds-sequence-parallel-size", 1)
    if ulysses != 1:
        ledger.note(f"--ds-sequence-parallel-size {ulysses} is read as context_parallel {ulysses}")
        context = ulysses
    experts = a.whole("--expert-model-parallel-size") or a.whole("--moe-expert-parallel-size")
    found |= {"context_parallel": context} if context != 1 else {}
    found |= {"expert_parallel": experts} if experts not in (None, 1) else {}
    if a.has("--use-tp-pp-dp-mapping"):
        found["rank_order"] = "tp-cp-ep-pp-dp"
    return found


def _sharding(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    stage = 1 if a.has("--use-distributed-optimizer") else 0
    strategy = a.text("--data-parallel-sharding-strategy")
    if a.has("--use-megatron-fsdp"):
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        stage = stages.get(strategy or "optim_grads_params", 3)
        ledger.note(f"--use-megatron-fsdp {strategy or 'optim_grads_params'} is zero_stage {stage}")
    else:
        a.idle("--data-parallel-sharding-strategy", "without --use-megatron-fsdp")
    instances = a.whole("--num-distributed-optimizer-instances", 1)
    if instances != 1:
        ledger.not_yet(
            f"--num-distributed-optimizer-instances {instances}", "1, one instance over all data-parallel ranks"
        )
    found: dict[str, Any] = {"zero_stage": stage}
    if a.has("--use-torch-fsdp2"):
        found = {"zero_stage": 3}
        fsdp(found, "torch's FSDP2 (--use-torch-fsdp2)", ledger)
    return found


def _batch(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    micro, whole = a.whole("--micro-batch-size"), a.whole("--global-batch-size")
    schedule = a.text("--step-batch-size-schedule")
    if schedule is not None:
        final = ledger.integer(schedule.split()[-1].split(":")[-1], "--step-batch-size-schedule")
        ledger.warn(f"--step-batch-size-schedule {schedule!r}: the forecast is for its last batch size, {final}")
        if whole is not None and final is not None and whole != final:
            ledger.problem(
                f"two global batch sizes: --global-batch-size {whole} and --step-batch-size-schedule ending at {final};"
                " keep one"
            )
        whole = whole or final
    found: dict[str, Any] = {}
    if micro is not None:
        found["micro_batch_size"] = micro
    if whole is not None:
        found["global_batch_size"] = whole
    if a.has("--rampup-batch-size"):
        ramp = a.given["--rampup-batch-size"]
        ledger.warn(
            f"--rampup-batch-size {ramp}: the forecast is for the full batch{f' {whole}' if whole else ''}, not for the"
            " ramp"
        )
    return found


def _recompute(a: Arguments, tensor: int | None, ledger: Ledger) -> dict[str, Any]:
    granularity, method = a.text("--recompute-granularity"), a.text("--recompute-method")
    count, modules = a.whole("--recompute-num-layers"), a.text("--recompute-modules")
    if a.has("--recompute-activations") and granularity is None:
        ledger.note("--recompute-activations is --recompute-granularity selective")
        granularity = "selective"
    found: dict[str, Any] = {"recompute": granularity or "none"}
    if granularity is None:
        ledger.assume("recompute", "none", "--recompute-granularity", "memory against step time")
    for flag, kinds in RECOMPUTE_OPTIONS.items():
        if granularity not in kinds:
            a.idle(flag, f"without --recompute-granularity {' or '.join(kinds)}")
    if granularity == "full":
        if method is None:
            ledger.note("--recompute-granularity full without --recompute-method: uniform is taken")
        if method == "block" and count == 0:
            found["recompute"] = "none"
        elif method == "block":
            found["recompute"] = {"layers": 1 if count is None else count}
        elif count == 0:
            ledger.problem("--recompute-num-layers is 0; it must be at least 1 with --recompute-method uniform")
        elif count is not None and count > 1:
            ledger.warn(
                f"--recompute-num-layers {count}: one stored input for {count} layers is forecast as one for each layer"
            )
    if granularity == "selective" and modules not in (None, "core_attn"):
        ledger.not_yet(f"--recompute-modules {modules}", "--recompute-modules core_attn")
    split = a.has("--distribute-saved-activations") | a.has("--partition-activations")
    if split and (granularity != "full" or tensor == 1):
        ledger.note(
            "--partition-activations / --distribute-saved-activations has no effect without full recompute and tensor"
            " parallelism"
        )
    elif split:
        found["partition_activations"] = True
    return found


def _precision(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    half = [name for name in ("bf16", "fp16") if a.has(f"--{name}")]
    if len(half) == 2:
        ledger.problem("--bf16 and --fp16 exclude each other; keep one")
    precision = half[0] if half else "fp32"
    if not half:
        ledger.assume("precision", "fp32, Megatron's without --bf16 or --fp16", "--bf16", "step time and memory")
    if a.text("--fp8-format") or a.has("--fp8-hybrid") or a.has("--fp8-e4m3"):
        precision = "fp8"
    if a.has("--fp4-format"):
        ledger.not_yet("fp4 training (--fp4-format)", "--bf16")
    found: dict[str, Any] = {"precision": precision}
    wide = a.has("--accumulate-allreduce-grads-in-fp32")
    narrow = a.has("--grad-reduce-in-bf16")
    if precision != "fp16":
        a.idle("--accumulate-allreduce-grads-in-fp32", f"with {precision}: gradients are in fp32 anyway")
    if precision != "bf16":
        a.idle("--grad-reduce-in-bf16", f"with {precision}")
    if precision == "bf16" and narrow:
        found["gradient_dtype"] = "bf16"
    if precision == "fp16" and not wide and not a.has("--deepspeed"):
        found["gradient_dtype"] = "fp16"
    scale = a.number("--loss-scale")
    if scale is not None and 0 < scale < 256:
        ledger.warn(
            f"--loss-scale {scale:g} is a constant factor of {scale:g}, not a power of two: if 2^{scale:g} ="
            f" {2**scale:.0f} was meant, write that number, or leave the flag out for dynamic scaling"
            " (--initial-loss-scale)"
        )
    return found


def _attention(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    """The kernel that the flags and Transformer Engine's variables choose. Transformer Engine's layers fuse attention
    by themselves; the `local` ones of old versions do where a flash flag asks for it.
    """
    backend, implementation = a.text("--attention-backend"), a.text("--transformer-impl")
    flash = any(a.has(f"--use-flash-attn{suffix}") for suffix in ("", "-v1", "-v2", "-triton"))
    kinds = {"flash": "flash", "fused": "cudnn", "unfused": "unfused", "local": "unfused"}
    if backend in kinds:
        return {"attention": kinds[backend]}
    variables = a.expander.variables
    off = {name for name in ("FLASH", "FUSED") if variables.get(f"NVTE_{name}_ATTN") == "0"}
    modern = implementation == "transformer_engine" or backend == "auto" or a.has("--use-mcore-models")
    if implementation == "local" or a.has("--use-legacy-models") or not modern:
        if not flash and not a.has("--deepspeed"):
            given = [flag for flag in ("--transformer-impl", "--use-legacy-models") if flag in a.given]
            said = " ".join([given[0], a.given[given[0]]]).strip() if given else "no --use-mcore-models"
            ledger.assume(
                "attention",
                f"unfused, as local layers run it ({said}, no --use-flash-attn)",
                "--use-flash-attn, or --use-mcore-models --transformer-impl transformer_engine",
                "memory (scores are kept) and step time",
            )
        return {"attention": "flash" if flash else "unfused"}
    if off == {"FLASH", "FUSED"}:
        ledger.note("attention unfused: NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0")
        return {"attention": "unfused"}
    kind = "cudnn" if off == {"FLASH"} else "flash"
    ledger.assume("attention", f"{kind}, as Transformer Engine fuses it", "--attention-backend", "memory and step time")
    return {"attention": kind}


def _communication(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    reduce, gather = a.has("--overlap-grad-reduce"), a.has("--overlap-param-gather")
    found: dict[str, Any] = {"overlap": reduce}
    if gather and not reduce:
        ledger.problem("--overlap-param-gather needs --overlap-grad-reduce; add it, as Megatron asks")
    elif gather:
        ledger.note("--overlap-grad-reduce and --overlap-param-gather are communication.overlap")
    elif reduce and a.has("--use-distributed-optimizer"):
        ledger.warn(
            "--overlap-grad-reduce without --overlap-param-gather: the forecast overlaps the parameter all-gather with"
            " the next forward too"
        )
    if (elements := a.whole("--ddp-bucket-size")) is not None:
        found["bucket_mb"] = elements * BYTES_OF_FP32 / 1e6
    return {"communication": found}


def _offload(a: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if a.has("--optimizer-cpu-offload") or a.has("--cpu-optimizer"):
        found["optimizer"] = "cpu"
        fraction = a.number("--optimizer-offload-fraction", 1.0)
        found |= {"fraction": fraction} if fraction != 1.0 else {}
    if (
        a.has("--fine-grained-activation-offloading")
        or a.whole("--cpu-offloading-num-layers", 0)
        or a.has("--checkpoint-in-cpu")
    ):
        found["activations"] = "cpu"
    remote = a.text("--remote-device")
    if remote not in (None, "none"):
        found["parameters"] = remote
    return {"offload": found} if found else {}
