"""Which format a file is in, from its content first and its name second."""

import re
from pathlib import Path
from typing import Any, Literal

from importers import accelerate, deepspeed, foundry, nemo, neox, torchtitan, trainer
from plan import huggingface
from plan.lenient_json import read_json
from program.errors import InputError
from program.files import parse_yaml, text_of
from program.nearest import kind_of

Format = Literal[
    "run", "megatron", "deepspeed", "torchtitan", "huggingface", "neox", "nemo", "llm-foundry", "trainer", "accelerate"
]
ACCEPTED = (
    "a run file (YAML), a Megatron launch script or argument string, a DeepSpeed JSON, a torchtitan TOML, a Hugging"
    " Face config.json, or a YAML of GPT-NeoX, NeMo, Megatron-Bridge, llm-foundry, axolotl, LLaMA-Factory or Accelerate"
)
SCRIPT_SUFFIXES = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job"})
SECTIONS = frozenset({"model", "cluster", "plan"})


def detect(path: str | Path) -> Format:
    """The format of a file. Raises `InputError` when it is unreadable, empty or nothing Windtunnel knows."""
    return classify(text_of(Path(path)), Path(path))[0]


def classify(text: str, path: Path) -> tuple[Format, Any]:
    """The format and, where reading it told, the parsed content (None for scripts)."""
    if not text.strip():
        raise InputError(f"{path} is empty; give {ACCEPTED}")
    suffix = path.suffix.lower()
    if suffix in SCRIPT_SUFFIXES or text.startswith("#!") or re.match(r"\s*--[a-z]", text):
        return "megatron", None
    if suffix == ".toml":
        return "torchtitan", _toml(text, path)
    if suffix == ".json":
        return _json(read_json(text, str(path)), path)
    if suffix in (".yaml", ".yml"):
        return _yaml(parse_yaml(text, str(path)), path)
    return _guess(text, path)


def _toml(text: str, path: Path) -> dict[str, Any]:
    tables = torchtitan.read(text, str(path))
    if not torchtitan.is_torchtitan(tables):
        raise InputError(
            f"{path} has none of torchtitan's tables ([model], [training], [parallelism]); give {ACCEPTED}"
        )
    return tables


def _json(value: dict[str, Any], path: Path) -> tuple[Format, Any]:
    if neox.is_neox(value):
        return "neox", value
    if huggingface.is_huggingface(value):
        return "huggingface", value
    if set(value) >= SECTIONS:
        return "run", value
    if deepspeed.is_deepspeed(value):
        return "deepspeed", value
    raise InputError(
        f"{path} is JSON, but neither a DeepSpeed configuration nor a Hugging Face config.json"
        f" ({'keys: ' + ', '.join(list(value)[:6]) if value else 'it is empty'}); give {ACCEPTED}"
    )


def _yaml(value: Any, path: Path) -> tuple[Format, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {kind_of(value)}; give {ACCEPTED}")
    if neox.is_neox(value):
        return "neox", value
    if trainer.table_of(value) is not None:
        return "trainer", value
    if isinstance(value.get("deepspeed"), dict) and deepspeed.is_deepspeed(value["deepspeed"]):
        return "deepspeed", value["deepspeed"]
    if "zero_optimization" in value:
        return "deepspeed", value
    if accelerate.is_accelerate(value):
        return "accelerate", value
    if nemo.is_nemo(value):
        return "nemo", value
    if foundry.is_foundry(value):
        return "llm-foundry", value
    return "run", value


def _guess(text: str, path: Path) -> tuple[Format, Any]:
    """No telling name: try what the first characters suggest."""
    if re.search(r"--(num-layers|hidden-size|tensor-model-parallel-size|micro-batch-size)\b", text):
        return "megatron", None
    if text.lstrip().startswith("{"):
        return _json(read_json(text, str(path)), path)
    try:
        return "torchtitan", _toml(text, path)
    except InputError:
        pass
    try:
        value = parse_yaml(text, str(path))
    except InputError:
        value = None
    if isinstance(value, dict) and SECTIONS & set(value):
        return "run", value
    raise InputError(f"{path}: not a format Windtunnel reads; give {ACCEPTED}")
