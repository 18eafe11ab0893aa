"""Initial weights, the same under every layout: a pure function of (seed, parameter name, element of the full tensor).

A full tensor is cut into blocks of whole rows; block i is drawn from a Philox generator keyed by (seed, name, i). A
rank draws only the blocks its share touches, on all its cores: numpy lets other threads run while it draws. Rows of the
vocabulary's padding are zero, so padding (which depends on the layout) changes nothing. Draws are fp32 and then
converted, so that fp64, fp32 and bf16 runs of a seed start from the same point.
"""

from __future__ import annotations

import hashlib
import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from program import Bucket, Param
from trainer.context import RankContext
from trainer.storage import Storage, share_of

Tensor = torch.Tensor
Progress = Callable[[int, int], None]
BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Draw:
    """A part of a rank's share of a parameter, from one block: rows `first` to `last` of the full tensor, `at` and on
    of the local one."""

    param: Param
    block: int
    first: int
    last: int
    at: int

    @property
    def elements(self) -> tuple[int, int]:
        """Where in the bucket it begins and ends."""
        row = self.param.local_numel // self.param.local_shape[0]
        begin = self.param.offset + self.at * row
        return begin, begin + (self.last - self.first) * row


def initialise(storage: Storage, context: RankContext, progress: Progress = lambda done, total: None) -> None:
    """Fill the flat weights and master copies of a rank; optimizer state and gradients are zero already. `progress` is
    told how many of how many parts are drawn."""
    program, coords = storage.program, context.coords
    held = [_held(bucket, share_of(bucket, coords.dp)) for bucket in program.buckets]
    draws = [
        draw
        for param in program.params
        for draw in _draws(param, coords.tp)
        if any(_common(draw.elements, stretch) for stretch in held[param.bucket].values())
    ]
    buffers: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    threads = max(1, min(_cores(context), len(draws)))
    largest = max((_block_rows(d.param) * _width(d.param) for d in draws), default=1)
    for _ in range(threads):  # made here: a thread of its own would pin memory for another device
        buffers.put(torch.empty(largest, pin_memory=storage.device.type == "cuda"))

    def fill(draw: Draw) -> None:
        buffer = buffers.get()
        drawn = _drawn(draw, context.job.seed, coords.tp, buffer)
        copies = {drawn.device: drawn}  # converted on the device: the host would convert before it copies
        for place, stretch in held[draw.param.bucket].items():
            target = storage.tensor(place)
            if target.device not in copies:
                copies[target.device] = drawn.to(target.device)
            _fill(target, stretch, draw.elements[0], copies[target.device])
        buffers.put(buffer)

    with _one_core_each(), ThreadPoolExecutor(threads, "weights", *_on_device(storage.device)) as pool:
        for done, _ in enumerate(pool.map(fill, draws), 1):
            progress(done, len(draws))


def _held(bucket: Bucket, share: slice) -> dict[int, slice]:
    """The buffers of a bucket that hold weights, and which stretch of it each holds."""
    held = {bucket.weight_buffer: share if bucket.weights_sharded else slice(0, bucket.numel)}
    held.setdefault(bucket.master_buffer, share)
    return held


def _common(elements: tuple[int, int], held: slice) -> bool:
    return max(elements[0], held.start) < min(elements[1], held.stop)


def _cores(context: RankContext) -> int:
    """How many threads draw: the run's on a CPU, else this rank's share of the machine."""
    if context.device.type == "cpu":
        return context.job.cluster.threads_per_rank
    return len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def _one_core_each() -> Iterator[None]:
    """Threads started here run torch's operators on one core each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_device(device: torch.device) -> tuple[Callable[[int], None], tuple[int]] | tuple[()]:
    """What a thread does first: a new one would use the first device."""
    if device.type != "cuda":
        return ()
    return torch.cuda.set_device, (torch.cuda.current_device() if device.index is None else device.index,)


def _fill(target: Tensor, held: slice, begin: int, drawn: Tensor) -> None:
    """Copy fp32 values that start at element `begin` of a bucket into a tensor that holds the stretch `held` of it."""
    low, high = max(begin, held.start), min(begin + drawn.numel(), held.stop)
    if low < high:
        target[low - held.start : high - held.start].copy_(drawn[low - begin : high - begin])


def shard(param: Param, seed: int, tp: int) -> Iterator[tuple[slice, np.ndarray]]:
    """(rows of the local tensor, values) that make up tensor-parallel rank `tp`'s share of a parameter, fp32."""
    for draw in _draws(param, tp):
        rows = draw.last - draw.first
        buffer = torch.empty(_block_rows(param) * _width(param))
        values = _drawn(draw, seed, tp, buffer).numpy().reshape(rows, *param.local_shape[1:])
        yield slice(draw.at, draw.at + rows), values


def _draws(param: Param, tp: int) -> Iterator[Draw]:
    rows, at = _block_rows(param), 0
    for first, last in _local_rows(param, tp):
        for block in range(first // rows, -(-last // rows)):
            low, high = max(first, block * rows), min(last, (block + 1) * rows)
            yield Draw(param, block, low, high, at)
            at += high - low


def _width(param: Param) -> int:
    return param.full_shape[1] if len(param.full_shape) > 1 else 1


def _block_rows(param: Param) -> int:
    return max(1, min(BLOCK_ELEMENTS // _width(param), param.full_shape[0]))


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


def _drawn(draw: Draw, seed: int, tp: int, buffer: Tensor) -> Tensor:
    """The values of a part, flat fp32, in the memory of `buffer`, which holds a block."""
    param = draw.param
    kind, _, deviation = param.init.partition(":")
    count = draw.elements[1] - draw.elements[0]
    if kind != "normal":
        return buffer[:count].fill_(float(kind == "ones"))
    begin, width = draw.block * _block_rows(param), _width(param)
    rows = min(_block_rows(param), param.full_shape[0] - begin)
    name = param.tied_to or param.name
    key = hashlib.blake2b(f"{seed}/{name}/{draw.block}".encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, np.uint64)))
    values = buffer[: rows * width].view(rows, width)
    generator.standard_normal(dtype=np.float32, out=values.numpy())
    values *= float(np.float32(deviation))
    if param.used_rows is not None and begin + rows > param.used_rows:
        values[max(param.used_rows - begin, 0) :] = 0
    columns = slice(tp * param.local_shape[1], (tp + 1) * param.local_shape[1]) if param.shard_dim == 1 else slice(None)
    return values[draw.first - begin : draw.last - begin, columns].reshape(-1)
