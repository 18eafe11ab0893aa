"""A Megatron-LM or Megatron-DeepSpeed launch script, or a bare argument string, as a run.

    translate(read_script(text), Request(cluster="dgx-a100-80gb", nodes=128), ledger)  ->  {"model": ...,
    "cluster": ..., "plan": ...}

The script is evaluated (never executed), its training command found, and every flag accounted for. Lines such as
`# windtunnel: cluster.preset=dgx-a100-80gb cluster.nics.count=4` in a script set keys of the run that no flag can say.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from importers.arguments import Arguments
from importers.launch import Launch, find_launch
from importers.launch_size import cluster_hints, size_statements
from importers.megatron_batch import explain_batch
from importers.megatron_deepspeed import lay_deepspeed
from importers.megatron_model import model_section
from importers.megatron_plan import plan_section
from importers.megatron_training import training_sections
from importers.shell.script import Script
from importers.world import Request, World, agree, cluster_section
from plan import presets
from plan.ledger import Ledger, set_path
from program.files import parse_yaml

OTHER_MODELS = re.compile(
    r"(pretrain|train)_(bert|t5|ict|vision|vlm|mamba|hybrid|retro|mimo|biencoder)|(multimodal|mimo)/(\w+/)*\w*train\w*\.py"
)
NO_TRAINING = re.compile(
    r"generat|inference|eval|analy[sz]|preprocess|convert|server|export|quantize|prompt|retriever|(^|/)tasks/",
    re.IGNORECASE,
)
TRAINING = re.compile(r"train\w*(\.py)?$", re.IGNORECASE)
"""Programs that read a model's flags and do something else than train it."""
NO_PATH = re.compile(r"(?!)")
PATHS = {
    "data.path": re.compile(r"^(?!builtin$)"),
    "checkpoint.path": re.compile(r"^(?!auto$)"),
    "cluster.profile": re.compile(r"/|\.ya?ml$"),
    "model.preset": re.compile(r"\.json$"),
}
"""Keys of a run that name a file, and which of their values do."""
MOST_PROGRAM = 512
"""Characters at the end of a program's path that tell what it is."""


def translate(script: Script, request: Request, ledger: Ledger) -> dict[str, Any]:
    """The run of a script. Problems go to the ledger; what can be translated is."""
    for warning in script.warnings:
        ledger.warn(warning)
    said = pragmas(script, ledger)
    launch = find_launch(script, ledger)
    if launch is None:
        return said
    _program(launch, ledger)
    arguments = Arguments.parse(launch.flags, script.expander, ledger, request.asked)
    cluster, world = _cluster(script, launch, said, request, ledger)
    run = of_arguments(arguments, request, cluster, world, ledger, script)
    for section in ("model", "plan", "optimizer", "train", "data", "checkpoint", "budget"):
        if isinstance(said.get(section), Mapping):
            run[section] = presets.merge(run.get(section, {}), said[section])
    return run


def of_arguments(
    arguments: Arguments,
    request: Request,
    cluster: Mapping[str, Any],
    world: World,
    ledger: Ledger,
    script: Script | None = None,
) -> dict[str, Any]:
    """The run of a command's flags; `script` for the files and variables beside them."""
    model = _model(arguments, request, ledger)
    plan = plan_section(arguments, _layers(model), ledger)
    run: dict[str, Any] = {"model": model, **({"cluster": dict(cluster)} if cluster else {}), "plan": plan}
    if script is not None:
        plan |= _launches(script, ledger)
        lay_deepspeed(script, arguments, run, world, request, ledger)
    plan |= request.of("plan", ("attention", "recompute", "precision"))
    batch = explain_batch(arguments, plan, world, ledger)
    run |= training_sections(arguments, batch, _whole(model.get("seq_length")), run.pop("optimizer", {}), ledger)
    _attention_dropout(model, plan, ledger)
    arguments.account(request.accept_unknown)
    return run


def _launches(script: Script, ledger: Ledger) -> dict[str, Any]:
    """CUDA_LAUNCH_BLOCKING, which BLOOM needed against hangs."""
    if script.expander.variables.get("CUDA_LAUNCH_BLOCKING", "0") != "1":
        return {}
    ledger.note("CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel, plan.launch_blocking")
    return {"launch_blocking": True}


def _program(launch: Launch, ledger: Ledger) -> None:
    """Refuse a program that trains another kind of model or does not train; warn about one nobody knows."""
    module = next((launch.launcher[i + 1] for i, word in enumerate(launch.launcher[:-1]) if word == "-m"), "")
    program = (launch.program or ("" if module.startswith("torch.") else module))[-MOST_PROGRAM:]
    if OTHER_MODELS.search(program):
        ledger.not_yet(f"the model of {program}", "a decoder-only GPT (pretrain_gpt.py)")
    elif NO_TRAINING.search(program) and not TRAINING.search(program):
        ledger.problem(f"{launch.where} starts {program}, which does not pre-train; give a script that trains")
    elif program and not TRAINING.search(program):
        ledger.warn(f"{program} is taken to train a decoder-only GPT, as pretrain_gpt.py does")


def pragmas(script: Script, ledger: Ledger) -> dict[str, Any]:
    """Keys set by `# windtunnel: section.key=value ...` comments."""
    found: dict[str, Any] = {}
    for row in re.findall(r"^[ \t]*#[ \t]*windtunnel:[ \t]*(.*)$", script.text, re.MULTILINE):
        for word in row.split():
            key, equals, value = word.partition("=")
            if not equals or "." not in key:
                ledger.problem(
                    f"# windtunnel: {word!r} must be section.key=value, such as cluster.preset=dgx-a100-80gb"
                )
                continue
            read = parse_yaml(value, f"# windtunnel: {word}")
            if not isinstance(read, str) or not PATHS.get(key, NO_PATH).search(read):
                set_path(found, key, read)
            elif (place := script.beside.place(read)) is not None:  # a script names no file outside its folder
                set_path(found, key, os.path.join(*place))
            else:
                ledger.problem(
                    f"# windtunnel: {word} names nothing below the script's folder; give it with --set {word}"
                )
    return found


def _cluster(
    script: Script, launch: Launch, said: Mapping[str, Any], request: Request, ledger: Ledger
) -> tuple[dict[str, Any], World]:
    statements = size_statements(script, launch, request.sized, ledger)
    world = agree(statements, ledger)
    stated = dict(said.get("cluster", {}))
    if not stated and request.cluster is None:
        stated = cluster_hints(script, ledger)
    return cluster_section(world, request, stated, ledger)


def _model(arguments: Arguments, request: Request, ledger: Ledger) -> dict[str, Any]:
    """The script's model, or the one of the command line, which wins."""
    model = model_section(arguments, ledger)
    if request.model is None:
        if not model:
            ledger.problem(
                "the command has no model flags (--num-layers, --hidden-size, --num-attention-heads, --seq-length): add"
                " them, or --model PRESET"
            )
        return model
    chosen = model_of(request.model, ledger)
    if model:
        ledger.warn(
            f"--model {chosen.get('preset', chosen.get('name', 'given'))} replaces the model of the script's flags"
        )
    length = arguments.whole("--seq-length")
    return chosen | ({"seq_length": length} if length else {})


def model_of(model: str | Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """A `model:` section from a preset name, the path of an HF config.json, or keys."""
    if not isinstance(model, str):
        return dict(model)
    if model.endswith(".json"):
        from plan.huggingface import model_of_file

        return model_of_file(model, ledger)
    try:
        presets.preset("models", model)
    except ValueError as error:
        ledger.problem(f"--model: {error}")
    return {"preset": model}


def hidden_of(model: str | Mapping[str, Any] | None, asked: Mapping[str, Any]) -> int | None:
    """The hidden size of a model that is named or given, if it is known."""
    found = {} if model is None else model_of(model, Ledger())
    name = str(found.get("preset"))
    known = presets.preset("models", name) if name in presets.names("models") else {}
    return _whole(asked.get("model.hidden", found.get("hidden", known.get("hidden"))))


def _layers(model: Mapping[str, Any]) -> int | None:
    """Number of layers of a model section, looked up where it names a preset."""
    name = str(model.get("preset"))
    known = presets.preset("models", name) if name in presets.names("models") else {}
    return _whole(model.get("layers", known.get("layers")))


def _attention_dropout(model: dict[str, Any], plan: Mapping[str, Any], ledger: Ledger) -> None:
    if plan.get("attention") in ("flash", "cudnn") and model.get("attention_dropout"):
        ledger.warn(
            f"--attention-dropout {model['attention_dropout']:g} happens inside the {plan['attention']} kernel, where"
            " it is not forecast; it is set to 0"
        )
        model["attention_dropout"] = 0.0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
