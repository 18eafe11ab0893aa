"""Makes the shipped profiles a100-80gb, h100 and h200-published from stated rows of the published data, and what h200,
measured on one machine, borrows of the last. The results are committed:

    python -m tools.fit_published

Each number's source names the rows it was fitted on and how well. The GEMM shape terms (prologue depth, loss of small
tiles) come from 183 A100-PCIe shapes, the rate of each card from its own rows; attention from the flash-attention
figures; memory-bound operators are the measured fraction of the copy bandwidth; all-reduce tables by size and ranks;
the network from scans over nodes. What has no published row is derived and says so. Nothing is fitted on runs.csv,
except one factor that is named (unfused softmax).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from calibration import measured, schema
from calibration.calibrate import LINKS, MEASURED_BY
from calibration.write import write_profile
from program import KernelCall
from program.ops import bytes_of
from tools import fit_framework_host, fit_links, fit_uncertainty, fit_workspace
from tools import fit_sections as parts
from tools import published_rows as published
from tools.fit_attention import RATE, flash_a100, triton_a100, triton_hopper
from tools.fit_kernels import Chip, backward_ratio, fit_attention, fit_gemm, tile_form
from tools.fit_links import Section, rounded
from tools.fit_search import Fit
from tools.fit_texts import TEXTS
from tools.published_rows import AttentionRow, between, bus_bytes_per_s, memory_bytes_per_s

COMMENT = (
    "Made by `python -m tools.fit_published`; sources name rows of calibration/published/nccl.csv and "
    "tools/published/gemm.csv."
)
MEASURED = MEASURED_BY.format(base="h200-published")
FOLDER = Path(__file__).parents[1] / "calibration" / "profiles"


def a100() -> Section:
    """A100-SXM4-80GB."""
    copies = parts.COPIES["a100-80gb"]
    memory = sum(map(memory_bytes_per_s, copies)) / len(copies)
    chip = replace(parts.A100, memory_bytes_per_s=memory)
    shapes, weight = parts.shape_terms()
    # Launch 0: 10,000 launches in a row, as both sources time them, leave nothing of it to see on the device.
    terms = {name: shapes.values[name] for name in ("prologue_k", "reuse")} | {"launch_s": 0.0}
    rows = published.gemm_rows(parts.SXM)
    card = fit_gemm(chip, rows, terms, {"efficiency": (0.7, 0.95)})
    accumulate = weight.values["efficiency"] / shapes.values["efficiency"]
    flash, triton = flash_a100(chip), triton_a100(chip)
    node_rates = (2e11, 1e11, 1e11, 1e11)  # 8 NICs, then 4, of 25 GB/s
    nic = [bus_bytes_per_s(row) / rate for row, rate in zip(parts.NICS_A100, node_rates, strict=True)]
    tree = fit_links.fit_tree(parts.TREE, parts.H100_NODE_BYTES_PER_S, parts.H100_LATENCY_S)
    sources = {
        "gemm": parts.source("published", TEXTS["a100 gemm"], parts.SXM, card),
        "gemm-shapes": parts.source("published", "A100-PCIe matmuls: prologue, tile loss", parts.PCIE, shapes),
        "gemm-weight": parts.source("published", TEXTS["a100 weight"], parts.PCIE, weight, share=accumulate),
        "attention": parts.source(
            "published", TEXTS["a100 attention"], parts.ATTENTION_A100, flash.fit, back=flash.back
        ),
        "attention-triton": parts.source(
            "published", TEXTS["a100 triton attention"], parts.TRITON_A100, triton.fit, back=triton.back
        ),
        "reduce": parts.source("published", TEXTS["a100 reduce"], parts.REDUCE_A100),
        "pair": parts.source("derived", "a transfer: the ring's rate on 2 GPUs and one of its steps", ["nccl-0479"]),
        "network": parts.source("published", TEXTS["a100 network"], [*parts.NICS_A100, *parts.TREE], tree),
        "copies": parts.source("published", TEXTS["a100 copies"], ["nccl-0647"]),
        "host-optimizer": parts.source("derived", TEXTS["host optimizer"], []),
    }
    step_s = 43.83e-6 / 14  # nccl-0189: 32 KiB on 8 GPUs, all latency
    tables = []
    for ranks in range(2, 9):
        first = 469 + 11 * (ranks - 2)
        ids = between(f"nccl-0{first}", f"nccl-0{first + 10}")
        if ranks == 8:
            ids += parts.REDUCE_A100_ENDS
        tables.append(fit_links.table(published.collective_rows(ids), "reduce", step_s, 0.10))
    network = _network(sum(nic) / len(nic), tree, (3e11, 2.5e10))
    return _with_errors(_profile(
        "a100-80gb", memory, sources, copies,
        gemm=parts.gemm_sections(chip, terms | card.values, accumulate, card.sigma, "gemm", rows),
        attention=[
            *parts.attention_sections(chip, flash.fit, flash.back, "*", "attention"),
            *parts.attention_sections(chip, triton.fit, triton.back, "triton", "attention-triton"),
        ],
        collectives=[*tables, _pair(bus_bytes_per_s("nccl-0479"), step_s)],
        network=network,
        copies=_copies(26.28e9, 26.28e9),
        host_optimizer={"source": "host-optimizer", "sigma": 0.2, "bytes_per_s": rounded(host_optimizer_bytes_per_s())},
    ))  # fmt: skip


def host_optimizer_bytes_per_s() -> float:
    """Bytes that AdamW (fp32 state, bf16 copy) moves on the CPUs of a node with 2 x EPYC 7742: what offloading the step
    of 1.54e9 parameters adds, less the copy of each of two ranks' weights back."""
    parameters, added_s = 1.543e9, 1.365 - 0.240
    back_s = parameters / 2 * 2 / 26.28e9
    return bytes_of(KernelCall("adamw", (int(parameters),), "fp32", "bf16")) / (added_s - back_s)


def hopper_gemm(memory: float) -> tuple[Chip, dict[str, float], Fit, float]:
    """(chip, terms, fit on fp8 rows, sustained share). bf16 takes the seconds of the fp8 prologue, so half its depth,
    and the rate of a short run, 762 TFLOP/s on 8192 cubed; a long one reaches 663 (power), which is the profile's
    `sustained` factor."""
    chip = replace(parts.H100, memory_bytes_per_s=memory)
    shapes, _ = parts.shape_terms()
    fp8 = replace(chip, peak_flops_per_s=2 * chip.peak_flops_per_s)
    fixed = {"reuse": shapes.values["reuse"]}
    bounds = {"efficiency": (0.5, 0.95), "prologue_k": (0.0, 1200.0), "launch_s": (1e-6, 20e-6)}
    fit = fit_gemm(fp8, published.gemm_rows(parts.H100_FP8), fixed, bounds)
    sustained = parts.H200_GEMM_SUSTAINED / parts.H200_GEMM_8192
    terms = fixed | {"prologue_k": fit.values["prologue_k"] / 2, "launch_s": fit.values["launch_s"], "efficiency": 1.0}
    form = tile_form(chip, **terms)
    work = 2.0 * 8192**3
    loop_s = form.seconds(6.0 * 8192**2, 1, 8192, 8192, 8192) - form.launch_s
    terms["efficiency"] = loop_s / (work / parts.H200_GEMM_8192 - form.launch_s)
    return chip, terms, fit, sustained


def _hopper_attention(name: str, chip: Chip) -> tuple[dict[str, Fit], dict[str, float]]:
    """(fit, backward's time over forward's) of each variant: H100's published rows, or one H200's rates with the narrow
    heads of H100's fit."""
    back = {
        "flash": backward_ratio(list(parts.H200_FLASH.values())),
        "cudnn": backward_ratio(list(parts.H200_CUDNN.values())),
    }
    rows = {"flash": parts.FLASH2_H100, "cudnn": parts.FLASH3_H100}
    h100 = {v: fit_attention(chip, published.attention_rows(rows[v]), back[v], 0.0, RATE) for v in rows}
    if name != "h200":
        return h100, back
    terms = {n: RATE[n] for n in ("rate", "short_s")}
    own = {}
    for variant, rates in (("flash", parts.H200_FLASH), ("cudnn", parts.H200_CUDNN)):
        narrow_d = h100[variant].values["narrow_d"]
        own[variant] = fit_attention(chip, _h200_rows(rates), 1.0, 0.0, terms, {"narrow_d": narrow_d})
        own[variant].values["narrow_d"] = narrow_d
    return own, back


def _hopper(name: str, memory: float, copies: list[str], memory_text: str) -> Section:
    chip, terms, fp8, sustained = hopper_gemm(memory)
    shapes, weight = parts.shape_terms()
    accumulate = weight.values["efficiency"] / shapes.values["efficiency"]
    fits_, back = _hopper_attention(name, chip)
    triton = triton_hopper(parts.A100, _hopper_attention("h100", chip)[0]["flash"])
    tree = fit_links.fit_tree(parts.TREE, parts.H100_NODE_BYTES_PER_S, parts.H100_LATENCY_S)
    origin = "published" if name == "h100" else "measured"
    rows_8 = between("nccl-0004", "nccl-0032") if name == "h100" else between("nccl-0169", "nccl-0188")
    copy_rows = ["nccl-0650", "nccl-0651"] if name == "h100" else ["nccl-0238", "nccl-0239"]
    extra = {"efficiency_bf16": terms["efficiency"]}
    sources = {
        "gemm": parts.source(
            "derived",
            TEXTS["hopper gemm"] + (TEXTS["h100 points"] if name == "h100" else ""),
            parts.H100_FP8,
            fp8,
            **extra,
        ),
        "attention": parts.source(
            origin, TEXTS[f"{name} attention"], parts.FLASH2_H100, fits_["flash"], back=back["flash"]
        ),
        "attention-cudnn": parts.source(
            origin, TEXTS[f"{name} attention"], parts.FLASH3_H100, fits_["cudnn"], back=back["cudnn"]
        ),
        "attention-triton": parts.source(
            "derived", TEXTS["h100 triton attention"], parts.TRITON_A100, rate=triton.fit.values["rate"]
        ),
        "sustained": parts.source("measured", TEXTS["sustained"], sustained_over_short=sustained),
        "reduce": parts.source("published", "all-reduce on 8 GPUs by size", rows_8),
        "reduce-derived": parts.source("derived", TEXTS["hopper reduce"], parts.REDUCE_H200),
        "pair": parts.source("derived", "a transfer: the ring's rate and one of its steps", ["nccl-0209"]),
        "network": parts.source("published", TEXTS["hopper network"], [*parts.PEAKS_H100, *parts.TREE], tree),
        "copies": parts.source("published", "nvbandwidth", copy_rows),
        "host-optimizer": parts.source("derived", TEXTS["host optimizer derived"], []),
    }
    attention = [
        section
        for variant, fit in fits_.items()
        for section in parts.attention_sections(
            chip, fit, back[variant], variant, "attention" if variant == "flash" else "attention-cudnn"
        )
    ]
    attention += parts.attention_sections(chip, triton.fit, triton.back, "triton", "attention-triton")
    sources["memory"] = parts.source("measured" if name == "h200" else "derived", memory_text, copies)
    return _profile(
        name, memory, sources, copies,
        gemm=parts.gemm_sections(chip, terms, accumulate, max(fp8.sigma, 0.06), "gemm")
        if name == "h200"
        else parts.hopper_gemm_sections(chip, terms, accumulate, "gemm"),
        sustained=measured.sustained(1 / sustained, "sustained"),
        attention=attention,
        collectives=_hopper_tables(name),
        network=_network(parts.H100_NODE_BYTES_PER_S / 4e11, tree, (4.5e11, 5e10)),
        copies=_copies(51e9, 52e9) if name == "h100" else _copies(55.43e9, 55.06e9),
        host_optimizer={
            "source": "host-optimizer", "sigma": 0.3, "bytes_per_s": rounded(1.5 * host_optimizer_bytes_per_s()),
        },
    )  # fmt: skip


def h100() -> Section:
    """H100-SXM5-80GB."""
    copies = parts.COPIES["h100"]
    memory = sum(map(memory_bytes_per_s, copies)) / len(copies)
    text = "BabelStream copy, mul, add, triad; fractions of it as measured on one H200"
    return _with_errors(_hopper("h100", memory, copies, text))


def h200() -> Section:
    """H200-SXM-141GB: the facts measured on one card, the rest as H100."""
    return _with_errors(_h200())


def _h200() -> Section:
    text = "copy bandwidth and fractions of it, compiled kernels, one H200, torch 2.11, triton 3.6"
    return _hopper("h200", parts.H200_COPY_BYTES_PER_S, [], text) | {"name": "h200-published"}


@cache
def _kernel_sigmas() -> dict[str, float]:
    return fit_uncertainty.kernel_sigmas(_h200())


def _with_errors(data: Section) -> Section:
    """The file with each sigma that `fit_uncertainty` can say: never below the residuals of the entry's own fit."""
    kernels, name = _kernel_sigmas(), data["name"]
    ring = fit_uncertainty.ring_sigma(_hopper_tables("h100"))
    reduce = fit_uncertainty.reduce_sigma("a100-80gb" if name == "a100-80gb" else "h100")
    links = {"reduce": reduce, "reduce-derived": max(ring, reduce), "pair": max(ring, reduce)}
    for entry in data["attention"]:
        entry["sigma"] = rounded(max(entry["sigma"], kernels[entry["op"]]))
    for entry in data["memory"]:
        # Lines have not been held against another card: they are no better than a share of the bandwidth.
        lines = entry["source"] == "memory-lines" and name != "h200-published"
        own = 0.0 if entry["kernels"] == "eager" else kernels[entry["op"]]
        entry["sigma"] = rounded(max(own, kernels["one pass"] if lines or entry["kernels"] == "eager" else 0.0))
    for entry in data["collectives"]:
        entry["sigma"] = rounded(links[entry["source"]])
    return data


def _h200_rows(rates: dict[int, tuple[int, int]]) -> list[AttentionRow]:
    return [
        AttentionRow(f"h200-{s}", "H200", "", "forward", True, max(1, 16384 // s), 32, 32, s, 128, forward * 1e12)
        for s, (forward, _) in rates.items()
    ]


def _hopper_tables(name: str) -> list[Section]:
    if name == "h100":
        rows = published.collective_rows(between("nccl-0004", "nccl-0032"))
    else:
        rows = published.collective_rows(between("nccl-0169", "nccl-0188"))
    step_s = min(row.seconds for row in rows) / 14
    eight = fit_links.table(rows, "reduce", step_s, 0.06)
    ring = bus_bytes_per_s("nccl-0209")
    peaks = {2: ring, 3: ring, 4: ring} | {n: bus_bytes_per_s(f"nccl-02{9 + 2 * (n - 4):02d}") for n in (5, 6, 7)}
    tables = [eight]
    tables += [fit_links.scaled_table(eight, "all_reduce", n, bus, "reduce-derived") for n, bus in peaks.items()]
    for op, row in (("all_gather", "nccl-0231"), ("reduce_scatter", "nccl-0232")):
        tables.append(fit_links.scaled_table(eight, op, 8, bus_bytes_per_s(row), "reduce-derived"))
    return [*tables, _pair(ring, step_s)]


def _pair(bytes_per_s: float, step_s: float) -> Section:
    section = {"source": "pair", "op": "send", "ranks": 2, "sigma": 0.2, "step_latency_s": rounded(step_s)}
    return section | {"bus_bytes_per_s": rounded(bytes_per_s)}


def _network(efficiency: float, tree: Fit, rates: tuple[float, float]) -> Section:
    wires = {"gpu_link_bytes_per_s": rates[0], "nic_bytes_per_s": rates[1], "nics": 8, "nic_latency_s": 5e-6}
    return {
        "source": "network", "sigma": rounded(tree.sigma), "efficiency": rounded(efficiency),
        "tree_latency_s": rounded(tree.values["tree_latency_s"]),
        "tree_pipeline": rounded(tree.values["tree_pipeline"]), "pair_nics": 1.0, "reference": wires,
    }  # fmt: skip


def _copies(up: float, down: float) -> list[Section]:
    rates = (("h2d", up), ("d2h", down))
    return [
        {"source": "copies", "kind": kind, "launch_s": parts.MEMORY_LAUNCH_S, "bytes_per_s": rate, "sigma": 0.1}
        for kind, rate in rates
    ]


def _profile(name: str, memory: float, sources: Section, memory_rows: list[str], **sections: Any) -> Section:
    """The file: what differs by device in `sections`, what all share added."""
    of_one_card = name == "h200"
    shared = {
        "memory": parts.source("derived", "BabelStream copy to triad; fractions as on one H200", memory_rows),
        "softmax": parts.source("derived", TEXTS["softmax"], traffic=parts.SOFTMAX_TRAFFIC),
        "eager": parts.source("derived", TEXTS["eager"], []),
        "memory-lines": parts.source("derived", TEXTS["lines"], []),
        "host": parts.source(
            "measured" if of_one_card else "derived", TEXTS["host measured" if of_one_card else "host"]
        ),
        "framework-host": parts.source(
            "measured" if of_one_card else "derived",
            fit_framework_host.MEASURED_TEXT if of_one_card else fit_framework_host.TEXT,
        ),
        **{name: parts.source(of["kind"], of["text"]) for name, of in fit_workspace.SOURCES.items()},
        "cards": parts.source("published", TEXTS["cards"]),
        "contention": parts.source("published", TEXTS["contention"], factor=parts.OVERLAP_SLOWDOWN),
        "gemm-wide": parts.source("data sheet", TEXTS["wide"], []),
        "context": parts.source("derived", TEXTS["context"], []),
        "memory-error": parts.source("derived", TEXTS["memory error"], []),
    }
    per_kernel = parts.HOST_KERNEL_S[name]
    base = {"source": "host", "sigma": rounded(parts.HOST_SIGMA)}
    host = [
        base | {"kind": "compute", "base_s": parts.HOST_INSTRUCTION_S, "per_kernel_s": per_kernel},
        base | {"kind": "comm", "base_s": parts.HOST_INSTRUCTION_S + 2 * per_kernel},
        base | {"kind": "copy", "base_s": parts.HOST_INSTRUCTION_S + per_kernel},
        base | {"kind": "*", "base_s": parts.HOST_INSTRUCTION_S, "per_kernel_s": per_kernel},
    ]
    contention = [
        {"source": "contention", "slow": "compute", "beside": "comm", "factor": parts.OVERLAP_SLOWDOWN, "sigma": 0.1}
    ]
    gemm = sections.pop("gemm")
    gemm = [*gemm, *parts.wide_gemm_sections(gemm, name)]
    return {
        "name": name, "device": "cuda", "sources": shared | sources, "gemm": gemm, **sections,
        "memory": parts.memory_sections(memory), "host": host, "framework_host": fit_framework_host.section(name),
        "cards": {"source": "cards", "sigma": parts.CARD_SIGMA}, "workspace": fit_workspace.sections(),
        "contention": contention,
        "allocator": {"source": "context", "context_bytes": parts.CONTEXT_BYTES},
        "memory_error": {"source": "memory-error", **parts.MEMORY_ERROR},
    }  # fmt: skip


def h200_measured(shipped: Path = FOLDER / "h200.yaml") -> Section:
    """H200 as one machine measured it: its points stay, what it borrows of `h200` (forms of products among it) is made
    anew."""
    data = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    own = {key: source for key, source in data["sources"].items() if key in (measured.SOURCE, LINKS)}
    links = [entry for entry in data["collectives"] if entry["source"] in own]
    kept = {key: part for key, part in data.items() if key not in measured.KEPT}
    return measured.borrowed(kept | {"sources": own, "collectives": links}, h200())


def write_all(folder: Path = FOLDER) -> list[Path]:
    """Fit, check and write every shipped profile. Returns the files."""
    written = []
    for make, comment in ((a100, COMMENT), (h100, COMMENT), (h200, COMMENT), (h200_measured, MEASURED)):
        data = make()
        schema.check(data, data["name"])
        path = folder / f"{data['name']}.yaml"
        write_profile(data, path, comment)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in write_all():
        print(path.name)
