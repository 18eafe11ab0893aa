"""Initial weights, the same under every layout: a pure function of (seed, parameter name, element of the full tensor).

A full tensor is cut into blocks of whole rows; block i is drawn from a Philox generator keyed by (seed, name, i). A
rank draws only the blocks its shard touches, one at a time. Rows of the vocabulary's padding are zero, so padding
(which depends on the layout) changes nothing. Draws are fp32 and then converted, so that fp64, fp32 and bf16 runs of a
seed start from the same point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

from plan.compile.parameters import HEAD, TABLE
from plan.model import Model
from plan.program import Param
from trainer.context import RankContext
from trainer.pieces_step import share_of
from trainer.storage import Storage

Tensor = torch.Tensor
BLOCK_ELEMENTS = 1 << 20


def initialise(storage: Storage, context: RankContext) -> None:
    """Fill the flat weights and master copies of a rank; optimizer state and gradients are zero already."""
    for param in storage.program.params:
        bucket = storage.program.buckets[param.bucket]
        share = share_of(bucket, context.coords.dp)
        targets = {bucket.weight_buffer: share if bucket.weights_sharded else slice(0, bucket.numel)}
        targets.setdefault(bucket.master_buffer, share)
        for rows, values in shard(param, context.model, context.run.train.seed, context.coords.tp):
            begin = param.offset + rows.start * (param.local_numel // param.local_shape[0])
            for buffer, held in targets.items():
                _fill(storage.tensor(buffer), held, begin, torch.from_numpy(values).reshape(-1))


def _fill(target: Tensor, held: slice, begin: int, drawn: Tensor) -> None:
    """Copy fp32 values that start at element `begin` of a bucket into a tensor that holds the stretch `held` of it."""
    low, high = max(begin, held.start), min(begin + drawn.numel(), held.stop)
    if low < high:
        target[low - held.start : high - held.start].copy_(drawn[low - begin : high - begin])


def shard(param: Param, model: Model, seed: int, tp: int) -> Iterator[tuple[slice, np.ndarray]]:
    """(rows of the local tensor, values) that make up tensor-parallel rank `tp`'s share of a parameter, fp32."""
    kind, _, deviation = param.init.partition(":")
    if kind != "normal":
        yield slice(0, param.local_shape[0]), np.full(param.local_shape, float(kind == "ones"), np.float32)
        return
    width = param.full_shape[1] if len(param.full_shape) > 1 else 1
    columns = _local_columns(param, tp)
    at = 0
    for first, last in _local_rows(param, tp):
        for block_first, block in _blocks(param, model, seed, float(deviation), width, first, last):
            values = block[max(first - block_first, 0) : last - block_first, columns]
            yield slice(at, at + len(values)), values.reshape(len(values), *param.local_shape[1:])
            at += len(values)


def _local_rows(param: Param, tp: int) -> list[tuple[int, int]]:
    """Stretches of the full tensor's rows that a rank holds, in local order."""
    if param.shard_dim != 0:
        return [(0, param.full_shape[0])]
    ranks = param.full_shape[0] // param.local_shape[0]
    stretches, start = [], 0
    for extent in param.segments or (param.full_shape[0],):
        each = extent // ranks
        stretches.append((start + tp * each, start + (tp + 1) * each))
        start += extent
    return stretches


def _local_columns(param: Param, tp: int) -> slice:
    if param.shard_dim != 1:
        return slice(None)
    return slice(tp * param.local_shape[1], (tp + 1) * param.local_shape[1])


def _blocks(
    param: Param, model: Model, seed: int, deviation: float, width: int, first: int, last: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, values (rows, width)) of the blocks that cover rows [first, last)."""
    rows = max(1, BLOCK_ELEMENTS // width)
    name = param.tied_to or param.name
    for index in range(first // rows, -(-last // rows)):
        begin = index * rows
        count = min(rows, param.full_shape[0] - begin)
        key = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, np.uint64)))
        values = generator.standard_normal((count, width), dtype=np.float32) * np.float32(deviation)
        if name in (TABLE, HEAD) and begin + count > model.vocab:
            values[max(model.vocab - begin, 0) :] = 0
        yield begin, values
