"""From a checked profile file to the frozen tables lookups read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from calibration import schema
from calibration.collectives import CollectiveTable, Fabric, Network, Wires, steps, wire_factor
from calibration.forms import AttentionForm, GemmForm, RooflineForm, Tile, TileForm
from calibration.kernel_times import Entry
from calibration.lookup import Curve, Line, Scatter
from program import KernelCall
from program.ops import OPERATORS

KINDS = ("compiled", "triton", "eager")  # in the order in which one stands in for another
Part = TypeVar("Part", schema.GemmFile, schema.AttentionFile, schema.MemoryFile)


def entries(file: schema.ProfileFile, threads: int, kernels: str) -> list[Entry]:
    """Kernel entries that hold for `threads` (0: always) under `kernels` (`*`: under each); particular ones last."""

    def held(parts: Sequence[Part]) -> list[Part]:
        fitting = [part for part in parts if part.threads in (0, threads) and part.kernels in ("*", kernels)]
        return sorted(fitting, key=lambda part: part.kernels != "*")

    found = [_gemm(part) for part in held(file.gemm)]
    found += [_attention(part) for part in held(file.attention)]
    found += [_memory(part) for part in held(file.memory)]
    return found


def kernel_kinds(file: schema.ProfileFile) -> tuple[str, ...]:
    """The values of `plan.kernels` the profile has entries of its own for; () when it does not depend on them."""
    kinds = {part.kernels for part in (*file.gemm, *file.attention, *file.memory)}
    return tuple(kind for kind in KINDS if kind in kinds)


def thread_counts(file: schema.ProfileFile) -> tuple[int, ...]:
    """Thread counts the profile was measured at, ascending; (0,) when it does not depend on them."""
    counts = {part.threads for part in (*file.gemm, *file.attention, *file.memory)}
    return tuple(sorted(counts - {0})) or (0,)


def gemm_form(part: schema.GemmFormFile) -> GemmForm:
    """The model behind a GEMM entry."""
    if part.units == 0:
        return RooflineForm(part.launch_s, part.flops_per_s, part.bytes_per_s)
    tiles = tuple(Tile(tile.m, tile.n, tile.share) for tile in part.tiles)
    return TileForm(part.launch_s, part.flops_per_s, part.bytes_per_s, part.units, part.prologue_k, tiles)


def _gemm(part: schema.GemmFile) -> Entry:
    form = gemm_form(part.form)
    variant = part.layout if part.layout != "*" else "nt"

    def at(batch: float, m: float, n: float, k: float) -> float:
        shape = (int(m), int(n), int(k)) if part.op == "gemm" else (int(batch), int(m), int(n), int(k))
        bytes_ = OPERATORS[part.op].bytes_(KernelCall(part.op, shape, part.dtype, variant))
        return form.seconds(bytes_, batch, m, n, k)

    scatter = Scatter.of([(p[:4], p[4]) for p in part.points], at) if part.points else None
    return Entry(part.op, part.dtype, part.layout, gemm=form, scatter=scatter, **_stated(part))


def _attention(part: schema.AttentionFile) -> Entry:
    values = part.form
    form = AttentionForm(
        values.launch_s, values.flops_per_s, values.short_s, values.narrow_d, values.units, values.block_rows
    )

    def at(b: float, heads: float, kv_heads: float, s: float, d: float) -> float:
        call = KernelCall(part.op, (int(b), int(heads), int(kv_heads), int(s), int(d)), part.dtype)
        return form.seconds(OPERATORS[part.op].flops(call), b, heads, s, d)

    scatter = Scatter.of([(p[:5], p[5]) for p in part.points], at) if part.points else None
    return Entry(part.op, part.dtype, part.variant, attention=form, scatter=scatter, **_stated(part))


def _memory(part: schema.MemoryFile) -> Entry:
    curve = Curve.of(Line(part.launch_s, 1.0 / part.bytes_per_s), part.points)
    return Entry(part.op, part.dtype, part.variant, memory=curve, **_stated(part))


def _stated(part: schema.GemmFile | schema.AttentionFile | schema.MemoryFile) -> dict[str, Any]:
    return {"sigma": part.sigma, "source": part.source, "issue_s": part.issue_s}


def fabric(file: schema.ProfileFile) -> Fabric:
    """Collective tables and the network between nodes."""
    found = []
    for part in file.collectives:
        launch = part.step_latency_s * steps(part.op, part.ranks)
        line = Line(launch, wire_factor(part.op, part.ranks) / part.bus_bytes_per_s)
        curve = Curve.of(line, part.points)
        delays = (part.delay_s, part.delay_beside_s)
        head = (part.op, part.dtype, part.ranks, part.step_latency_s, curve, part.sigma)
        found.append(CollectiveTable(*head, *delays, source=part.source))
    if file.network is None:
        return Fabric(tuple(found), None)
    net = file.network
    wires = Wires(**net.reference.model_dump())
    network = Network(
        net.efficiency,
        net.step_latency_s,
        net.tree_latency_s,
        net.tree_pipeline,
        net.pair_nics,
        wires,
        net.sigma,
        net.source,
    )
    return Fabric(tuple(found), network)
