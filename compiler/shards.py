"""ZeRO-2 and ZeRO-3 inside a forward or backward block: gathers before a unit, reductions after it.

    H2D weights     where shards live on the host: this rank's, into a slot of a ring of two
    AG weights      before a unit's steps (ZeRO-3): its buckets, from every rank's shard into a slot of a ring of two,
                    one unit ahead, so that the next unit's weights travel while this one computes
    ZERO gradients  before a unit's backward: its gradients start from zero in a slot of another ring of two
    RS gradients    after a unit's backward: the sum over `dp`, this rank's share of it into a slot of a third ring
                    (DeepSpeed's ZeRO-2: AR, the whole sum where the gradients are)
    ADD gradients   on the same stream: the share is added to what earlier micro-batches left
    D2H gradients   in the last micro-batch, where the host steps: what is complete goes there

Nothing of a unit stays: the slot's next tenant waits for the last reader, and that is all the freeing there is. A
bucket written once a step is reduced straight into its gradient shard, without ADD. What a direction does not read is
not gathered (the embedding's backward reads no weights). Gathers and reductions share the stream `dp`: they share the
links, and one communicator keeps one order. After a unit's backward the gather of the unit after the next goes first,
then the reduction: compute waits for the former.

Without `communication.overlap` a unit is gathered when it is needed and compute waits for each reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.block_builder import BlockBuilder
from compiler.offload import copied_early, copy_gradient
from compiler.open_close import COPIED
from compiler.parameters import Parameters
from compiler.recompute import UnitPlan
from compiler.slot_allocator import SlotAllocator
from compiler.units import step as around
from plan.implementations import engine
from plan.parallel import Plan
from program import DTYPE_BYTES, Bucket, Buffer, Comm, Param, Phase, Stream, rank_wide
from program.declared import parameter
from program.lines import Lines, Part, Tensor

WEIGHTS, GRADIENTS, REDUCED, STAGED = "shard.weights", "shard.gradients", "shard.reduced", "shard.staged"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a unit's buckets lie in a slot: (bucket, first element), and the elements in all."""

    places: tuple[tuple[Bucket, int], ...]
    total: int


class Shards:
    """What the blocks of a stage need to know of its partitioned buckets; empty below ZeRO-2."""

    def __init__(
        self, plan: Plan, parameters: Parameters, allocator: SlotAllocator, chunks: Sequence[Sequence[UnitPlan]]
    ) -> None:
        self.plan, self.allocator = plan, allocator
        self.params = {p.name: p for p in parameters.params}
        self.buckets = parameters.buckets
        units = [unit for chunk in chunks for unit in chunk]
        self.group = _groups(plan, [unit.number for unit in units])
        of = {number: [u for u in units if self.group[u.number] == number] for number in set(self.group.values())}
        # what is gathered and reduced together, by the first unit's number
        self.forward = {n: self._weights(s for u in us for s in u.unit.forward) for n, us in of.items()}
        self.backward = {
            n: self._weights(s for u in us for s in (*u.repeated, *u.unit.backward)) for n, us in of.items()
        }
        self.gradients = {n: self._gradients(s for u in us for s in u.unit.backward) for n, us in of.items()}
        self.units = {n: tuple(us) for n, us in of.items()}
        writers = [b.index for layout in self.gradients.values() for b, _ in layout.places]
        once = plan.microbatches == 1
        self.to_all = engine(plan).units_reduce_whole
        self.direct = {b for b in writers if once and writers.count(b) == 1 and not self.to_all}
        self.writers = {b: writers.count(b) for b in writers}
        copies = engine(plan).flat_copies
        self.staged = {
            b.index for b in self.buckets
            if (copies and b.weights_sharded) or parameters.buffers[b.weight_buffer].pool == "host"
        }  # fmt: skip

    def stays(self, group: int) -> bool:
        """Whether a group's weights stay gathered from its forward to its backward."""
        return any(bucket.whole_buffer >= 0 for bucket, _ in self.forward[group].places)

    def _weights(self, steps: Iterable[Part]) -> Layout:
        names = [n[2:] for step in steps for n in step.reads if n.startswith("w:")]
        return self._layout(n for n in names if self.buckets[self.params[n].bucket].weights_sharded)

    def _gradients(self, steps: Iterable[Part]) -> Layout:
        names = [n[2:] for step in steps for n in step.writes if n.startswith("g:")]
        return self._layout(n for n in names if self.buckets[self.params[n].bucket].gradients_sharded)

    def added(self, group: int) -> list[tuple[int, int]]:
        """The stretches of a group's gradients that a backward adds to: all that no product writes afresh first."""
        first: dict[str, bool] = {}  # whether what touches a gradient first writes it afresh
        for unit in sorted(self.units[group], key=lambda u: -u.number):
            for part in (part for part in unit.unit.backward if isinstance(part, Lines)):
                products = (line.args[2] for line in part.lines if line.op == "gemm_out")
                afresh = {parameter(name, unit.number) for name in products if name}
                for name in (n[2:] for n in part.writes if n.startswith("g:")):
                    first.setdefault(name, name in afresh)
        begins = {bucket.index: begin for bucket, begin in self.gradients[group].places}
        whole = [self.params[name] for name, afresh in first.items() if afresh and self.params[name].bucket in begins]
        made = sorted((begins[p.bucket] + p.offset, p.local_numel) for p in whole)
        ends = [0, *(begin + size for begin, size in made)]
        return [
            (end, begin)
            for end, begin in zip(ends, (*(begin for begin, _ in made), self.gradients[group].total), strict=True)
            if begin > end
        ]

    def _layout(self, names: Iterable[str]) -> Layout:
        places, used = [], 0
        for index in sorted({self.params[name].bucket for name in names}):
            places.append((self.buckets[index], used))
            used += self.buckets[index].numel
        return Layout(tuple(places), used)


def _groups(plan: Plan, numbers: Sequence[int]) -> dict[int, int]:
    """The group of each unit: its own, or with a root group the embedding's for both ends."""
    root = {min(numbers), max(numbers)} if engine(plan).root_group else set()
    return {number: min(root) if number in root else number for number in numbers}


class BlockShards:
    """Gathers and reductions of one block. `order`: its units as the block computes them; `begin` and `end` stand
    around each one's steps."""

    WHOLE = WEIGHTS  # the slots where units read whole weights
    LAST: Mapping[str, Stream] = {WEIGHTS: "compute", GRADIENTS: "dp", REDUCED: "dp", STAGED: "dp"}
    """The stream of the last access to a slot of each family."""

    def __init__(
        self, shards: Shards, builder: BlockBuilder, phase: Phase, order: Sequence[int], last: bool = False
    ) -> None:
        self.shards, self.builder, self.phase = shards, builder, phase
        self._gathers = shards.forward if phase == "F" else shards.backward
        groups = dict.fromkeys(shards.group[unit] for unit in order)
        self._order = [g for g in groups if self._gathers[g].places and (phase == "F" or not shards.stays(g))]
        self._gathered = 0
        self._turns: dict[str, int] = {}
        self._slots: set[str] = set()  # slots used in this block
        self._flats: dict[tuple[str, int], int] = {}  # (family, unit) -> the slot's tenant
        self._views: dict[tuple[str, int, str], int] = {}
        self._due: int | None = None  # the unit whose gradients are still to be reduced
        self.after: tuple[int, ...] = ()  # what the next compute instruction waits for, without overlap
        self.reduced: int | None = None
        self._missing = dict(shards.writers) if last else {}  # reductions still to come before a bucket is complete

    # --- around a unit's steps

    def begin(self, unit: int) -> None:
        """Gather the unit and the next one, reduce the one before, clear the unit's gradients."""
        ahead = 2 if self.shards.plan.communication.overlap else 1
        if unit in self._order:
            for number in self._order[self._gathered : self._order.index(unit) + ahead]:
                self._gather(number)
                self._gathered += 1
        self._reduce_due()
        if self.phase == "B" and self.shards.gradients[unit].places:
            self._clear(unit)

    def end(self, unit: int) -> None:
        """The unit's gradients are complete for this micro-batch."""
        if self.phase == "B" and self.shards.gradients[unit].places:
            self._due = unit
            if not self.shards.plan.communication.overlap:
                self._reduce_due()

    def leave(self) -> None:
        """Reduce what is left; hand out the last access of every slot, and the last reduction."""
        self._reduce_due()
        for slot in sorted(self._slots):
            self.builder.give(slot, None, self.builder.latest(slot))
        if self.reduced is not None:
            self.builder.give("bucket.shards", None, self.reduced)

    # --- where a parameter is

    def ref(self, unit: int, name: str) -> int | None:
        """The buffer of a `w:` or `g:` name while `unit` computes; None when every rank holds it whole."""
        kind, _, param_name = name.partition(":")
        if kind in "sc":
            return None
        param = self.shards.params[param_name]
        bucket = self.shards.buckets[param.bucket]
        here = bucket.weights_sharded and bucket.whole_buffer < 0 if kind == "w" else bucket.gradients_sharded
        if not here:
            return None
        family = self.WHOLE if kind == "w" else GRADIENTS
        key = (family, self.shards.group[unit], param_name)
        if key not in self._views:
            self._views[key] = self._view(family, key[1], param, name)
        return self._views[key]

    def _view(self, family: str, group: int, param: Param, name: str) -> int:
        layout = self._gathers[group] if family == self.WHOLE else self.shards.gradients[group]
        start = next(first for bucket, first in layout.places if bucket.index == param.bucket)
        return self._stretch(self._flats[family, group], param.local_shape, start + param.offset, name)

    def _stretch(self, flat: int, shape: tuple[int, ...], offset: int, what: str) -> int:
        held = self.builder.buffers[flat]
        return self.builder.buffer(Buffer(shape, held.dtype, "gather", what, held.slot, (flat, offset)))

    # --- instructions

    def _tenant(self, family: str, elements: int, dtype: str, what: str, slots: int = 2) -> int:
        """A new tenant of the next of a family's slots."""
        turn = self._turns.get(family, 0)
        self._turns[family] = (turn + 1) % slots
        slot = f"{family}.{turn}"
        self.shards.allocator.claim(slot, Tensor(slot, (elements,), dtype, "gather"))
        if slot not in self._slots:
            self._slots.add(slot)
            self.builder.guard(slot, slot, self.LAST[family])
        return self.builder.buffer(Buffer((elements,), dtype, "gather", what, slot))

    def _gather(self, unit: int, after: tuple[int, ...] = ()) -> None:
        layout, dtype = self._gathers[unit], self.shards.plan.precision
        after = after if self.shards.plan.communication.overlap else self.builder.tail("compute")
        flat = self._flats[WEIGHTS, unit] = self._tenant(
            self._ring(unit), layout.total, dtype, f"weights of unit {unit}"
        )
        for bucket, first in layout.places:
            target = flat if len(layout.places) == 1 else self._stretch(flat, (bucket.numel,), first, "bucket")
            comm = Comm("all_gather", "dp", bucket.numel * DTYPE_BYTES[dtype], dtype, "dp")
            piece = _piece(bucket, "weights")
            shard = rank_wide(bucket.weight_buffer)
            if bucket.index in self.shards.staged:
                shard = self._stage(unit, bucket, shard, after)
            self.builder.emit(
                self.phase, "AG", unit, piece, "dp", (shard,), (target,), comm=comm, after=after, priority=1
            )

    def _ring(self, unit: int) -> str:
        """The family of slots a unit is gathered into."""
        return WEIGHTS

    def _stage(self, unit: int, bucket: Bucket, shard: int, after: tuple[int, ...]) -> int:
        """A shard kept on the host is copied to the device first, into a slot of its own ring."""
        staged = self._tenant(STAGED, bucket.shard_numel, self.shards.plan.precision, f"shard of unit {unit}")
        body = around.transfer(bucket.shard_numel, bucket.shard_numel, "")
        piece = _piece(bucket, "weights")
        self.builder.emit(self.phase, "H2D", unit, piece, "h2d", (shard,), (staged,), body, priority=1)
        return staged

    def _clear(self, unit: int) -> None:
        total, dtype = self.shards.gradients[unit].total, self.shards.plan.gradient_dtype
        flat = self._flats[GRADIENTS, unit] = self._tenant(GRADIENTS, total, dtype, f"gradients of unit {unit}")
        body = around.clear(total, dtype)
        after, self.after = self.after, ()
        self.builder.emit(self.phase, "ZERO", unit, "gradients", "compute", (), (flat,), body, after=after)

    def _reduce_due(self) -> None:
        unit, self._due = self._due, None
        if unit is None:
            return
        self._reduce_all(unit, self._flats[GRADIENTS, unit])
        if not self.shards.plan.communication.overlap and self.reduced is not None:
            self.after = (self.reduced,)

    def _reduce_all(self, unit: int, flat: int) -> None:
        """Reduce a unit's buckets from the flat tensor that holds their gradients."""
        layout = self.shards.gradients[unit]
        for bucket, first in layout.places:
            source = flat if len(layout.places) == 1 else self._stretch(flat, (bucket.numel,), first, "bucket")
            self.reduced = self._reduce(unit, bucket, source)
            self._complete(bucket)

    def _complete(self, bucket: Bucket) -> None:
        """In the last micro-batch a bucket's last reduction is followed by its copy to the host."""
        if bucket.index in self._missing:
            self._missing[bucket.index] -= 1
            if not self._missing[bucket.index] and copied_early(self.shards.plan, bucket):
                self.builder.give(f"{COPIED}{bucket.index}", None, copy_gradient(self.builder, bucket))

    def _reduce(self, unit: int, bucket: Bucket, source: int) -> int:
        """Returns the instruction after which the bucket's gradient shard holds this micro-batch too."""
        dtype, shard = self.shards.plan.gradient_dtype, rank_wide(bucket.grad_buffer)
        source_elements = bucket.numel if self.shards.to_all else bucket.shard_numel
        body = around.add_share(source_elements, bucket.shard_numel, dtype)
        piece, size = _piece(bucket, "gradients"), bucket.numel * DTYPE_BYTES[dtype]
        if self.shards.to_all:
            comm = Comm("all_reduce", "dp", size, dtype, "dp", "sum", self.shards.plan.communication.allreduce)
            self.builder.emit(self.phase, "AR", unit, piece, "dp", (source,), (source,), comm=comm)
            return self.builder.emit(self.phase, "ADD", unit, piece, "dp", (source, shard), (shard,), body)
        direct = bucket.index in self.shards.direct
        target = shard if direct else self._tenant(REDUCED, bucket.shard_numel, dtype, f"reduced of unit {unit}")
        comm = Comm("reduce_scatter", "dp", size, dtype, "dp", "sum")
        index = self.builder.emit(self.phase, "RS", unit, piece, "dp", (source,), (target,), comm=comm)
        if direct:
            return index
        return self.builder.emit(self.phase, "ADD", unit, piece, "dp", (target, shard), (shard,), body)


def _piece(bucket: Bucket, what: str) -> str:
    return f"tied.{what}" if bucket.kind == "tied" else what
