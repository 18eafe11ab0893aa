"""The tensors of one rank: a table of places, some held for the whole run, some filled and emptied as instructions
pass.

Places 0 … n − 1 are the rank-wide buffers of the program (flat weights, gradients, optimizer state, statistics, fixed
slots, and the views into them that parameters are). Every local buffer of every call has a place of its own after them:
a tenant of a fixed slot or a view is bound once, an allocated one is empty until the instruction that writes it and
empty again after the one that frees it. On a CPU the table counts the bytes alive, which is what `peak_allocated_gib`
reports there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels.registry_inputs import DTYPES
from program import OFF_DEVICE, Bucket, Buffer, RankProgram, numel, resolve_buffer

Tensor = torch.Tensor


class Storage:
    """Builds the table of a rank program on a device. Raises KeyError when a block touches a buffer behind an unbound
    port."""

    def __init__(self, program: RankProgram, device: torch.device) -> None:
        self.program, self.device = program, device
        self.table: list[Tensor | None] = []
        self._place: dict[tuple[int, int], int] = {}
        self._slots: dict[str, Tensor] = {}
        self.counts = device.type == "cpu"  # a device's allocator counts for itself
        self.live_bytes = self.peak_bytes = 0
        for buffer in program.buffers:
            tensor = self._rank_wide(buffer)
            self.table.append(tensor)
            if buffer.slot is not None:
                self._slots[buffer.slot] = tensor
        self.resident_bytes = self.live_bytes = self.peak_bytes = program.resident_bytes

    def _rank_wide(self, buffer: Buffer) -> Tensor:
        if buffer.base is not None:
            index, offset = buffer.base
            return self.tensor(index)[offset : offset + numel(buffer.shape)].view(buffer.shape)
        dtype = DTYPES[buffer.dtype]
        if buffer.pool in OFF_DEVICE:  # pinned where a device copies from it
            return torch.zeros(buffer.shape, dtype=dtype, pin_memory=self.device.type == "cuda")
        return torch.zeros(buffer.shape, dtype=dtype, device=self.device)

    def place(self, call: int, ref: int) -> int:
        """The place behind a buffer reference of an instruction in a call."""
        owner = resolve_buffer(self.program, call, ref)
        if owner[0] < 0:
            return owner[1]
        if owner not in self._place:
            self._place[owner] = len(self.table)
            block = self.program.blocks[self.program.calls[owner[0]].block]
            self.table.append(self._bound(block.buffers[owner[1]]))
        return self._place[owner]

    def _bound(self, buffer: Buffer) -> Tensor | None:
        if buffer.slot is None:
            return None if buffer.base is None else self._rank_wide(buffer)
        slot = self._slots.get(buffer.slot)
        if slot is None:
            raise KeyError(f"buffer {buffer.what} lives in slot {buffer.slot}, which the program does not declare")
        first = 0 if buffer.base is None else buffer.base[1]  # a view of the slot's tenant
        return slot.view(-1).view(DTYPES[buffer.dtype])[first : first + numel(buffer.shape)].view(buffer.shape)

    def tensor(self, place: int) -> Tensor:
        """The tensor at a place, which must be filled."""
        tensor = self.table[place]
        if tensor is None:
            raise KeyError(f"place {place} holds no tensor now")
        return tensor

    def is_allocated(self, call: int, ref: int) -> bool:
        """True when the place behind `ref` is filled by the instruction that writes it."""
        owner, index = resolve_buffer(self.program, call, ref)
        if owner < 0:
            return False
        buffer = self.program.blocks[self.program.calls[owner].block].buffers[index]
        return buffer.slot is None and buffer.base is None

    def put(self, place: int, tensor: Tensor) -> None:
        """Fill an allocated place."""
        self.table[place] = tensor
        if not self.counts:
            return
        self.live_bytes += tensor.untyped_storage().nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def drop(self, place: int) -> None:
        """Empty an allocated place."""
        tensor = self.table[place]
        self.table[place] = None
        if tensor is not None and self.counts:
            self.live_bytes -= tensor.untyped_storage().nbytes()

    def allocated(self) -> int:
        """How many allocated places are filled: 0 between steps, or the program leaks."""
        return sum(self.table[p] is not None for (call, ref), p in self._place.items() if self.is_allocated(call, ref))

    def parameters(self, flats: Mapping[int, Tensor] | None = None) -> dict[str, Tensor]:
        """The rank's parameters by name, as views of the flat weights; `flats` stand in for those of buckets that
        ZeRO-3 shards. A bucket that is nowhere whole is left out."""
        views = {}
        for param in self.program.params:
            bucket = self.program.buckets[param.bucket]
            flat = None if flats is None else flats.get(bucket.index)
            if flat is None and not bucket.weights_sharded:
                flat = self.tensor(bucket.weight_buffer)
            if flat is not None:
                views[param.name] = flat[param.offset : param.offset + param.local_numel].view(param.local_shape)
        return views

    def gradients(self) -> dict[str, Tensor]:
        """The rank's main gradients by parameter name, as views of the flat gradients; those that ZeRO-2 and 3 shard
        are nowhere whole."""
        views = {}
        for param in self.program.params:
            bucket = self.program.buckets[param.bucket]
            if not bucket.gradients_sharded:
                flat = self.tensor(bucket.grad_buffer)
                views[param.name] = flat[param.offset : param.offset + param.local_numel].view(param.local_shape)
        return views


def share_of(bucket: Bucket, dp: int) -> slice:
    """The elements of a bucket that data-parallel rank `dp` steps: all of them, or its shard under ZeRO."""
    if bucket.shard_numel == bucket.numel:
        return slice(0, bucket.numel)
    return slice(dp * bucket.shard_numel, (dp + 1) * bucket.shard_numel)
