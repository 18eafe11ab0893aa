"""A published row as a run, or the stated reason why it is not scored.

    case = convert(row)
    case.run        # a Run, simulated as any other, or None
    case.reason     # why it is None
    case.presumed   # what the source did not say and `conventions` filled in

A row is never bent to fit: what the language cannot say, what the source left out and what is not yet forecast are
reasons, counted and printed. When a strategy becomes supported its rows are scored without a change here, because "not
yet forecast" is asked of `plan.run.load`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plan.model import Model
from plan.run import Run, load
from program.errors import InputError, NotYetForecast
from validation.conventions import Convention, convention
from validation.published import Published, bus_bytes_per_s

NEEDED = (
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "n_gpus",
    "tp",
    "pp",
    "micro_batch",
    "precision",
    "recompute",
)
PRECISIONS = {"fp16": "fp16", "bf16": "bf16", "amp_bf16": "bf16", "fp8": "fp8", "float8 linear": "fp8", "fp32": "fp32"}
RECOMPUTES = ("none", "selective", "full")
SHARDINGS = (
    ("none", 0), ("ZeRO-0", 0), ("ZeRO-1", 1), ("distributed optimizer (ZeRO-1)", 1), ("ZeRO-2", 2), ("ZeRO-3", 3),
    ("FSDP", 3),
)  # fmt: skip
SCHEDULES = {"ZB-1p": "zb-h1", "ZB-2p": "zb-h2"}  # the others follow from the number of chunks
PER_NODE = re.compile(r"(?:RoCE )?(\d+) Gb/s per node")  # a node's whole bandwidth, where a row prints that
FILLING = 2  # micro-batches per stage of a row that prints memory alone: the pipeline is full, more changes nothing


@dataclass(frozen=True, slots=True)
class Case:
    """A row with the run it means. Exactly one of `run` and `reason` is given."""

    row: Published
    source: str
    run: Run | None = None
    reason: str = ""
    presumed: tuple[str, ...] = ()
    step_time_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: str = "device"


class _Unscored(Exception):
    """Why a row cannot become a run."""


def convert(row: Published) -> Case:
    """The run of a row, with what was measured. Never raises for a row: what is wrong becomes its reason."""
    source = convention(row)
    if source is None:
        return Case(row, row.file or "unknown", reason="no convention describes its source")
    reader = _Reader(row, source)
    try:
        measured = reader.measured()
        run = _loaded(reader.run_dict())
    except _Unscored as unscored:
        return Case(row, source.name, reason=str(unscored))
    memory = measured["memory_bytes"]
    if memory is not None and memory > run.cluster.gpu_memory_gib * 2**30 and measured["step_time_s"] is None:
        return Case(row, source.name, reason="memory above the card's: computed by the source, not measured")
    return Case(row, source.name, run, "", tuple(reader.filled), memory_kind=source.memory, **measured)


def run_dict(row: Published) -> dict[str, Any]:
    """The run file a row means. Raises InputError with the reason when it means none."""
    source = convention(row)
    if source is None:
        raise InputError(f"row {row.id}: no convention describes its source")
    try:
        return _Reader(row, source).run_dict()
    except _Unscored as unscored:
        raise InputError(f"row {row.id}: {unscored}") from None


def _loaded(raw: Mapping[str, Any]) -> Run:
    try:
        return load(raw)
    except NotYetForecast as error:
        features = [problem.partition(" is not yet forecast")[0].removeprefix("plan.") for problem in error.problems]
        raise _Unscored(f"not yet forecast: {', '.join(features)}") from None
    except InputError as error:
        raise _Unscored(f"no legal plan: {error.problems[0].partition(';')[0]}") from None


class _Reader:
    """One row being turned into a run dict. `filled` collects the presumptions made."""

    def __init__(self, row: Published, source: Convention) -> None:
        self.row = row
        self.source = source
        self.filled: list[str] = []

    def measured(self) -> dict[str, float | None]:
        """Step time in seconds and memory in bytes, where published. A row with neither is not scored."""
        step, memory = self.row.step_time_s, self.row.memory
        if self.row.set == "dev-feasibility":
            raise _Unscored("the run failed: only its outcome is known")
        if step is None and memory is None:
            raise _Unscored("neither step time nor memory published")
        if step is not None and self._batch() is None:
            raise _Unscored("times a layer, not a step: no global batch")
        bytes_ = None if memory is None else memory * self.source.memory_unit_bytes
        return {"step_time_s": step, "memory_bytes": bytes_}

    def run_dict(self) -> dict[str, Any]:
        missing = [name for name in NEEDED if not self._cell(name)]
        if missing:
            raise _Unscored(f"not published: {', '.join(missing)}")
        return {"model": self._model(), "cluster": self._cluster(), "plan": self._plan()}

    def _cell(self, column: str) -> str:
        """A published or derived cell, else what the convention presumes, noted once."""
        given = self.row.text(column)
        if given and not given.startswith("not stated"):
            return given
        value, why = self.source.presumed.get(column, ("", ""))
        note = f"{column} {value}: {why}"
        if value and note not in self.filled:
            self.filled.append(note)
        return value

    def _count(self, column: str) -> int:
        text = self._cell(column)
        if not text.replace(".", "", 1).isdigit():
            raise _Unscored(f"{column} {text!r} is not a number")
        return int(float(text))

    def _model(self) -> dict[str, Any]:
        keys = {name: self._count(name) for name in ("layers", "hidden", "heads", "vocab")}
        keys["seq_length"] = self._count("seq_len")
        keys |= {name: self._count(name) for name in ("ffn", "kv_heads") if self._cell(name)}
        named = {"name": self._cell("model_name") or "published", **keys, **self.source.family}
        published = self.row.number("params_b")
        if "tied_embeddings" not in named and published is not None:
            named["tied_embeddings"] = _tied(named, published * 1e9)
        return named

    def _cluster(self) -> dict[str, Any]:
        gpu, memory = self.row.text("gpu"), self.row.number("gpu_mem_gb")
        if gpu.startswith("A100"):
            preset = "dgx-a100-40gb" if memory is not None and memory < 60 else "dgx-a100-80gb"
        elif gpu.startswith("H100"):
            preset = "dgx-h100"
        else:
            raise _Unscored(f"no node type for the GPU {gpu!r}")
        cluster = {"preset": preset, "gpus": self._count("n_gpus"), **self.source.cluster}
        per_node = self.row.count("gpus_per_node")
        cluster |= {"gpus_per_node": per_node} if per_node else {}
        nodes = -(-self._count("n_gpus") // (per_node or 8))
        if nodes > 1 and self.source.fabric:
            return cluster | _fabric(self.source, nodes)
        printed = PER_NODE.match(self.row.text("inter_link"))
        return cluster | (_nics(int(printed[1])) if printed and "nics" not in self.source.cluster else {})

    def _plan(self) -> dict[str, Any]:
        tp, pp, dp = self._count("tp"), self._count("pp"), self._data_parallel()
        vpp, micro = self._virtual(pp), self._count("micro_batch")
        batch = self._batch()
        if batch is None:
            batch = micro * dp * pp * FILLING
            self.filled.append(f"global_batch {batch}: not published, the pipeline is full at its memory peak")
        plan: dict[str, Any] = {
            **self.source.plan,
            "tensor_parallel": tp,
            "pipeline_parallel": pp,
            "virtual_pipeline": vpp,
            "context_parallel": self.row.count("cp") or 1,
            "data_parallel": dp,
            "sequence_parallel": tp > 1 and self._cell("sp") in ("1", "yes"),
            "zero_stage": self._zero_stage(),
            "micro_batch_size": micro,
            "global_batch_size": batch,
            "recompute": self._one_of("recompute", {name: name for name in RECOMPUTES}),
            "precision": self._one_of("precision", PRECISIONS),
        }
        if self.source.stages == "by cost" and pp > 1 and vpp == 1:
            plan["pipeline_layout"] = self._layout_by_cost(pp)
        schedule = SCHEDULES.get(self.row.text("schedule"))
        blocking = self.source.blocking_from
        if blocking is not None and self._count("n_gpus") >= blocking:
            plan["launch_blocking"] = True
        for text, keys in self.source.noted.items():
            plan |= keys if text in self.row.text("notes") else {}
        return plan | ({"schedule": schedule} if schedule else {})

    def _one_of(self, column: str, known: Mapping[str, str]) -> str:
        """A cell translated; what follows a comma is a remark (`bf16, fp32 gradient accumulation`)."""
        text = self._cell(column)
        value = known.get(text) or known.get(text.partition(",")[0])
        if value is None:
            raise _Unscored(f"{column} {text!r} cannot be expressed")
        return value

    def _zero_stage(self) -> int:
        text = self._cell("zero_stage_or_sharding")
        for name, stage in SHARDINGS:
            if text.startswith(name):
                return stage
        raise _Unscored(f"sharding {text!r} cannot be expressed" if text else "not published: sharding")

    def _virtual(self, pp: int) -> int:
        """Model chunks a stage: a number, or in words one layer a chunk, embedding and head counted as layers."""
        text = self._cell("vpp") if pp > 1 else ""
        if not text:
            return 1
        if "one layer per chunk" in text:
            return max(1, (self._count("layers") + 2) // pp)
        return self._count("vpp")

    def _layout_by_cost(self, pp: int) -> list[int]:
        """Units per stage as nanotron places them: by weights of the matrix products, the embedding free."""
        model = self._model()
        hidden, heads = model["hidden"], model["heads"]
        attention = 2 * hidden * hidden * (1 + model.get("kv_heads", heads) / heads)
        layer = attention + 3 * hidden * model["ffn"]
        counts = units_by_cost([0.0, *[layer] * model["layers"], float(model["vocab"] * hidden)], pp)
        if 0 in counts:
            raise _Unscored("its framework leaves a pipeline stage without layers")
        return counts

    def _data_parallel(self) -> int:
        model_parallel = self._count("tp") * self._count("pp") * (self.row.count("cp") or 1)
        return self._count("dp") if self._cell("dp") else max(1, self._count("n_gpus") // model_parallel)

    def _batch(self) -> int | None:
        """Sequences a step: printed, derived, or micro-batch x accumulation x replicas."""
        printed = self.row.count("global_batch")
        if printed is not None:
            return printed
        accumulation, micro = self.row.count("grad_accum"), self.row.count("micro_batch")
        return None if accumulation is None or micro is None else accumulation * micro * self._data_parallel()


def _fabric(source: Convention, nodes: int) -> dict[str, Any]:
    """One NIC as fast as the source's network was measured to be between as many nodes, or the next number that was;
    a transfer between two ranks may use it whole."""
    measured = min((known for known in source.fabric if known >= nodes), default=max(source.fabric))
    return {"nics": {"count": 1, "bandwidth_gb_s": bus_bytes_per_s(source.fabric[measured]) / 1e9}}


def _nics(gb_per_node: int) -> dict[str, Any]:
    """Eight NICs that together carry the Gb/s that a row prints for a node."""
    return {"nics": {"count": 8, "bandwidth_gb_s": gb_per_node / 8 / 8}}


def units_by_cost(costs: Sequence[float], stages: int) -> list[int]:
    """Units of each stage: one takes units until what is placed so far passes its share of the whole."""
    counts, placed, stage = [0] * stages, 0.0, 0
    for cost in costs:
        counts[stage] += 1
        placed += cost
        if placed > sum(costs) * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return counts


def _tied(keys: Mapping[str, Any], parameters: float) -> bool:
    """Whether the printed number of parameters is nearer to a model that shares its embedding with the head."""
    heads, hidden = keys["heads"], keys["hidden"]
    sizes = {"kv_heads": heads, "head_dim": hidden // heads, "max_positions": keys["seq_length"]} | dict(keys)
    if "bias" in sizes:
        sizes |= dict.fromkeys(("out_bias", "mlp_bias"), sizes.pop("bias"))
    untied, tied = (Model(**{**sizes, "tied_embeddings": is_tied}).parameters() for is_tied in (False, True))
    return abs(tied - parameters) < abs(untied - parameters)
