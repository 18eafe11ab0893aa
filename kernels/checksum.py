"""A 64-bit position-weighted checksum of device memory, at the speed of one read.

    S = Σ_i w_i·(2i + 1)  mod 2⁶⁴

w_i is the i-th 32-bit little-endian word (the last one padded with zero bytes), i counted from word_first.

Any change of one word changes S (the weights are odd), and so does any exchange of two different words less than 2³¹
words apart (|w_i − w_j|·2|i − j| < 2⁶⁴). Sums of parts add up: a sharded tensor's checksum is the sum of its shards'
at their global positions, whatever the sharding, so a checkpoint can be checked after it was resharded. It guards
against faults, not against an adversary.
"""

from __future__ import annotations

import torch

from kernels.direct import start
from kernels.launch import HAS_TRITON, INTERPRETED, KernelArgumentError, cdiv, check_tensor, tl, triton

Tensor = torch.Tensor

BLOCK = 2048
"""Words a program reads at once."""
PROGRAMS = 1024
"""Programs of the persistent grid: the second sum is over this many partial sums, whatever the size."""

# ---------------------------------------------------------------- reference


def checksum_reference(words: Tensor, word_first: int) -> Tensor:
    """int64 scalar (the 64 bits of S) of int32 words."""
    position = torch.arange(words.numel(), dtype=torch.int64, device=words.device) + word_first
    value = words.to(torch.int64) & 0xFFFFFFFF
    return (value * (2 * position + 1)).sum()


# ---------------------------------------------------------------- Triton


@triton.jit(do_not_specialize=["word_first"])
def checksum_kernel(words_ptr, partial_ptr, n, word_first, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for block in range(program, tl.cdiv(n, BLOCK), tl.num_programs(0)):
        i = tl.cast(block, tl.int64) * BLOCK + lanes
        word = tl.load(words_ptr + i, mask=i < n, other=0).to(tl.int64) & 0xFFFFFFFF
        total += word * (2 * (i + word_first) + 1)
    tl.store(partial_ptr + program, tl.sum(total, axis=0))


# ---------------------------------------------------------------- plain functions


def checksum(tensor: Tensor, *, word_first: int = 0) -> Tensor:
    """S as an int64 scalar tensor on `tensor`'s device (no synchronisation).

    Any type; contiguous; word_first: global index of word 0.
    """
    check_tensor("tensor", tensor)
    if not tensor.is_contiguous():
        raise KernelArgumentError(
            f"tensor has strides {tensor.stride()}; accepted: contiguous (its bytes are summed in memory order)"
        )
    words, tail = _words(tensor)
    if HAS_TRITON and (tensor.is_cuda or INTERPRETED):
        n = words.numel()
        programs = max(1, min(PROGRAMS, cdiv(n, BLOCK)))
        partial = torch.empty(programs, dtype=torch.int64, device=tensor.device)
        constants = {"BLOCK": BLOCK, "num_warps": 8}
        start(checksum_kernel, (programs,), (words, partial), (n, word_first), constants)
        total = partial.sum()
    else:
        total = checksum_reference(words, word_first)
    return total if tail is None else total + checksum_reference(tail, word_first + words.numel())


def checksum_int(tensor: Tensor, *, word_first: int = 0) -> int:
    """S as a non-negative Python integer (synchronises)."""
    return int(checksum(tensor, word_first=word_first)) & 0xFFFFFFFFFFFFFFFF


def _words(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """(whole int32 words as a view, the padded last word or None)."""
    raw = tensor.reshape(-1).view(torch.uint8)
    whole = raw.numel() // 4 * 4
    aligned = raw.storage_offset() % 4 == 0  # allocations themselves are aligned
    body = raw[:whole] if aligned else raw[:whole].clone()
    if whole == raw.numel():
        return body.view(torch.int32), None
    last = raw.new_zeros(4)
    last[: raw.numel() - whole] = raw[whole:]
    return body.view(torch.int32), last.view(torch.int32)
