"""The pipeline layout of a Megatron command: virtual stages, uneven splits, layout strings, DeepSpeed's partition
methods.
"""

import re
from typing import Any

from importers.arguments import Arguments
from plan.ledger import Ledger
from program.nearest import divisors


def virtual_stages(a: Arguments, layers: int | None, stages: int | None, ledger: Ledger) -> dict[str, Any]:
    """Model chunks per rank. 80 layers, PP16 and 2 layers a virtual stage pass Megatron's checks and train a 64-layer
    model.
    """
    found: dict[str, Any] = {}
    per_stage = a.whole("--num-layers-per-virtual-pipeline-stage")
    chunks = a.whole("--num-virtual-stages-per-pipeline-rank")
    if per_stage is not None and chunks is not None:
        ledger.problem(
            f"--num-layers-per-virtual-pipeline-stage {per_stage} and --num-virtual-stages-per-pipeline-rank {chunks}"
            " exclude each other; keep one"
        )
    if per_stage is not None and layers and stages and layers % stages == 0:
        on_rank = layers // stages
        if on_rank % per_stage:
            legal = ", ".join(map(str, divisors(on_rank)))
            ledger.problem(
                f"--num-layers-per-virtual-pipeline-stage {per_stage}: {layers} layers / {stages} pipeline stages ="
                f" {on_rank} layers a rank, which is not divisible by {per_stage}; rounding down would train"
                f" {on_rank // per_stage * per_stage * stages} layers instead of {layers}. Legal: {legal}"
            )
        else:
            chunks = on_rank // per_stage
            ledger.note(
                f"virtual_pipeline {chunks} = {layers} layers / {stages} stages / {per_stage} layers a virtual stage"
            )
    elif per_stage is not None and layers and stages:
        ledger.problem(
            f"{layers} layers / {stages} pipeline stages is not whole, so --num-layers-per-virtual-pipeline-stage"
            f" {per_stage} cannot be placed"
        )
    if chunks is not None and chunks > 1:
        found["virtual_pipeline"] = chunks
        if (group := a.whole("--microbatch-group-size-per-virtual-pipeline-stage")) is not None:
            found["microbatch_group"] = group
    else:
        a.idle("--microbatch-group-size-per-virtual-pipeline-stage", "without virtual pipeline stages")
    return found


def pipeline_layout(
    a: Arguments, layers: int | None, stages: int | None, chunks: int, ledger: Ledger
) -> dict[str, Any]:
    """Units per virtual stage, where the flags say so; Megatron's default is the same number of layers everywhere."""
    text = a.text("--pipeline-model-parallel-layout")
    first, last = a.whole("--decoder-first-pipeline-num-layers"), a.whole("--decoder-last-pipeline-num-layers")
    embedding, loss = a.has("--account-for-embedding-in-pipeline-split"), a.has("--account-for-loss-in-pipeline-split")
    method = a.text("--pp-partition-method")
    if not layers or not stages or stages == 1:
        return {}
    if text is not None:
        layout = _layout_string(text, ledger)
        return {"pipeline_layout": layout} | _implied(layout, stages, chunks, ledger)
    if method is not None:
        return {"pipeline_layout": _deepspeed_partition(method, layers, stages, ledger)}
    if first is None and last is None and not embedding and not loss:
        return {"pipeline_layout": "even"}
    if stages > MOST_UNITS or layers > MOST_UNITS:
        return {}  # refused for its size by the rules of a run
    if chunks > 1:
        ledger.not_yet("an uneven pipeline split together with virtual stages", "an even split, or no virtual stages")
        return {}
    counts = (
        _uneven(layers, stages, first, last)
        if first is not None or last is not None
        else _accounted(layers, stages, embedding, loss)
    )
    if counts is None:
        ledger.problem(f"{layers} layers over {stages} stages: the middle stages do not get a whole number of layers")
        return {}
    return {"pipeline_layout": [count + (i == 0) + (i == stages - 1) for i, count in enumerate(counts)]}


def _implied(layout: list[int] | str, stages: int, chunks: int, ledger: Ledger) -> dict[str, Any]:
    """The virtual stages that a layout means where no flag says so: its stages over the pipeline's."""
    if not isinstance(layout, list) or chunks > 1 or len(layout) <= stages or len(layout) % stages:
        return {}
    implied = len(layout) // stages
    ledger.note(
        f"virtual_pipeline {implied} = {len(layout)} stages of --pipeline-model-parallel-layout / {stages} pipeline"
        " stages"
    )
    return {"virtual_pipeline": implied}


def _uneven(layers: int, stages: int, first: int | None, last: int | None) -> list[int] | None:
    rest, places = layers - (first or 0) - (last or 0), stages - (first is not None) - (last is not None)
    if rest < 0 or (places == 0 and rest) or (places and rest % places):
        return None
    middle = [rest // places] * places if places else []
    return ([first] if first is not None else []) + middle + ([last] if last is not None else [])


def _accounted(layers: int, stages: int, embedding: bool, loss: bool) -> list[int] | None:
    if (layers + embedding + loss) % stages:
        return None
    each = (layers + embedding + loss) // stages
    return [each - (embedding and i == 0) - (loss and i == stages - 1) for i in range(stages)]


MOST_UNITS = 10_000
BRACKETS = re.compile(r"\(([^()]*)\)\*([0-9]{1,5})(?![0-9])|\(([^()]*)\)")


def _layout_string(text: str, ledger: Ledger) -> list[int] | str:
    """Units per virtual stage of a layout such as `Et*3|(tt|)*29,m|L` (E embedding, t layer, m multi-token prediction,
    L loss).
    """
    flat = text.replace(",", "").replace(" ", "")
    while len(flat) <= MOST_UNITS and (match := BRACKETS.search(flat)):
        inner, times = (match[1], int(match[2])) if match[2] else (match[3], 1)
        flat = flat[: match.start()] + inner[:MOST_UNITS] * times + flat[match.end() :]
    if len(flat) <= MOST_UNITS:
        flat = re.sub(r"([EtmL|])\*([0-9]{1,5})(?![0-9])", lambda match: match[1] * int(match[2]), flat)
    if len(flat) > MOST_UNITS:
        ledger.problem(
            f"--pipeline-model-parallel-layout {text[:60]!r} written out has {len(flat):,} characters; at most"
            f" {MOST_UNITS:,} are read"
        )
        return "auto"
    if set(flat) - set("EtmL|"):
        ledger.problem(f"--pipeline-model-parallel-layout {text!r}: only E, t, m, L, |, (…)*n and x*n are understood")
        return "auto"
    if "m" in flat:
        ledger.not_yet("multi-token prediction (m in --pipeline-model-parallel-layout)", "a layout without m")
    return [len(stage) for stage in flat.split("|")]


def _deepspeed_partition(method: str, layers: int, stages: int, ledger: Ledger) -> list[int] | str:
    """DeepSpeed's partition method in units; `type:transformer|embedding` counts embedding and head too."""
    pattern = method.lower()
    if pattern == "type:transformer":
        return "even"
    if pattern == "type:transformer|embedding" and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        ledger.note(
            f"--pp-partition-method {method}: {layers} layers + embedding + head = {layers + 2} units / {stages} stages"
            f" = {each} each"
        )
        return [each] * stages
    ledger.warn(
        f"--pp-partition-method {method}: its balance of {layers} layers over {stages} stages is taken as"
        " pipeline_layout auto"
    )
    return "auto"
