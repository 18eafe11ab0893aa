"""From measured points to the sections of a profile file: fit the form of each class, keep the points, state the
residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibration import fits, schema, tables
from calibration.collectives import steps, wire_factor
from calibration.comm_bench import CommPoint, Delay
from calibration.comm_steps import RANKS
from calibration.forms import AttentionForm, GemmForm, RooflineForm
from calibration.kernel_times import extents
from calibration.microbench import KernelPoint
from program import KernelCall
from program.ops import OPERATORS

SOURCE = "here"
KEPT = (
    "network", "collectives", "contention", "cores", "host_optimizer", "framework_host", "workspace", "cards",
    "memory_error",
)  # fmt: skip
NOT_LIMITING = 1e18  # a rate whose coefficient the fit put at zero: this resource does not limit

Section = dict[str, Any]


def gemm_sections(points: Sequence[KernelPoint]) -> list[Section]:
    """One entry for each (operator, dtype, layout, threads). Layouts of a dtype share one fitted form."""
    sections = []
    for key, group in _grouped(points, lambda p: (p.threads, p.call.dtype, "acc32" in p.call.variant)).items():
        threads, dtype, _ = key
        form = _roofline([p for p in group if p.call.op == "gemm"] or group)
        for (op, layout), own in _grouped(group, lambda p: (p.call.op, p.call.variant)).items():
            table = [(extents(p.call), p.timed.best_s) for p in own]
            sigma = fits.scatter_sigma(table, gemm_at(form, op, dtype, layout))
            sections.append(
                _entry(op=op, dtype=dtype, layout=layout, threads=threads)
                | {"sigma": _both(sigma, own), "form": _fields(form), "points": [[*s, _round(t)] for s, t in table]}
            )
    return sections


def gemm_at(form: GemmForm, op: str, dtype: str, layout: str) -> Any:
    """`form` as a function of the extents of a table's points."""

    def at(batch: float, m: float, n: float, k: float) -> float:
        shape = (int(m), int(n), int(k)) if op == "gemm" else (int(batch), int(m), int(n), int(k))
        return form.seconds(OPERATORS[op].bytes_(KernelCall(op, shape, dtype, layout)), batch, m, n, k)

    return at


def _roofline(points: Sequence[KernelPoint]) -> RooflineForm:
    calls = [p.call for p in points]
    rows = [(1.0, OPERATORS[c.op].flops(c), OPERATORS[c.op].bytes_(c)) for c in calls]
    (launch, per_flop, per_byte), _ = fits.linear(rows, [p.timed.best_s for p in points])
    return RooflineForm(launch, _rate(per_flop), _rate(per_byte))


def attention_sections(points: Sequence[KernelPoint]) -> list[Section]:
    """One entry for each (operator, dtype, variant, threads); a variant measured alone stands for all (`*`)."""
    sections = []
    alone = len({p.call.variant for p in points}) == 1
    by_key = _grouped(points, lambda p: (p.threads, p.call.op, p.call.dtype, p.call.variant))
    for (threads, op, dtype, variant), own in by_key.items():
        rows = []
        for p in own:
            flops, s = float(OPERATORS[op].flops(p.call)), p.call.shape[3]
            rows.append((1.0, flops, flops / s))
        (launch, per_flop, short), _ = fits.linear(rows, [p.timed.best_s for p in own])
        form = AttentionForm(launch, _rate(per_flop), short / per_flop if per_flop > 0 else 0.0)
        table = [(p.call.shape, p.timed.best_s) for p in own]

        def at(b: float, h: float, kv: float, s: float, d: float, op: str = op, form: AttentionForm = form) -> float:
            flops = OPERATORS[op].flops(KernelCall(op, (int(b), int(h), int(kv), int(s), int(d)), "fp32"))
            return form.seconds(flops, b, h, s, d)

        sections.append(
            _entry(op=op, dtype=dtype, variant="*" if alone else variant, threads=threads)
            | {"sigma": _both(fits.scatter_sigma(table, at), own), "form": _fields(form)}
            | {"points": [[*shape, _round(t)] for shape, t in table]}
        )
    return sections


def memory_sections(points: Sequence[KernelPoint]) -> list[Section]:
    """One curve for each (operator, dtype, variant, threads), and the line of the whole class for what was not
    measured."""
    sections = []
    by_key = _grouped(points, lambda p: (p.threads, p.call.op, p.call.dtype, p.call.variant))
    for (threads, op, dtype, variant), own in by_key.items():
        curve = fits.monotone([(OPERATORS[op].bytes_(p.call), p.timed.best_s) for p in own])
        base, _ = fits.line(curve)
        name = variant or "*"
        sections.append(
            _entry(op=op, dtype=dtype, variant=name, threads=threads)
            | {"sigma": _both(fits.curve_sigma(curve, base), own)}
            | {"launch_s": _round(base.launch_s), "bytes_per_s": _round(1.0 / base.seconds_per_unit)}
            | {"points": [[_round(size), _round(t)] for size, t in curve]}
        )
    for threads, group in _grouped(points, lambda p: p.threads).items():
        base, residuals = fits.line([(OPERATORS[p.call.op].bytes_(p.call), p.timed.best_s) for p in group])
        sigma = (sum(r * r for r in residuals) / len(residuals)) ** 0.5
        sections.append(
            {"source": SOURCE, "op": "*", "threads": threads, "sigma": _round(sigma)}
            | {"launch_s": _round(base.launch_s), "bytes_per_s": _round(1.0 / base.seconds_per_unit)}
        )
    return sections


def sustained(factor: float, source: str) -> Section:
    """The factor on GEMMs of a long run. A step's run between short and sustained clocks, so its error is that of a
    uniform choice between them."""
    gemm = max(1.0, factor)
    return {"source": source, "gemm": _round(gemm), "sigma": _round((gemm - 1.0) / 12**0.5)}


def collective_sections(
    points: Sequence[CommPoint], delays: Mapping[str, Delay], ranks: int = RANKS, source: str = SOURCE
) -> list[Section]:
    """One table for each (operation, dtype) on the ranks measured, with the operation's delays."""
    sections = []
    for (op, dtype), own in _grouped(points, lambda p: (p.op, p.dtype)).items():
        curve = fits.monotone([(p.bytes, p.timed.best_s) for p in own])
        base, _ = fits.line(curve)
        sections.append(
            {"source": source, "op": op, "dtype": dtype, "ranks": ranks}
            | {"sigma": _both(fits.curve_sigma(curve, base), own)}
            | {"step_latency_s": _round(curve[0][1] / steps(op, ranks))}
            | {"bus_bytes_per_s": _round(wire_factor(op, ranks) / base.seconds_per_unit)}
            | _delays(delays.get(op))
            | {"points": [[_round(size), _round(t)] for size, t in curve]}
        )
    return sections


def borrowed(data: Section, lender: Section) -> Section:
    """A measured GPU's profile with what it takes from another of the same kind: the sections KEPT, tables of
    collectives beside its own, and the form of products outside its points. Only sources that are used stay."""
    own = data.get("collectives", [])
    replaced = {(entry["op"], entry["ranks"]) for entry in own}
    kept = [entry for entry in lender.get("collectives", []) if (entry["op"], entry["ranks"]) not in replaced]
    found = {key: part for key, part in data.items() if key != "collectives"}
    found |= {key: lender[key] for key in KEPT if key in lender} | ({"collectives": own + kept} if own else {})
    found["gemm"] = _with_forms(data["gemm"], lender["gemm"])
    used = {entry["source"] for part in found.values() for entry in _entries(part)}
    sources = lender["sources"] | data["sources"]
    return found | {"sources": {key: value for key, value in sources.items() if key in used}}


def _entries(part: Any) -> list[Section]:
    found = part if isinstance(part, list) else [part]
    return [entry for entry in found if isinstance(entry, dict) and "source" in entry]


def _with_forms(sections: list[Section], lent: list[Section]) -> list[Section]:
    """The measured points with the lender's form for shapes outside them (tiles and waves fit a GPU better than the
    roofline a CPU's points are fitted with), where it has one for the dtype; sigma is that of the form used."""
    forms = {entry["dtype"]: entry["form"] for entry in reversed(lent)}
    return [s if s["dtype"] not in forms else s | _refitted(s, forms[s["dtype"]]) for s in sections]


def _refitted(section: Section, form: Section) -> Section:
    lent = tables.gemm_form(schema.GemmFormFile(**form))
    at = gemm_at(lent, section["op"], section["dtype"], section["layout"])
    sigma = fits.scatter_sigma([(point[:4], point[4]) for point in section["points"]], at)
    return {"form": form, "sigma": float(f"{sigma:.4g}")}


def _delays(found: Delay | None) -> Section:
    return {} if found is None else {"delay_s": _round(found.exposed_s), "delay_beside_s": _round(found.beside_s)}


def _entry(**keys: Any) -> Section:
    return {"source": SOURCE, **keys}


def _grouped(points: Sequence[Any], key: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return groups


def _both(table_sigma: float, points: Sequence[KernelPoint] | Sequence[CommPoint]) -> float:
    """Sigma of reading between the points and of the points themselves."""
    noise = sorted(p.timed.uncertainty for p in points)[len(points) // 2]
    return _round((table_sigma**2 + noise**2) ** 0.5)


def _fields(form: RooflineForm | AttentionForm) -> Section:
    names = ("launch_s", "flops_per_s") + (
        ("bytes_per_s",) if isinstance(form, RooflineForm) else ("short_s", "narrow_d")
    )
    return {name: _round(getattr(form, name)) for name in names}


def _rate(seconds_per_unit: float) -> float:
    return 1.0 / seconds_per_unit if seconds_per_unit > 1.0 / NOT_LIMITING else NOT_LIMITING


def _round(value: float) -> float:
    return float(f"{value:.6g}")
