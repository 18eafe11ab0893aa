"""Accelerate's configuration in YAML, as the DeepSpeed JSON that it stands for, and how many GPUs it starts.

Facts read from huggingface/accelerate, `src/accelerate/commands/config/config_args.py` and `utils/dataclasses.py`
(`DeepSpeedPlugin`, whose "auto" is filled in as the Trainer's).
"""

from collections.abc import Mapping
from typing import Any

from importers import deepspeed
from importers.table import Values, nested, table
from importers.world import Quantity, Statement, World, agree
from plan.ledger import Ledger
from program.confined import Confined
from program.errors import InputError

KEYS = table(
    read="""
    whole 1 | num_machines num_processes deepspeed_config.gradient_accumulation_steps
    whole 0 ..3 | deepspeed_config.zero_stage
    number 0 | deepspeed_config.gradient_clipping
    word none cpu nvme | deepspeed_config.offload_optimizer_device deepspeed_config.offload_param_device
    word DEEPSPEED MULTI_GPU NO | distributed_type
    word no fp16 bf16 fp8 | mixed_precision
    any | deepspeed_config.deepspeed_config_file
    """,
    idle="""
    any | compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_process_ip main_process_port
        main_training_function rdzv_backend same_network use_cpu gpu_ids tpu_env tpu_use_cluster tpu_use_sudo
        deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model deepspeed_config.deepspeed_hostfile
        deepspeed_config.deepspeed_multinode_launcher dynamo_config
    """,
)
SIZES: dict[str, Quantity] = {"num_machines": "nodes", "num_processes": "gpus"}


class Accelerate(Values):
    """The dotted keys of a configuration."""

    kind = "Accelerate key"


def is_accelerate(config: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like Accelerate's configuration."""
    return "distributed_type" in config and bool(
        {"compute_environment", "num_processes", "num_machines"} & config.keys()
    )


def json_of(config: Mapping[str, Any], beside: Confined, ledger: Ledger) -> tuple[dict[str, Any], World]:
    """The DeepSpeed configuration that it means (its own file wins), and the world that it starts."""
    section = "deepspeed_config"
    values = Accelerate(KEYS, nested(config), ledger)
    if config.get("distributed_type") == "FSDP":
        ledger.not_yet("Accelerate's FSDP without its training file", "distributed_type DEEPSPEED, or axolotl's YAML")
        values.touched |= {key for key in values.given if key.startswith("fsdp_config")} | {"distributed_type"}
    values.check()
    kind = values.text("distributed_type", "NO")
    sizes = [Statement(what, size, key) for key, what in SIZES.items() if (size := values.whole(key)) is not None]
    found: dict[str, Any] = {}
    if name := values.text(f"{section}.deepspeed_config_file"):
        found = _file(name, beside, ledger)
    elif kind == "DEEPSPEED":
        zero: dict[str, Any] = {"stage": values.whole(f"{section}.zero_stage", 2)}
        for ours, theirs in (
            ("offload_optimizer", "offload_optimizer_device"),
            ("offload_param", "offload_param_device"),
        ):
            if (device := values.text(f"{section}.{theirs}", "none")) != "none":
                zero[ours] = {"device": device}
        found = {
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": values.whole(f"{section}.gradient_accumulation_steps", 1),
        }
        if (clip := values.number(f"{section}.gradient_clipping")) is not None:
            found["gradient_clipping"] = clip
    else:
        found = {"zero_optimization": {"stage": 0}, "train_micro_batch_size_per_gpu": "auto"}
    precision = values.text("mixed_precision")
    if precision in ("fp16", "bf16"):
        found[precision] = {"enabled": True}
    elif precision == "no":
        found |= {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    elif precision == "fp8":
        ledger.not_yet("mixed_precision fp8 under Accelerate", "bf16")
    values.account()
    return found, agree(sizes, ledger)


def _file(name: str, beside: Confined, ledger: Ledger) -> dict[str, Any]:
    try:
        text = beside.text(name)
    except InputError as error:
        ledger.problem(str(error))
        return {}
    if text is None:
        ledger.problem(f"{name}, which the file names, is not beside it: put it there, or add --allow-read DIR")
        return {}
    return deepspeed.read(text, name)
