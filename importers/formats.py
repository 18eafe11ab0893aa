"""What each format is handed beside its file, the cluster, the world and the model of the command line; and what is
assumed where the file and the command line say nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from importers import (
    deepspeed,
    foundry,
    megatron,
    nemo,
    neox,
    torchtitan,
    torchtitan_script,
)
from importers.detection import Format
from importers.shell import Script
from importers.table import nested
from importers.world import Request, World, cluster_section
from plan import huggingface, presets
from plan.ledger import Ledger
from plan.lenient_json import read_json
from program.files import text_of

COST = "memory and step time"


def script_run(script: Script, request: Request, ledger: Ledger) -> tuple[Format, dict[str, Any]]:
    """A launch script: Megatron's, or one that starts torchtitan with a configuration of its own."""
    launch = torchtitan_script.find(script)
    if launch is None:
        return "megatron", megatron.translate(script, request, ledger)
    content, world = torchtitan_script.tables(script, launch, request.sized, ledger)
    return "torchtitan", _torchtitan(content, request, ledger, world)


def _sized(request: Request, ledger: Ledger, stated: World | None = None) -> tuple[dict[str, Any], World]:
    """The cluster section and world of a file; most say nothing about machines."""
    return cluster_section(stated or World(), request, {}, ledger)


def _run(content: Mapping[str, Any], request: Request, ledger: Ledger) -> dict[str, Any]:
    """A run file, with the command line's model and cluster laid over it."""
    run = dict(content)
    if request.model is not None:
        run["model"] = megatron.model_of(request.model, ledger)
    if request.cluster is not None:
        run["cluster"] = {"preset": request.cluster} if isinstance(request.cluster, str) else dict(request.cluster)
    if request.nodes is not None:
        cluster = run.get("cluster", {})
        run["cluster"] = {**({"preset": cluster} if isinstance(cluster, str) else cluster), "nodes": request.nodes}
        run["cluster"].pop("gpus", None)
    return run


def deepspeed_run(
    content: Mapping[str, Any], request: Request, ledger: Ledger, stated: World | None = None
) -> dict[str, Any]:
    cluster, world = _sized(request, ledger, stated)
    where, precision = _where(request, world), _precision(request, cluster)
    setting = deepspeed.Setting(
        ranks=request.ranks(world),
        where=where,
        semantics=request.semantics,
        precision=precision,
        asked=request.asked,
        hidden=megatron.hidden_of(request.model, request.asked),
    )
    run = deepspeed.translate(content, setting, ledger)
    if run["plan"]["zero_stage"] <= 1:
        run["plan"]["attention"] = "flash"
    ledger.assume("attention", "flash: the JSON does not say what layers run", "--set plan.attention=unfused", COST)
    if "recompute" not in run["plan"]:
        ledger.assume("recompute", "none: the model's code decides", "--set plan.recompute=full", COST)
    if request.model is None:
        ledger.problem("a DeepSpeed JSON does not describe a model: add --model PRESET (or the path of a config.json)")
    else:
        run["model"] = megatron.model_of(request.model, ledger)
        _length(run["model"], request, ledger)
        _fused_dropout(run, request, ledger)
    return run | ({"cluster": cluster} if cluster else {})


def _length(model: Mapping[str, Any], request: Request, ledger: Ledger) -> None:
    """A model's longest sequence is taken where no file says how long they are."""
    name = str(model.get("preset"))
    known = presets.preset("models", name) if name in presets.names("models") else {}
    length = model.get("seq_length", known.get("seq_length"))
    ledger.assume("sequence length", f"{length}, the model's longest", "--set model.seq_length=N", f"batch, {COST}")


def _fused_dropout(run: dict[str, Any], request: Request, ledger: Ledger) -> None:
    """The attention is our default, so a model with attention dropout is no contradiction of the user's."""
    model, attention = run["model"], request.asked.get("plan.attention", run["plan"].get("attention"))
    name = str(model.get("preset"))
    known = presets.preset("models", name) if name in presets.names("models") else {}
    dropout = model.get("attention_dropout", known.get("attention_dropout"))
    if attention == "flash" and dropout:
        ledger.warn(
            f"attention dropout {dropout:g} happens inside the flash kernel, where it is not forecast; it is set to 0"
            " (--set plan.attention=unfused keeps it)"
        )
        run["model"] = {**model, "attention_dropout": 0.0}


def _precision(request: Request, cluster: Mapping[str, Any]) -> str:
    """What a trainer fills in where the JSON says nothing: the type that a config.json names, else bf16."""
    named: object = None
    if isinstance(request.model, str) and request.model.endswith(".json"):
        config = read_json(text_of(Path(request.model)), request.model)
        named = config.get("torch_dtype", config.get("dtype"))
    words = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}
    return words.get(str(named), "fp32" if cluster.get("preset") == "cpu" else "bf16")


def _torchtitan(
    content: Mapping[str, Any], request: Request, ledger: Ledger, stated: World | None = None
) -> dict[str, Any]:
    cluster, world = _sized(request, ledger, stated)
    run = torchtitan.translate(content, ledger, world.size, request.asked, request.accept_unknown)
    if request.model is not None:
        length = run["model"].get("seq_length")
        run["model"] = megatron.model_of(request.model, ledger) | ({"seq_length": length} if length else {})
    elif not run["model"]:
        ledger.problem(torchtitan.unknown_model(nested(content)))
    return run | ({"cluster": cluster} if cluster else {})


def _huggingface(content: Mapping[str, Any], request: Request, ledger: Ledger) -> dict[str, Any]:
    cluster, _ = _sized(request, ledger)
    if request.model is not None:
        ledger.warn("--model is not used: the config.json is the model")
    run: dict[str, Any] = {"model": huggingface.model_section(content, ledger), "plan": {}}
    ledger.assume("batch", "1 a GPU, data parallel: a config.json has no plan", "--set plan.micro_batch_size=N", COST)
    ledger.assume("precision", "bf16", "--set plan.precision=fp32", COST)
    ledger.assume("attention", "flash", "--set plan.attention=unfused", COST)
    ledger.assume("recompute", "none", "--set plan.recompute=full", COST)
    _length(run["model"], request, ledger)
    return run | ({"cluster": cluster} if cluster else {})


def _neox(content: Mapping[str, Any], request: Request, ledger: Ledger) -> dict[str, Any]:
    cluster, world = _sized(request, ledger)
    setting = deepspeed.Setting(where=_where(request, world), semantics=request.semantics)
    run = neox.translate(content, setting, world.size, ledger, request.asked, request.accept_unknown)
    if request.model is not None:
        run["model"] = megatron.model_of(request.model, ledger)
    return run | ({"cluster": cluster} if cluster else {})


def _where(request: Request, world: World) -> str:
    nodes = (
        f"{world.nodes} nodes × {world.gpus_per_node} GPUs"
        if world.nodes and world.gpus_per_node
        else f"{world.size} GPUs"
    )
    return f"{nodes} of --cluster" if request.cluster is not None else nodes


TRANSLATORS = {
    "run": _run,
    "deepspeed": deepspeed_run,
    "torchtitan": _torchtitan,
    "huggingface": _huggingface,
    "neox": _neox,
    "nemo": nemo.translate,
    "llm-foundry": foundry.translate,
}
