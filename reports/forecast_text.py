"""A forecast as text: the numbers a planner asks for first, memory by stage, where the time goes, cost, warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from reports import tables
from reports.forecast import Assumed, Forecast, Memory, Remedied, Stage
from reports.tables import count, digits, gib, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

CONVENTIONS = {
    "exact": "exact: causal attention at half, embedding look-up not counted",
    "megatron": "megatron: full attention square (arXiv 2104.04473)",
    "palm": "palm: 6N + 12·L·a·d·s a token (arXiv 2204.02311)",
}
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "workspace", "framework")
MOST_STAGES = 16


def forecast_text(forecast: Forecast, width: int = 100, colour: bool = False) -> str:
    """The report of `windtunnel forecast`."""
    parts: list[RenderableType] = [title(forecast)]
    if forecast.assumptions:
        parts.append(assumptions_text(forecast.assumptions))
    parts.append(_numbers(forecast))
    if forecast.advice:
        parts += [_remedies(forecast), "\n".join(bullet(line, width) for line in forecast.advice)]
    parts += [_memory(forecast), _time(forecast)]
    for heading, lines in (
        ("Warnings", forecast.warnings),
        ("Notes", forecast.notes),
        ("Not modelled", forecast.not_modelled),
    ):
        if lines:
            parts.append("\n".join([heading, *(bullet(line, width) for line in lines)]))
    return tables.render(tables.spaced(parts), width, colour)


def assumptions_text(assumptions: Sequence[Assumed]) -> RenderableType:
    """What the file leaves open: as decided, what changes it, and what would move."""
    rows = [(each.subject, each.value, each.flag, each.moves) for each in assumptions]
    return tables.table("", ("assumed", "", "changed by", "moves"), rows, left=4)


def _remedies(forecast: Forecast) -> RenderableType:
    """Changes with memory and step time of their own, and how to ask for each."""
    rows = [
        (
            each.change,
            gib(each.peak_gib),
            verdict(each),
            seconds(each.step_time_s),
            each.words or " ".join(f"--set {text}" for text in each.set),
        )
        for each in forecast.remedies
    ]
    return tables.table("It does not fit. What to change:", ("change", "GiB", "", "step", "by"), rows, last_left=True)


def verdict(memory: Memory | Remedied) -> str:
    """fits, borderline or too much, in a word."""
    return "borderline" if memory.borderline else "fits" if memory.fits else "too much"


def bullet(text: str, width: int) -> str:
    """One item of a list, wrapped."""
    return textwrap.fill(text, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def title(forecast: Forecast) -> str:
    """Which run it is, with what it was priced."""
    model, plan, cluster = (forecast.run[section] for section in ("model", "plan", "cluster"))
    layout = f"TP{plan['tensor_parallel']} PP{plan['pipeline_parallel']} DP{plan['data_parallel']}"
    batch = f"global batch {plan['global_batch_size']} x {model['seq_length']} tokens"
    choices = (
        layout,
        f"ZeRO-{plan['zero_stage']}",
        plan["schedule"] if isinstance(plan["schedule"], str) else "a schedule of its own",
        plan["precision"],
        f"recompute {_plain(plan['recompute'])}",
    )
    lines = (
        f"{model['name']}, {count(forecast.parameters)} parameters, on {forecast.gpus} x {cluster['gpu']}",
        f"{', '.join(choices)}; {batch}, micro-batch {plan['micro_batch_size']}",
        f"implementation {plan['implementation']}; profile {forecast.profile}; program {forecast.program_hash[:16]}",
    )
    return "\n".join(lines)


def _plain(value: object) -> str:
    return f"of {value['layers']} layers" if isinstance(value, dict) else str(value)


def _numbers(forecast: Forecast) -> RenderableType:
    low, high = forecast.step_time_interval_s
    level = f"meant to hold {percent(forecast.step_time_interval_level)} of steps"
    peak = forecast.peak_tflops_per_gpu
    of = f" of {digits(peak)}" if peak else ""
    cost, memory = forecast.cost, forecast.memory
    spare = memory.capacity_gib - memory.peak_reserved_gib - memory.context_gib
    held = (
        f"{gib(memory.peak_allocated_gib)} allocated, {gib(memory.peak_reserved_gib)} reserved "
        f"+ {gib(memory.context_gib)} context"
    )
    tflops = f"model {digits(forecast.model_tflops_per_gpu)}, hardware {digits(forecast.hardware_tflops_per_gpu)}{of}"
    shares = f"{percent(forecast.mfu)}, {percent(forecast.hfu)}"
    job = f"{tables.duration(cost.days * 86400)}, {count(cost.gpu_hours)} GPU-hours, {count(cost.usd)} USD"
    rows = [
        (
            "step time",
            f"{seconds(forecast.step_time_s)}  [{seconds(low)}, {seconds(high)}] {level}",
        ),
        ("tokens/s", f"{count(forecast.tokens_per_s)}  ({count(forecast.tokens_per_s_per_gpu)} a GPU)"),
        ("TFLOP/s a GPU", tflops),
        ("MFU, HFU", f"{shares}  ({CONVENTIONS[forecast.flop_convention]})"),
        (
            "memory",
            f"{held} of {gib(memory.capacity_gib)} GiB: {_fits(spare, memory.capacity_gib, memory.interval_gib)}",
        ),
        ("cost", f"{cost.steps:,} steps: {job}"),
    ]
    if memory.host_gib > 0:
        left = _fits(memory.host_capacity_gib - memory.host_gib, memory.host_capacity_gib, memory.host_interval_gib)
        host = f"{gib(memory.host_gib)} offloaded of {gib(memory.host_capacity_gib)} GiB a node: {left}"
        rows.insert(-1, ("host memory", host))
    return tables.table("", ("", ""), rows, left=2)


def _fits(spare_gib: float, capacity_gib: float, interval_gib: tuple[float, float]) -> str:
    low, high = interval_gib
    if low <= capacity_gib < high:
        return f"BORDERLINE, {gib(low)} to {gib(high)} are possible"
    return f"fits, {gib(spare_gib)} GiB spare" if spare_gib >= 0 else f"DOES NOT FIT, {gib(-spare_gib)} GiB too much"


def _memory(forecast: Forecast) -> RenderableType:
    stages = sorted(forecast.memory.per_stage, key=lambda stage: -stage.peak_gib)[:MOST_STAGES]
    hidden = len(forecast.memory.per_stage) - len(stages)
    title = "Memory at the peak of each stage (GiB)" + (f", the fullest {MOST_STAGES}" if hidden else "")
    rows = [_stage(stage) for stage in sorted(stages, key=lambda stage: stage.stage)]
    return tables.table(title, ("stage", "peak", *PARTS), rows)


def _stage(stage: Stage) -> tuple[str, ...]:
    return (str(stage.stage), gib(stage.peak_gib), *(gib(getattr(stage, f"{part}_gib")) for part in PARTS))


def _time(forecast: Forecast) -> RenderableType:
    names = asdict(forecast.time)
    rows = [
        (name.replace("_", " "), percent(share), seconds(share * forecast.step_time_s), _bar(share))
        for name, share in sorted(names.items(), key=lambda item: -item[1])
        if share > 0
    ]
    columns = ("where the time goes", "share", "a step", "")
    return tables.table("", columns, rows, last_left=True)


def _bar(share: float, cells: int = 40) -> str:
    return "█" * round(share * cells)
