"""Importers: other frameworks' files as Windtunnel runs.

    result = import_file("pretrain_gpt.sh", cluster="dgx-a100-80gb", nodes=128)
    run = plan.run.load(result.run_dict, overrides)
    for sentence in result.notes + result.warnings: print(sentence)

Read: Megatron-LM and Megatron-DeepSpeed launch scripts and argument strings, DeepSpeed JSON, torchtitan TOML, Hugging
Face config.json, YAML of GPT-NeoX, NeMo, Megatron-Bridge, llm-foundry, axolotl, LLaMA-Factory and Accelerate, and
Windtunnel's own run files. No flag or key of a plan is ignored in silence: each is translated, named as having no
effect on the forecast, reported unknown with the nearest known name, or refused. What a file leaves open is an
assumption. Scripts are evaluated (`importers.shell`), never executed.

| files | what they read |
| --- | --- |
| detection | which format a file has |
| table, `*_table` | a framework's keys (type, range, target, effect) and the engine that reads a file by them |
| megatron*, arguments | Megatron's flags: model, layout, batch, training, with DeepSpeed beside it |
| launch, launch_size, world | the training command of a script, and how many GPUs it runs on |
| deepspeed*, accelerate, trainer | DeepSpeed's JSON, and the files of the trainers around it |
| neox*, nemo, torchtitan*, foundry | the other formats |
| partitioned | what another framework's ZeRO does otherwise than ours |
| exporters, written | the way back: a run as another framework's file |
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from importers import (
    accelerate,
    deepspeed,
    deepspeed_table,
    foundry,
    megatron,
    nemo,
    neox,
    neox_table,
    torchtitan,
    torchtitan_script,
    torchtitan_table,
    trainer,
)
from importers.deepspeed_optimizer import Semantics
from importers.detection import Format, classify, detect
from importers.megatron_table import FLAGS
from importers.overrides import flat
from importers.shell import Script, read_script
from importers.table import nested, reworded, words
from importers.world import Request, World, cluster_section
from plan import huggingface, presets
from plan.ledger import Assumption, Ledger
from plan.lenient_json import read_json
from plan.run import load
from program.confined import Confined
from program.errors import InputError, NotYetForecast
from program.files import text_of

__all__ = ["Format", "ImportResult", "detect", "import_file", "import_text"]


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An imported run: `run_dict` has the keys of a run file; `notes` say how it was translated, `warnings` what to
    look at.

    `problems` is empty unless the import was asked not to refuse (`refuse=False`).
    """

    run_dict: dict[str, Any]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    format: Format = "run"
    problems: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """The file's words for keys of a run, for what the rules say about it (`importers.table.reworded`)."""


def import_file(
    path: str | Path,
    *,
    cluster: str | Mapping[str, Any] | None = None,
    nodes: int | None = None,
    model: str | Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    allow_read: Sequence[str | Path] = (),
    strict: bool = False,
    deepspeed_semantics: Semantics = "current",
    overrides: Sequence[str] = (),
    accept_unknown: bool = False,
    needs_cluster: bool = True,
    refuse: bool = True,
) -> ImportResult:
    """Read a file of any accepted format into a run dict.

    `cluster` (a preset name or cluster keys), `nodes` and `model` (a preset name, a config.json path or model keys) add
    or override what the file says; `variables` define shell variables of a script; what a script names is read below
    its own folder and those of `allow_read` only; `strict` makes unknown names errors.
    `overrides` (`section.key=value`) count before anything is derived; lay them over the run once more for the keys
    that no file says. `accept_unknown` leaves out unknown flags of the model or its layout, which are refused
    otherwise; without `needs_cluster` a file that names no cluster gives a run without one.
    Raises `InputError` with every problem found, or `NotYetForecast` when the file is right but asks for what is not
    forecast yet; `refuse=False` returns them instead.
    """
    return import_text(
        text_of(Path(path)),
        Path(path),
        Request(cluster, nodes, model, deepspeed_semantics, flat(overrides), accept_unknown, needs_cluster),
        overrides,
        variables,
        [Path(folder) for folder in allow_read],
        strict,
        refuse,
    )


def import_text(
    text: str,
    where: Path,
    request: Request,
    overrides: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    allow_read: Sequence[Path] = (),
    strict: bool = False,
    refuse: bool = True,
) -> ImportResult:
    """`import_file` of a text that stands, or would stand, at `where`."""
    kind, content = classify(text, where)
    ledger = Ledger(strict=strict)
    request = replace(request, script=kind == "megatron")
    if kind == "megatron":
        script = read_script(text, variables, where, allow_read)
        try:
            kind, run = _script(script, request, ledger)
        except InputError as error:
            raise type(error)(map(script.expander.show, error.problems)) from None
        ledger.reword(script.expander.show)
    elif kind == "accelerate":
        content, world = accelerate.json_of(content, Confined(where.parent, tuple(allow_read)), ledger)
        run = _deepspeed(content, request, ledger, world)
    elif kind == "trainer":
        run = trainer.translate(content, Confined(where.parent, tuple(allow_read)), request, ledger)
    else:
        run = _TRANSLATORS[kind](content, request, ledger)
    model_keys = run.get("model")
    if (
        kind in ("megatron", "neox", "nemo", "llm-foundry")
        and isinstance(model_keys, dict)
        and "preset" not in model_keys
    ):
        run["model"] = {"name": where.stem, **model_keys}
    names = _WORDS.get(kind, {})
    _rules(run, overrides, names, ledger)
    ledger.assumptions[:] = [each for each in ledger.assumptions if _SUBJECTS.get(each.subject) not in request.asked]
    if refuse:
        ledger.refuse()
    first = {section: run[section] for section in _ORDER if section in run}
    problems = (*ledger.problems, *ledger.not_forecast)
    return ImportResult(
        first | run, tuple(ledger.notes), tuple(ledger.warnings), kind, problems, tuple(ledger.assumptions), names
    )


def _rules(run: Mapping[str, Any], overrides: Sequence[str], names: Mapping[str, str], ledger: Ledger) -> None:
    """What the rules of a run say too, while something is wrong with the file: all problems come at once."""
    if not ledger.problems and not ledger.not_forecast:
        return
    try:
        load(run, overrides)
    except InputError as error:
        kind = ledger.not_forecast if isinstance(error, NotYetForecast) else ledger.problems
        kind += [reworded(each, names) for each in error.problems if not _UNREAD.search(each)]


_UNREAD = re.compile(r"^(the section|unknown section|--set )|^[a-z_.]+( is missing|: null )")
"""Sentences about keys that have no value because the file's is wrong: the file's own have been said."""
_SUBJECTS = {
    "attention": "plan.attention",
    "batch": "plan.micro_batch_size",
    "precision": "plan.precision",
    "recompute": "plan.recompute",
    "vocabulary": "model.vocab",
    "feed-forward width": "model.ffn",
    "sequence length": "model.seq_length",
    "GPUs a node": "cluster.gpus_per_node",
    "nodes": "cluster.nodes",
}
"""The key of a run that each assumption is about: one that is asked for is none."""
_WORDS: dict[str, dict[str, str]] = {
    "megatron": {
        "pipeline_layout: auto": "--account-for-embedding-in-pipeline-split with --account-for-loss-in-pipeline-split"
    }
    | words(FLAGS),
    "neox": words(neox_table.KEYS) | words(deepspeed_table.KEYS),
    "deepspeed": words(deepspeed_table.KEYS),
    "torchtitan": words(torchtitan_table.KEYS),
    "llm-foundry": words(foundry.KEYS),
    "nemo": {key: nemo.key_of(flag, {}) for key, flag in words(FLAGS).items()},
}


_COST = "memory and step time"
_ORDER = ("model", "cluster", "plan", "optimizer", "train", "data", "checkpoint", "budget")


def _script(script: Script, request: Request, ledger: Ledger) -> tuple[Format, dict[str, Any]]:
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


def _deepspeed(
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
    ledger.assume("attention", "flash: the JSON does not say what layers run", "--set plan.attention=unfused", _COST)
    if "recompute" not in run["plan"]:
        ledger.assume("recompute", "none: the model's code decides", "--set plan.recompute=full", _COST)
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
    ledger.assume("sequence length", f"{length}, the model's longest", "--set model.seq_length=N", f"batch, {_COST}")


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
    ledger.assume("batch", "1 a GPU, data parallel: a config.json has no plan", "--set plan.micro_batch_size=N", _COST)
    ledger.assume("precision", "bf16", "--set plan.precision=fp32", _COST)
    ledger.assume("attention", "flash", "--set plan.attention=unfused", _COST)
    ledger.assume("recompute", "none", "--set plan.recompute=full", _COST)
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


_TRANSLATORS = {
    "run": _run,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "huggingface": _huggingface,
    "neox": _neox,
    "nemo": nemo.translate,
    "llm-foundry": foundry.translate,
}
