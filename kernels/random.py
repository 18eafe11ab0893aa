"""Stateless random numbers: dropout masks that depend on what is dropped, never on how the run is laid out.

A mask bit is a hash of (seed, step, layer, site; global token, element). The global token is global sample × sequence
length + position, so the same element gets the same bit under recompute, any micro-batch, tensor, sequence or
pipeline split, and after a resume; nothing is saved.

    key     = stream_key(seed, step, layer, site)                64 bits, once per call, on the host
    a       = mix(token_low ^ key_low);  k0 = mix(a + token_high + key_high);  k1 = mix(k0 ^ token_low)     once a row
    h       = mix(mix(element ^ k0) + k1);   kept when (h >> 8) / 2^24 >= p

`mix` is a bijective xor-shift-multiply finaliser of 32 bits ("lowbias32", C. Wellons' hash prospector, public
domain): 8 integer operations, so a mask costs a memory-bound kernel nothing, where Philox's ten rounds would. Torch
and Triton versions agree bit for bit (tested).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.launch import KernelArgumentError, tl, triton

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B


def _splitmix64(x: int) -> int:
    """One output of splitmix64 (Steele, Lea, Flood 2014) for state `x`."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def stream_key(seed: int, step: int, layer: int, site: int) -> int:
    """The 64-bit key of one random stream.

    Every argument is any integer; equal arguments give equal keys on any machine.
    """
    key = _splitmix64(seed & _MASK64)
    for word in (step, layer, site):
        key = _splitmix64(key ^ (word & _MASK64))
    return key


def stream_key_words(seed: int, step: int, layer: int, site: int) -> tuple[int, int]:
    """The key of a random stream as two signed 32-bit numbers, low and high."""
    key = stream_key(seed, step, layer, site)
    return _signed32(key), _signed32(key >> 32)


def _signed32(x: int) -> int:
    x &= _MASK32
    return x - (1 << 32) if x >= 1 << 31 else x


@dataclass(frozen=True, slots=True)
class Dropout:
    """Where a local tensor lies in the run, for its dropout mask.

    - p: probability of zeroing an element; kept ones are divided by 1 − p.
    - key_low, key_high: the stream key, as two signed 32-bit numbers.
    - token_first: global token of row 0 of the local (rows, width) view: global sample × sequence length + position.
    - element_first: first column of this rank when the width is sharded.
    - samples, sample_stride: for rows in (position, sample) order, the samples of the micro-batch and the sequence
      length: row r is token token_first + r // samples + (r % samples)·sample_stride. By default rows follow
      one another.
    """

    p: float
    key_low: int = 0
    key_high: int = 0
    token_first: int = 0
    element_first: int = 0
    samples: int = 1
    sample_stride: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.p < 1.0:
            raise KernelArgumentError(f"dropout p is {self.p}; accepted: 0 <= p < 1")
        if self.samples < 1:
            raise KernelArgumentError(f"samples is {self.samples}; accepted: 1 or more")

    @staticmethod
    def at(
        p: float,
        *,
        seed: int,
        step: int,
        layer: int,
        site: int,
        token_first: int = 0,
        element_first: int = 0,
        samples: int = 1,
        sample_stride: int = 0,
    ) -> Dropout:
        """The dropout of `site` in `layer` at `step`."""
        key = stream_key(seed, step, layer, site)
        return Dropout(p, _signed32(key), _signed32(key >> 32), token_first, element_first, samples, sample_stride)

    @property
    def numbers(self) -> tuple[float, float, int, int, int, int, int, int]:
        """What a kernel takes: p, keep_scale, key_low, key_high, token_first, element_first, samples, sample_stride."""
        return (
            float(self.p), self.scale, self.key_low, self.key_high,
            self.token_first, self.element_first, self.samples, self.sample_stride,
        )  # fmt: skip

    @property
    def scale(self) -> float:
        """What a kept element is multiplied by."""
        return 1.0 / (1.0 - self.p)

    def tokens(self, rows: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """int64 (rows,): the global token of each local row."""
        row = torch.arange(rows, dtype=torch.int64, device=device)
        return row // self.samples + (row % self.samples) * self.sample_stride + self.token_first


NO_DROPOUT = Dropout(0.0)


def key_of(dropout: Dropout | DropoutSlot, device: torch.device) -> torch.Tensor:
    """(2,) int64: the key of a random stream on a device, low half first."""
    if isinstance(dropout, DropoutSlot):
        return dropout.key
    return torch.tensor((dropout.key_low, dropout.key_high), dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True)
class DropoutSlot:
    """Dropout of probability `p` whose key, two signed 32-bit numbers in int64 (low, high), is on the device: the host
    fills it before a step."""

    p: float
    key: torch.Tensor

    @property
    def key_low(self) -> torch.Tensor:
        """Low half of the key, 0-d."""
        return self.key[0]

    @property
    def key_high(self) -> torch.Tensor:
        """High half of the key, 0-d."""
        return self.key[1]

    @property
    def scale(self) -> float:
        """What a kept element is multiplied by."""
        return 1.0 / (1.0 - self.p)


# ---------------------------------------------------------------- reference


def _mix_reference(x: torch.Tensor) -> torch.Tensor:
    """`mix` on int64 tensors holding 32-bit values (a product wraps at 64 bits, which leaves its low 32 bits right)."""
    x = x ^ (x >> 16)
    x = (x * _MULTIPLIER_1) & _MASK32
    x = x ^ (x >> 15)
    x = (x * _MULTIPLIER_2) & _MASK32
    return x ^ (x >> 16)


def uniform_reference(dropout: Dropout, tokens: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """Uniform fp32 in [0, 1) for every (token, element) pair.

    `tokens` and `elements` are int64 and broadcast against each other.
    """
    low, high = tokens & _MASK32, (tokens >> 32) & _MASK32
    k0 = _mix_reference(
        (_mix_reference(low ^ (dropout.key_low & _MASK32)) + high + (dropout.key_high & _MASK32)) & _MASK32
    )
    k1 = _mix_reference(k0 ^ low)
    h = _mix_reference((_mix_reference((elements & _MASK32) ^ k0) + k1) & _MASK32)
    return (h >> 8).to(torch.float32) * (2.0**-24)


def keep_mask(dropout: Dropout, rows: int, width: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Boolean (rows, width): True where the element is kept.

    What the kernels apply; exported so that tests and references can.
    """
    tokens = dropout.tokens(rows, device)[:, None]
    elements = torch.arange(width, dtype=torch.int64, device=device)[None, :] + dropout.element_first
    p = torch.tensor(dropout.p, dtype=torch.float32, device=device)
    return uniform_reference(dropout, tokens, elements) >= p


def apply_mask(x: torch.Tensor, dropout: Dropout) -> torch.Tensor:
    """x · mask / (1 − p) in x's type, for x of shape (…, width).

    The forward and the backward of dropout are this one function.
    """
    if dropout.p == 0.0:
        return x
    rows = x.reshape(-1, x.shape[-1])
    mask = keep_mask(dropout, rows.shape[0], rows.shape[1], x.device)
    return torch.where(mask, rows * dropout.scale, torch.zeros((), dtype=x.dtype, device=x.device)).view(x.shape)


# ---------------------------------------------------------------- Triton


@triton.jit
def mix32(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def token_of(row, token_first, samples, sample_stride):
    """Global token of a local row (int64), as `Dropout` lays rows out."""
    return token_first + row // samples + (row % samples) * sample_stride


@triton.jit
def keep_tile(tokens, elements, key_low, key_high, p):
    """Keep mask of a tile: tokens int64 [R, 1], elements int [1, C] or [R, C].

    The Triton twin of `uniform_reference(…) >= p`.
    """
    low = tl.cast(tokens & 0xFFFFFFFF, tl.uint32)
    high = tl.cast((tokens >> 32) & 0xFFFFFFFF, tl.uint32)
    k0 = mix32(mix32(low ^ tl.cast(key_low, tl.uint32)) + high + tl.cast(key_high, tl.uint32))
    k1 = mix32(k0 ^ low)
    h = mix32(mix32(tl.cast(elements, tl.uint32) ^ k0) + k1)
    return tl.cast(tl.cast(h >> 8, tl.int32), tl.float32) * 5.9604644775390625e-08 >= tl.cast(p, tl.float32)
