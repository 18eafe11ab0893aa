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
| detection, formats | which format a file has, and what it is handed beside the file |
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
    deepspeed_table,
    foundry,
    nemo,
    neox_table,
    torchtitan_table,
    trainer,
)
from importers.deepspeed_optimizer import Semantics
from importers.detection import Format, classify, detect
from importers.formats import TRANSLATORS, deepspeed_run, script_run
from importers.megatron_table import FLAGS
from importers.overrides import flat
from importers.shell import read_script
from importers.table import reworded, words
from importers.world import Request
from plan.ledger import Assumption, Ledger
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
            kind, run = script_run(script, request, ledger)
        except InputError as error:
            raise type(error)(map(script.expander.show, error.problems)) from None
        ledger.reword(script.expander.show)
    elif kind == "accelerate":
        content, world = accelerate.json_of(content, Confined(where.parent, tuple(allow_read)), ledger)
        run = deepspeed_run(content, request, ledger, world)
    elif kind == "trainer":
        run = trainer.translate(content, Confined(where.parent, tuple(allow_read)), request, ledger)
    else:
        run = TRANSLATORS[kind](content, request, ledger)
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


_ORDER = ("model", "cluster", "plan", "optimizer", "train", "data", "checkpoint", "budget")
