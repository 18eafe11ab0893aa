"""The numbers and the sections that the shipped profiles a100-80gb, h100 and h200 share: which rows, which sources,
which models.

`tools.fit_published` puts them together. Row ids are those of `tools/published/gemm.csv` and
`calibration/published/nccl.csv`; facts measured on one H200 that stand in no row are named constants here, with their
origin beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibration import fits, measured, schema, tables
from plan import presets
from program import KernelCall
from program.ops import OPERATORS
from tools import fit_uncertainty
from tools import published_rows as published
from tools.fit_kernels import HOPPER_TILES, Chip, fit_gemm, tile_form
from tools.fit_links import Section, rounded
from tools.fit_search import Fit
from tools.published_rows import GemmRow, between, bus_bytes_per_s

# Peaks and multiprocessors: NVIDIA data sheets (dense bf16).
A100 = Chip(108, 312e12, 1e12)
H100 = Chip(132, 989.4e12, 1e12, HOPPER_TILES)

PCIE = between("gemm-0087", "gemm-0269")  # 183 shapes, three layouts in turn
SXM = between("gemm-0021", "gemm-0028")
H100_FP8 = between("gemm-0029", "gemm-0037")
FLASH2_A100 = between("gemm-1003", "gemm-1014")  # causal, forward and backward
TRITON_FORWARD_A100, TRITON_BACKWARD_A100 = between("gemm-1083", "gemm-1087"), between("gemm-1088", "gemm-1092")
TRITON_A100 = [*TRITON_FORWARD_A100, *TRITON_BACKWARD_A100]  # FlashAttention-1
FLASH2_H100 = between("gemm-1027", "gemm-1038")
FLASH3_H100 = [
    *between("gemm-1045", "gemm-1050"),
    *between("gemm-1057", "gemm-1062"),
    *between("gemm-1068", "gemm-1073"),
]
COPIES = {"a100-80gb": between("gemm-0072", "gemm-0075"), "h100": between("gemm-0077", "gemm-0080")}
FORWARD_A100, BACKWARD_A100 = between("gemm-0274", "gemm-0281"), between("gemm-0286", "gemm-0293")
REDUCE_A100_ENDS = [*between("nccl-0189", "nccl-0193"), *between("nccl-0205", "nccl-0208")]
ATTENTION_A100 = [*FORWARD_A100, *BACKWARD_A100, *FLASH2_A100]
REDUCE_A100 = [*REDUCE_A100_ENDS, *between("nccl-0469", "nccl-0545")]
NICS_A100 = ["nccl-0260", "nccl-0628", "nccl-0629", "nccl-0630"]
REDUCE_H200 = ["nccl-0209", "nccl-0211", "nccl-0213", "nccl-0215", "nccl-0231", "nccl-0232"]
PEAKS_H100 = ["nccl-0254", "nccl-0261"]
TREE = between("nccl-0271", "nccl-0396")

H100_NODE_BYTES_PER_S = sum(map(bus_bytes_per_s, PEAKS_H100)) / len(PEAKS_H100)  # no in-network reduction
H100_LATENCY_S = 14.92e-6  # nccl-0004: 64 bytes on the 8 GPUs of a node

# Measured on one H200 (torch 2.11, triton 3.6; compiled kernels): fraction of the same run's copy bandwidth, 4.27 TB/s.
H200_COPY_BYTES_PER_S = 4.27e12
FRACTIONS = {
    "rmsnorm_forward": 0.96, "layernorm_forward": 0.96, "rmsnorm_backward": 0.64, "layernorm_backward": 0.64,
    "swiglu_forward": 0.99, "swiglu_backward": 0.99, "gelu_forward": 0.99, "gelu_backward": 0.99, "adamw": 0.82,
    "ce_exp": 0.65, "ce_loss": 0.65, "*": 0.90,
}  # fmt: skip
# (launches, bytes over the least) of each operator's torch reference: `python -m tools.traffic`.
EAGER = {
    "softmax_forward": (5, 9.06), "softmax_backward": (8, 10.34), "rmsnorm_forward": (9, 9.98),
    "rmsnorm_backward": (15, 12.96), "layernorm_forward": (13, 14.93), "layernorm_backward": (20, 15.92),
    "swiglu_forward": (4, 6.33), "swiglu_backward": (15, 13.33), "gelu_forward": (3, 5.00), "gelu_backward": (6, 5.50),
    "rope_forward": (9, 12.12), "rope_backward": (10, 12.19), "add": (1, 1.00), "add_backward": (2, 1.01),
    "bias_grad": (2, 1.01), "embedding_forward": (7, 2.01), "embedding_backward": (8, 2.60),
    "position_forward": (4, 1.67), "position_backward": (4, 8.95), "ce_max": (2, 1.00), "ce_exp": (20, 17.00),
    "ce_loss": (31, 12.03), "fill": (1, 1.00), "copy": (1, 1.00), "sqnorm": (3, 1.00), "adamw": (3, 1.14),
}  # fmt: skip
SOFTMAX_TRAFFIC = 1.45  # unfused attention: time over least traffic, from a study on 28 development rows of runs.csv
MEMORY_LAUNCH_S = 7.1e-6  # mean of three fits to Liger's H100 timings: 6.6, 7.1, 7.7 µs
# A launch: 6.6 µs at most in timings on H100, 6.7 µs through Python on one H200 (torch's add on one element). 12.6 µs:
# an operator call there, median of a product, pointwise regions and attention.
HOST_KERNEL_S = {"h200": 12.6e-6, "h100": 6.6e-6, "a100-80gb": 6.6e-6}
HOST_SIGMA = math.log(HOST_KERNEL_S["h200"] / HOST_KERNEL_S["h100"])  # between the two figures there are
HOST_INSTRUCTION_S = 2.5e-6  # an empty instruction of the executor, measured by `calibrate` on a server CPU
OVERLAP_SLOWDOWN = 1.189
CARD_SIGMA = 0.08
MEMORY_ERROR = {"below": 0.05, "above": 0.05, "communicator_bytes": 1_800_000_000, "host_above": 0.6}
CONTEXT_BYTES = 808_255_488  # calibration/profiles/h200.yaml, measured: CUDA context, library handles, compiled code
# (forward, backward) TFLOP/s at sequence lengths 2k, 8k, 32k on the same H200.
H200_FLASH = {2048: (205, 184), 8192: (317, 282), 32768: (343, 319)}
H200_CUDNN = {2048: (404, 331), 8192: (552, 485), 32768: (599, 538)}
H200_GEMM_8192, H200_GEMM_SUSTAINED = 762e12, 663e12


def shape_terms() -> tuple[Fit, Fit]:
    """(prologue_k and reuse on forward and input-gradient layouts, rate of the accumulating weight gradient) on
    A100-PCIe."""
    rows = published.gemm_rows(PCIE)
    chip = Chip(A100.units, A100.peak_flops_per_s, 1.6e12)
    plain = [row for row in rows if row.layout != "NT"]
    bounds = {"efficiency": (0.6, 0.95), "prologue_k": (0.0, 600.0), "reuse": (0.0, 200.0)}
    shapes = fit_gemm(chip, plain, {"launch_s": 0.0}, bounds)
    fixed = {name: shapes.values[name] for name in ("prologue_k", "reuse")} | {"launch_s": 0.0}
    weight = fit_gemm(chip, [row for row in rows if row.layout == "NT"], fixed, {"efficiency": (0.6, 0.95)})
    return shapes, weight


def gemm_sections(
    chip: Chip, terms: dict[str, float], accumulate: float, sigma: float, source: str, rows: Sequence[GemmRow] = ()
) -> list[Section]:
    """bf16 and fp16 entries for every layout, and the accumulating weight gradient at `accumulate` of the rate.

    `rows`: measured points of the card itself.
    """
    points = [[float(x) for x in (r.batch, r.m, r.n, r.k)] + [rounded(r.seconds)] for r in rows]
    sections = []
    for dtype in ("bf16", "fp16"):
        for layout, share in (("*", 1.0), ("tn+acc32", accumulate)):
            form = tile_form(chip, **(terms | {"efficiency": terms["efficiency"] * share}))
            part = {
                "launch_s": rounded(form.launch_s), "flops_per_s": rounded(form.flops_per_s),
                "bytes_per_s": rounded(form.bytes_per_s), "units": form.units, "prologue_k": rounded(form.prologue_k),
                "tiles": [{"m": t.m, "n": t.n, "share": rounded(t.share)} for t in form.tiles],
            }  # fmt: skip
            entry = {"source": source, "dtype": dtype, "layout": layout, "sigma": rounded(sigma), "form": part}
            sections.append(entry | ({"points": points} if points and layout == "*" else {}))
    return sections


def hopper_gemm_sections(chip: Chip, terms: dict[str, float], accumulate: float, source: str) -> list[Section]:
    """The forms, and for each layout the points of one H200 that are bound by arithmetic on this card too. Sigma: each
    point predicted from the others."""
    forms = gemm_sections(chip, terms, accumulate, 0.0, source)
    found = []
    for name, rows in fit_uncertainty.points()["gemm"].items():
        dtype, layout = name.split()
        form = next(s for s in forms if s["dtype"] == dtype and s["layout"] in (layout, "*"))["form"]
        at = measured.gemm_at(tables.gemm_form(schema.GemmFormFile(**form)), "gemm", dtype, layout)
        table = [((1, m, n, k), t) for m, n, k, t in rows if _bytes(m, n, k, layout) < t * chip.memory_bytes_per_s / 2]
        sigma = rounded(fits.scatter_sigma(table, at))
        points = [[*map(float, shape), rounded(t)] for shape, t in table]
        same = {"source": source, "layout": layout, "sigma": sigma, "form": form, "points": points}
        found += [{"dtype": d, **same} for d in ("bf16", "fp16")]
    worst = max(section["sigma"] for section in found)
    return [*found, *({**section, "sigma": worst} for section in forms if section["layout"] == "*")]


def _bytes(m: int, n: int, k: int, layout: str) -> int:
    return OPERATORS["gemm"].bytes_(KernelCall("gemm", (m, n, k), "bf16", layout))


def wide_gemm_sections(sections: Sequence[Section], gpu: str) -> list[Section]:
    """fp32 and fp64 entries, which nobody published: the bf16 forms at the ratio of the data sheet's peaks, elements as
    many times wider."""
    peaks = presets.preset("gpus", gpu)["peak_tflops"]
    found = []
    for dtype in ("fp32", "fp64"):
        for entry in (e for e in sections if e["dtype"] == "bf16"):
            rate = rounded(entry["form"]["flops_per_s"] * peaks[dtype] / peaks["bf16"])
            kept = {key: value for key, value in entry.items() if key != "points"}
            found.append(
                kept
                | {"source": "gemm-wide", "dtype": dtype, "sigma": 0.2, "form": entry["form"] | {"flops_per_s": rate}}
            )
    return found


def attention_sections(chip: Chip, fit: Fit, back: float, variant: str, source: str) -> list[Section]:
    """Forward and backward of a fused kernel in bf16 and fp16."""
    sections = []
    for op, share in (("attention_forward", 1.0), ("attention_backward", back)):
        form = {
            "launch_s": 0.0, "flops_per_s": rounded(chip.peak_flops_per_s * fit.values["rate"] * share),
            "short_s": rounded(fit.values["short_s"]), "narrow_d": rounded(fit.values["narrow_d"]), "units": chip.units,
        }  # fmt: skip
        for dtype in ("bf16", "fp16"):
            entry = {"source": source, "op": op, "dtype": dtype, "variant": variant, "sigma": rounded(fit.sigma)}
            sections.append(entry | {"form": form})
    return sections


def memory_sections(copy_bytes_per_s: float) -> list[Section]:
    """Compiled operators by their measured fractions of the copy bandwidth (the softmax of unfused attention by its
    traffic factor), and eager ones by what their references move and launch."""
    return [*_compiled_sections(copy_bytes_per_s), *_eager_sections(copy_bytes_per_s)]


def _eager_sections(copy_bytes_per_s: float) -> list[Section]:
    """What the device needs for a launch is what one H200 needs to fill 256 KiB; the host's share is `issue_s`."""
    one_launch_s = min(seconds for _, seconds in fit_uncertainty.points()["memory"]["fill *"])
    return [
        {
            "source": "eager",
            "op": op,
            "kernels": "eager",
            "sigma": 0.0,
            "launch_s": rounded(launches * one_launch_s),
            "bytes_per_s": rounded(copy_bytes_per_s * FRACTIONS["*"] / ratio),
            "issue_s": rounded(launches * HOST_KERNEL_S["h100"]),
        }
        for op, (launches, ratio) in EAGER.items()
    ]


def _compiled_sections(copy_bytes_per_s: float) -> list[Section]:
    fractions = FRACTIONS | {"softmax_forward": 1 / SOFTMAX_TRAFFIC, "softmax_backward": 1 / SOFTMAX_TRAFFIC}
    stated = [
        {
            "source": "softmax" if op.startswith("softmax") else "memory",
            "op": op,
            "kernels": "compiled",
            "sigma": 0.0,  # `fit_uncertainty` says it
            "launch_s": MEMORY_LAUNCH_S,
            "bytes_per_s": rounded(copy_bytes_per_s * fraction),
        }
        for op, fraction in fractions.items()
    ]
    return stated + _measured_sections(copy_bytes_per_s / H200_COPY_BYTES_PER_S)


def _measured_sections(bandwidth: float) -> list[Section]:
    """The operators without a fraction: the line through the points of one H200, its slope as many times as steep as
    the card's copy bandwidth is lower."""
    found = []
    for name, rows in fit_uncertainty.points()["memory"].items():
        op, _, variant = name.partition(" ")
        if op in FRACTIONS or op.startswith("softmax"):
            continue
        line, _ = fits.line(fits.monotone(rows))
        rate = rounded(bandwidth / line.seconds_per_unit)
        entry = {"source": "memory-lines", "op": op, "variant": variant, "kernels": "compiled", "sigma": 0.0}
        found.append(entry | {"launch_s": rounded(line.launch_s), "bytes_per_s": rate})
    return found


def source(kind: str, text: str, rows: list[str] | None = None, fit: Fit | None = None, **more: float) -> Section:
    """A `sources` entry: rows by range, parameters, and residuals of the fit."""
    entry: Section = {"kind": kind, "text": text, "rows": ranges(rows or [])}
    entry["parameters"] = {name: rounded(value) for name, value in (fit.values if fit else {}).items()} | {
        name: rounded(value) for name, value in more.items()
    }
    if fit:
        worst = max(abs(r) for r in fit.residuals)
        entry["residuals"] = {"mean": rounded(fit.mean_error), "worst": rounded(worst), "rows": len(fit.residuals)}
    return entry


def ranges(ids: list[str]) -> list[str]:
    """Row ids with runs of consecutive ones written first..last."""
    runs: list[list[str]] = []
    for row in ids:
        if runs and int(row[-4:]) == int(runs[-1][-1][-4:]) + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return [run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
