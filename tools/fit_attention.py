"""Fused attention that a framework calls: which published rows say how fast each kernel is on a card.

FlashAttention-2 has a figure for each card. Its predecessor in Triton, which frameworks of 2022 and 2023 called, was
published for the A100 alone; on the H100 it is taken to be as much slower than FlashAttention-2 as there, since both
were written for the A100's instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from tools import fit_sections as parts
from tools import published_rows as published
from tools.fit_kernels import Chip, backward_ratio, fit_attention
from tools.fit_search import Fit

RATE = {"rate": (0.2, 0.95), "short_s": (0.0, 4000.0), "narrow_d": (0.0, 100.0)}
# Heads 128 wide: the rows have heads of 64 alone, so how much is due to their width is FlashAttention-2's figure.
WIDTH_64_ALONE = ("rate", "short_s")


@dataclass(frozen=True, slots=True)
class Attention:
    """A kernel's forward fit, and its backward rate over its forward rate."""

    fit: Fit
    back: float


@cache
def flash_a100(chip: Chip) -> Attention:
    """FlashAttention-2 on A100. Its figure has forward and backward together; A100-PCIe rows of the same shapes, head
    width 128, say how they share it."""
    back = _back(parts.FORWARD_A100, parts.BACKWARD_A100)
    return Attention(fit_attention(chip, published.attention_rows(parts.FLASH2_A100), back, 0.0, RATE), back)


@cache
def triton_a100(chip: Chip) -> Attention:
    """FlashAttention-1 in Triton on A100."""
    back = _back(parts.TRITON_FORWARD_A100, parts.TRITON_BACKWARD_A100)
    narrow = {"narrow_d": flash_a100(chip).fit.values["narrow_d"]}
    rows = published.attention_rows(parts.TRITON_FORWARD_A100)
    fit = fit_attention(chip, rows, back, 0.0, {name: RATE[name] for name in WIDTH_64_ALONE}, narrow)
    return Attention(replace(fit, values=fit.values | narrow), back)


def triton_hopper(a100: Chip, flash: Fit) -> Attention:
    """The same on a card whose FlashAttention-2 is `flash`: the A100's ratio of the two rates. The fit's residuals are
    both cards' (independent)."""
    theirs, ours = triton_a100(a100), flash_a100(a100)
    rate = flash.values["rate"] * theirs.fit.values["rate"] / ours.fit.values["rate"]
    wide = math.hypot(theirs.fit.sigma, flash.sigma)
    return Attention(Fit(theirs.fit.values | {"rate": rate}, (math.expm1(wide),)), theirs.back)


def _back(forward: list[str], backward: list[str]) -> float:
    rows = zip(published.attention_rows(forward), published.attention_rows(backward), strict=True)
    return backward_ratio([(f.flops_per_s, b.flops_per_s) for f, b in rows])
