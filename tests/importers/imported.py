"""Helpers of the importer tests: write a text to a file, import it, and keep what was said."""

from pathlib import Path
from typing import Any

from importers import ImportResult, import_file

SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1"


def imported(folder: Path, text: str, name: str = "launch.sh", **request: Any) -> ImportResult:
    """Import a text as the file `name`, on A100 nodes unless another cluster is asked for; problems are returned."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return import_file(path, refuse=False, **({"cluster": "dgx-a100-80gb"} | request))


def script(flags: str, launcher: str = "torchrun --nproc_per_node 8", before: str = "") -> str:
    """A launch script with a small model and these flags."""
    return f"#!/bin/bash\n{before}\n{launcher} pretrain_gpt.py {SHAPE} {flags}\n"


def said(result: ImportResult, *words: str) -> bool:
    """Whether one note, warning, problem or assumption holds all the words."""
    assumed = [f"{each.subject}: {each.value}; {each.flag} changes {each.moves}" for each in result.assumptions]
    sentences = (*result.notes, *result.warnings, *result.problems, *assumed)
    return any(all(word in sentence for word in words) for sentence in sentences)
