"""Groups of parameters that are copied in and out of flat tensors: the order of torch's FSDP2 in a block.

    COPY shard      this rank's shards, the optimizer's own, cast and copied into a slot (stream `dp`)
    AG weights      from every rank's slot into a flat tensor, one of a ring of two
    COPY weights    out of the flat tensor, to where units read them: a slot that all groups share, or for what stays
                    gathered until the backward (the root; every group that is not resharded) a buffer of its own
    ZERO gradients  of what a backward adds to; products write their gradients afresh
    COPY gradients  in the reduce type into another flat tensor, once the one before is reduced and free
    RS gradients, ADD gradients   as in `compiler.shards`

In forward a group is gathered when its turn comes, behind the launches of the group before: compute does not wait for
what is issued, and the ring of two lets it run ahead until the copy out of the group before the last. In backward a
group is gathered once the group behind it was copied out. Flat tensors of the root are apart, so that no layer's is as
large; the one it is reduced in is freed by the next call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.block_builder import BlockBuilder
from compiler.open_close import state_dtype
from compiler.shards import GRADIENTS, REDUCED, STAGED, WEIGHTS, BlockShards, Shards
from compiler.units import step as around
from plan.implementations import engine
from program import Bucket, Buffer, Phase, Stream, rank_wide

COPIED, SUMS, ROOT, ROOT_GRADIENTS = "shard.copied", "shard.sums", "shard.root", "shard.root.gradients"
ROOT_SUMS = "shard.root.sums"  # an allocator's buffer, handed to the next call, which frees it


def block_shards(
    shards: Shards, builder: BlockBuilder, phase: Phase, order: Sequence[int], last: bool = False
) -> BlockShards:
    """Gathers and reductions of one block, as the plan's engine orders them."""
    kind = GroupShards if engine(shards.plan).flat_copies else BlockShards
    return kind(shards, builder, phase, order, last)


def root_sums(shards: Shards) -> Buffer:
    """The flat tensor in which the root's gradients are reduced: the largest, alive at the end of a backward alone."""
    total = shards.gradients[min(shards.group.values())].total
    return Buffer((total,), shards.plan.gradient_dtype, "gather", "sums of the root")


class GroupShards(BlockShards):
    """Gathers, copies and reductions of one block, a group at a time."""

    WHOLE = COPIED
    LAST: Mapping[str, Stream] = {
        WEIGHTS: "compute", ROOT: "compute", COPIED: "compute", GRADIENTS: "compute", ROOT_GRADIENTS: "compute",
        SUMS: "dp", REDUCED: "dp", STAGED: "dp",
    }  # fmt: skip

    def __init__(
        self, shards: Shards, builder: BlockBuilder, phase: Phase, order: Sequence[int], last: bool = False
    ) -> None:
        super().__init__(shards, builder, phase, order, last)
        self._entered: set[int] = set()
        self._last_unit = {shards.group[unit]: unit for unit in order}
        self._copies: list[int] = []  # out of flat tensors
        self._root_sums: int | None = None  # made here
        self._reduction: int | None = None  # of the group before
        self._left = builder.take(ROOT_SUMS, "dp", root_sums(shards)) if phase == "F" else None  # by the call before

    def begin(self, unit: int) -> None:
        """Before a group's first unit: copy the group out; in backward gather the next one and clear gradients."""
        group = self.shards.group[unit]
        if group in self._entered:
            return
        self._entered.add(group)
        copied: tuple[int, ...] = ()
        if group in self._order:
            if self._order.index(group) == self._gathered:
                self._gather_next(tuple(self._copies[-2:-1]))  # no more than two flat tensors
            copied = (self._copy_out(group),)
            self._copies += copied
            if self._left is not None:
                self.builder.discard(self._left, copied[0])  # whose gather stands behind the reduction
                self._left = None
        if self.phase == "B":
            self._gather_next(copied)
            if self.shards.gradients[group].places:
                self._clear(group)

    def end(self, unit: int) -> None:
        """Behind a group's last unit: copy its gradients into a flat tensor and reduce them."""
        group = self.shards.group[unit]
        layout = self.shards.gradients[group]
        if self.phase != "B" or unit != self._last_unit[group] or not layout.places:
            return
        plan, root = self.shards.plan, len(self.shards.units[group]) > 1
        body = around.copied(layout.total, plan.precision, plan.gradient_dtype, made=root)
        if root:
            flat = self._root_sums = self.builder.buffer(root_sums(self.shards))
        else:
            flat = self._tenant(SUMS, layout.total, plan.gradient_dtype, f"sums of unit {group}", slots=1)
        source, after = (self._flats[GRADIENTS, group],), () if self._reduction is None else (self._reduction,)
        self.builder.emit("B", "COPY", group, "gradients", "compute", source, (flat,), body, after=after)
        self._reduce_all(group, flat)
        self._reduction = self.builder.latest(flat if root else f"{SUMS}.0")

    def leave(self) -> None:
        """Hand out what the next call must wait for, and what it frees."""
        super().leave()
        if self._root_sums is not None:
            self.builder.give(ROOT_SUMS, self._root_sums, self._reduction)

    def _gather_next(self, after: tuple[int, ...] = ()) -> None:
        """Gather the next group of the block, if one is left."""
        if self._gathered < len(self._order):
            self._gather(self._order[self._gathered], after)
            self._gathered += 1

    def _ring(self, unit: int) -> str:
        """Two flat tensors for layers, one for the root."""
        return ROOT if len(self.shards.units[unit]) > 1 else WEIGHTS

    def _stage(self, unit: int, bucket: Bucket, shard: int, after: tuple[int, ...]) -> int:
        """The shard in the computing type: cast, then copied to where the gather takes it from."""
        plan, elements = self.shards.plan, bucket.shard_numel
        staged = self._tenant(STAGED, elements, plan.precision, f"shard of unit {unit}")
        body = around.copied(elements, state_dtype(plan), plan.precision, passes=2)
        self.builder.emit(self.phase, "COPY", unit, "shard", "dp", (shard,), (staged,), body, after=after, priority=1)
        return staged

    def _copy_out(self, group: int) -> int:
        """What was gathered goes to where units read it; returns the copy."""
        ((bucket, _),) = self._gathers[group].places  # a group is one bucket
        dtype, flat = self.shards.plan.precision, self._flats[WEIGHTS, group]
        if bucket.whole_buffer >= 0:
            target = rank_wide(bucket.whole_buffer)
        else:
            what = f"whole weights of unit {group}"
            target = self._flats[COPIED, group] = self._tenant(COPIED, bucket.numel, dtype, what, slots=1)
        body = around.copied(bucket.numel, dtype, dtype)
        return self.builder.emit(self.phase, "COPY", group, "weights", "compute", (flat,), (target,), body)

    def _clear(self, unit: int) -> None:
        """A new tenant for a group's gradients; what is added to starts from zero. The root's live beside others."""
        total, dtype = self.shards.gradients[unit].total, self.shards.plan.precision
        family = ROOT_GRADIENTS if len(self.shards.units[unit]) > 1 else GRADIENTS
        flat = self._flats[GRADIENTS, unit] = self._tenant(family, total, dtype, f"gradients of unit {unit}", slots=1)
        spans = self.shards.added(unit)
        views = tuple(self._stretch(flat, (end - first,), first, "gradients added to") for first, end in spans)
        if views:
            body = around.cleared(tuple(end - first for first, end in spans), dtype)
            self.builder.emit(self.phase, "ZERO", unit, "gradients", "compute", (), views, body)
