"""Engines that partition gradients or parameters, as the forecast knows them: DeepSpeed's in the granularity of our own
ZeRO-2 and ZeRO-3, torch's FSDP2 as implementation torch-fsdp.

What is partitioned, when it is gathered and reduced, and what crosses to the host are the same (DeepSpeed's ZeRO-2
all-reduces, and so does its forecast, `plan.implementations.deepspeed`); how far ahead and in what portions differs.
One warning says how, and keys that only shape those portions are taken out.
"""

from collections.abc import Mapping
from typing import Any

from plan.ledger import Ledger

LAYERS = "; kernels and what a layer saves are our trainer's"


def _value(given: object) -> str:
    """A size that was given, for a sentence."""
    return "" if given is None else f" {given:g}" if isinstance(given, int | float) else f" {given}"


def deepspeed(plan: dict[str, Any], section: object, ledger: Ledger) -> None:
    """DeepSpeed's ZeRO-2 or ZeRO-3 in `plan`, if it is there; `section`: its `zero_optimization`."""
    sizes = section if isinstance(section, Mapping) else {}
    stage = plan.get("zero_stage", 0)
    if stage < 2:
        return
    if stage == 3:
        plan["implementation"] = "windtunnel"
    plan["communication"] = {key: value for key, value in plan.get("communication", {}).items() if key != "bucket_mb"}
    portion = sizes.get("reduce_bucket_size")
    said = [f"gradients are reduced a layer at a time, not reduce_bucket_size{_value(portion)} elements at a time"]
    if stage == 3:
        kept = {key: value for key, value in plan.pop("zero", {}).items() if key == "persist_below"}
        plan |= {"zero": kept} if kept else {}
        ahead, alive = (sizes.get(f"stage3_{name}") for name in ("prefetch_bucket_size", "max_live_parameters"))
        said.append(
            "weights are gathered one layer ahead, where DeepSpeed fetches module by module, up to "
            f"stage3_prefetch_bucket_size{_value(ahead)} elements ahead and "
            f"stage3_max_live_parameters{_value(alive)} alive"
        )
    if plan.get("offload", {}).get("optimizer", "none") != "none":
        said.append(
            "gradients cross to the host once a step in their own type, where DeepSpeed adds micro-batches up there"
            " and widens to fp32"
        )
    else:
        said.insert(
            0, "gradients are all-reduced in every micro-batch and each rank keeps its share, as DeepSpeed does"
        )
    engine = "as implementation windtunnel" if stage == 3 else "with our trainer's granularity"
    ledger.warn(f"DeepSpeed's ZeRO-{stage} is forecast {engine}: {'; '.join(said)}{LAYERS}")


def fsdp(plan: dict[str, Any], engine: str, ledger: Ledger) -> None:
    """torch's FSDP2 in `plan`; with state in host memory it is our own ZeRO-3, a layer at a time too."""
    if plan.get("offload"):
        plan["implementation"] = "windtunnel"
        ledger.warn(
            f"{engine} with state in host memory is forecast as implementation windtunnel: copies in and out of flat "
            f"buffers are not made, and embedding and head are gathered apart{LAYERS}"
        )
        return
    plan["implementation"] = "torch-fsdp"
    ledger.warn(
        f"{engine} is forecast as implementation torch-fsdp: a group a layer, and one of embedding and head, the root, "
        f"which stays gathered until its backward; {engine} has groups of their own for these two{LAYERS}"
    )
