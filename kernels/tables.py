"""Constant tables that operators take: rotary angles, ALiBi's bias, the causal mask; made once for a rank.

    table("rope_cos", (s, d/2), "fp32", "cuda", theta=1e4)

`TABLES` holds the generators by name; each returns fp64 of the asked extents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from kernels.registry_inputs import DTYPES

Tensor = torch.Tensor
Scaling = tuple[Any, ...]


def table(name: str, dims: tuple[int, ...], dtype: str, device: torch.device | str, **given: Any) -> Tensor:
    """A constant table on a device."""
    return TABLES[name](dims, **given).to(DTYPES[dtype]).to(device)


def alibi_slopes(heads: int) -> Tensor:
    """(heads,) fp64 slopes of Press et al. 2022 (arXiv 2108.12409): 2^(-8i/n) for a power of two n; for other counts
    those of the power below, then every other one of the power above."""
    below = 2 ** (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-4.0 * i / below) for i in range(1, 2 * below, 2)]
    return torch.tensor([*first, *between][:heads], dtype=torch.float64)


def alibi(dims: tuple[int, ...], heads: int, first: int, scale: float) -> Tensor:
    """(n, s, s): the bias slope · (key − query) of heads from `first` on, of `heads`, over the softmax's `scale`."""
    count, seq, _ = dims
    slopes, place = alibi_slopes(heads)[first : first + count], torch.arange(seq, dtype=torch.float64)
    return slopes[:, None, None] * (place[None, None, :] - place[None, :, None]) / scale


def alibi_rows(dims: tuple[int, ...], heads: int, first: int, scale: float) -> Tensor:
    """(n, 1, s): slope · key over `scale`: `alibi` but for what is the same all along a row."""
    count, _, seq = dims
    place = torch.arange(seq, dtype=torch.float64)
    return alibi_slopes(heads)[first : first + count, None, None] * place / scale


def future(dims: tuple[int, ...]) -> Tensor:
    """(s, s): 1 where a key comes after its query."""
    return torch.ones(dims, dtype=torch.float64).triu_(1)


def outside(dims: tuple[int, ...], size: int) -> Tensor:
    """(s, s): 1 where a key comes after its query, or `size` and more positions before it."""
    return future(dims) + torch.ones(dims, dtype=torch.float64).tril_(-size)


def rope_angles(dims: tuple[int, ...], theta: float, scaling: Scaling | None = None) -> Tensor:
    """(s, d/2) fp64 rotary angles, frequencies stretched as `scaling` asks: its kind, its factor, and
    - llama3 (and linear, which asks for none): low and high frequency factors, original positions;
    - yarn: turns in the original length above which a frequency stays and below which it is divided, the original
      positions, the attention factor;
    - longrope: the factor of each frequency, the original positions, the attention factor."""
    seq, half = dims
    frequency = theta ** -(torch.arange(0, 2 * half, 2, dtype=torch.float64) / (2 * half))
    return torch.arange(seq, dtype=torch.float64)[:, None] * _scaled(frequency, theta, scaling)


def _scaled(frequency: Tensor, theta: float, scaling: Scaling | None) -> Tensor:
    if scaling is None:
        return frequency
    kind, factor, *numbers = scaling
    slow = frequency / factor
    if kind == "linear":
        return slow
    if kind == "longrope":
        return frequency / torch.tensor(numbers[0], dtype=torch.float64)
    if kind == "yarn":
        share = _ramp(len(frequency), theta, *numbers[:3])
    else:
        low, high, positions = numbers
        share = ((positions / (2 * math.pi / frequency) - low) / (high - low)).clamp(0, 1)
    return share * frequency + (1 - share) * slow


def _ramp(half: int, theta: float, fast: float, slow: float, positions: float) -> Tensor:
    """The share of each frequency that stays: all of those with more than `fast` turns in `positions`, none of those
    with fewer than `slow`; whole frequencies are counted, as YaRN's code does."""

    def turning(turns: float) -> float:
        return half * math.log(positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = max(math.floor(turning(fast)), 0), min(math.ceil(turning(slow)), 2 * half - 1)
    place = torch.arange(half, dtype=torch.float64)
    return 1 - ((place - low) / ((high - low) or 0.001)).clamp(0, 1)


def _attention_factor(scaling: Scaling | None = None, **_: Any) -> float:
    """The factor on cos and sin; 0 stands for the papers' own."""
    if scaling is None or scaling[0] not in ("yarn", "longrope"):
        return 1.0
    kind, factor, *_numbers, positions, given = scaling
    if given or factor <= 1:
        return float(given or 1.0)
    return 0.1 * math.log(factor) + 1 if kind == "yarn" else math.sqrt(1 + math.log(factor) / math.log(positions))


TABLES: dict[str, Callable[..., Tensor]] = {
    "alibi": alibi,
    "alibi_rows": alibi_rows,
    "future": future,
    "outside": outside,
    "rope_cos": lambda dims, **given: rope_angles(dims, **given).cos() * _attention_factor(**given),
    "rope_sin": lambda dims, **given: rope_angles(dims, **given).sin() * _attention_factor(**given),
}
