"""What a launch and a collective cost the host of a framework with autograd: the profile's `framework_host`.

Measured on one machine with two H200 (`calibration/measured/h200-autograd.json`, by `tools.autograd_bench`): 41
microseconds a kernel, forward and backward alike, and 148 a collective. That machine's host was slow that day, so the
published profiles take a figure of another host: gpt-fast's first version makes 25.5 tokens/s of Llama-7B on an A100,
bound by its host ("Accelerating Generative AI with PyTorch II", pytorch.org), with 50 kernels a layer by its model.py:
24.5 microseconds each. It records no graph; recording makes an operator call 1.36 times as long (pytorch/pytorch issue
41383: 6.8 microseconds against 5). A collective costs as many launches as on the H200 machine.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from tools.fit_links import Section, rounded

MEASURED = Path(__file__).parents[1] / "calibration" / "measured" / "h200-autograd.json"
TOKENS_PER_S, LAYERS = 25.5, 32
# Each norm 8 (float, square, mean, add, root, product, cast, weight), rotary 9 for q and for k, two writes of the
# cache, two repeats, attention and its mask 3, five products of weights, silu, product, two residuals.
KERNELS = 2 * 8 + 2 * 9 + 2 + 2 + 3 + 5 + 2 + 2
RECORDING = 6.8 / 5.0
MEASURED_TEXT = (
    "host time of a Llama-shaped layer under autograd, a kernel and a collective, one machine with two H200, torch "
    "2.11; sigma: log of the ratio to 24.5 µs, gpt-fast's on A100 (pytorch.org/blog/accelerating-generative-ai-2)"
)
TEXT = (
    "a kernel: Llama-7B by gpt-fast on A100, bound by its host (pytorch.org/blog/accelerating-generative-ai-2: 25.5 "
    "tokens/s, 50 kernels a layer), times 1.36 for recording a graph (pytorch issue 41383); a collective: as many "
    "kernels as on a machine with two H200; sigma: log of the ratio of 24.5 µs to the 41 µs a kernel measured there"
)


@cache
def measured() -> tuple[float, float]:
    """(seconds a kernel, seconds a collective) on the H200 machine: the mean over both one-rank runs, and what ten
    collectives add to the undisturbed layer."""
    layers: list[dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))["layers"]
    alone = [layer for layer in layers if layer["ranks"] == 1]
    kernel_us = sum(_us(layer) / layer["kernels"] for layer in alone) / len(alone)
    one, two = (next(x for x in layers if x["norm"] == "torch's" and x["ranks"] == ranks) for ranks in (1, 2))
    return kernel_us * 1e-6, (_us(two) - _us(one)) / two["collectives"] * 1e-6


def _us(layer: dict[str, Any]) -> float:
    return float(sum(layer["us"].values()))


def section(name: str) -> Section:
    """The section of a profile: as measured for h200, else by the published figure. Sigma: log of the ratio of the two
    figures there are for a kernel, without a graph and with one."""
    theirs_s, collective_s = measured()
    without_graph_s = 1.0 / TOKENS_PER_S / LAYERS / KERNELS
    kernel_s = theirs_s if name == "h200" else without_graph_s * RECORDING
    return {
        "source": "framework-host", "sigma": rounded(math.log(theirs_s / without_graph_s)),
        "per_kernel_s": rounded(kernel_s), "per_collective_s": rounded(kernel_s * collective_s / theirs_s),
    }  # fmt: skip
