"""Partitioned buckets (ZeRO-2 and 3): gathered before they are read, cleared before and reduced after a micro-batch.

In a block, for each tenant of a slot:

* a compute instruction that reads a parameter's stretch of a gathered slot stands behind the all-gather of the
  parameter's bucket into that stretch, from this rank's shard or from a slot that the shard was copied to, or behind
  the copy of what was gathered to that stretch;
* one that adds to a parameter's stretch of a gradient slot stands behind the ZERO of the slot, and before the one
  reduce-scatter (or all-reduce) of the bucket's stretch, or of where that was copied to;
* what the reduction leaves is this rank's gradient shard itself (then nothing else is ever added to it), or a slot
  that one ADD adds to the shard.

Over the step every parameter's gradient is written for every micro-batch, and the bucket is stepped once, after the
last of it. Whether the slot still holds the tenant is for the storage proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from program import Block, Bucket, Instruction, Param, RankProgram, numel, rank_wide, tenant_of
from program.proofs.error import Named, Proof, ProofError, name
from program.proofs.values_bodies import made_afresh

PROOF: Proof = "complete"
Stretch = tuple[int, int, int]  # tenant, first element, end
AROUND = ("ZERO", "COPY")  # what compute does around the units


@dataclass(slots=True)
class _Block:
    """What one block does to partitioned buckets. Local ids."""

    gathered: dict[tuple[int, Stretch], int] = field(default_factory=dict)  # (bucket, stretch)
    staged: dict[int, int] = field(default_factory=dict)  # slot's tenant that a shard was copied to -> bucket
    moved: dict[Stretch, tuple[int, Stretch]] = field(default_factory=dict)  # gradients -> copy, where they are then
    cleared: dict[int, int] = field(default_factory=dict)  # tenant
    reduced: dict[Stretch, tuple[int, int]] = field(default_factory=dict)  # stretch -> instruction, its result
    added: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # slot's tenant -> instruction, shard


class Sharded:
    """The proof of one class. `written` and `last` are filled by `prove_blocks`: micro-batches (bits) in which a
    parameter's gradient is written, and where each bucket's shard is written last."""

    def __init__(self, stage: RankProgram, class_: int, masks: list[int], calls_of: list[list[int]]) -> None:
        self.stage, self.class_, self.masks, self.calls_of = stage, class_, masks, calls_of
        self.params = {p.name: p for p in stage.params}
        self.written: dict[str, int] = {}
        self.last: dict[int, tuple[int, int]] = {}
        self._whole: dict[int, int] = {}  # bucket -> micro-batches in which a reduction overwrites its shard
        self._sums: dict[int, int] = {}  # bucket -> additions
        self._counted: set[tuple[int, int]] = set()  # reductions that are in the two: block, instruction

    def prove_blocks(self) -> None:
        """Raises ProofError for the first block that breaks a rule."""
        if not any(b.weights_sharded or b.gradients_sharded for b in self.stage.buckets):
            return
        for number, block in enumerate(self.stage.blocks):
            if self.calls_of[number]:
                self._prove_block(number, block)
        for bucket, times in self._whole.items():
            if times + self._sums.get(bucket, 0) > 1:
                raise self._error(f"the gradient shard of bucket {bucket} is overwritten by a later reduction", [])

    def _prove_block(self, number: int, block: Block) -> None:
        done = _Block()
        for local, i in enumerate(block.instructions):
            if i.stream == "compute" and i.kind not in AROUND:
                for param, stretch in self._touched(block, i.reads, "w:"):
                    self._must_be_gathered(number, block, done, local, param, stretch)
                afresh = {_stretch(block, ref) for ref in made_afresh(i) if ref >= 0}
                for param, stretch in self._touched(block, i.writes, "g:"):
                    if stretch in afresh:
                        done.cleared.setdefault(
                            stretch[0], local
                        )  # which stretches of it: `program.proofs.values_calls`
                    self._must_be_clear(number, done, local, param, stretch)
            else:
                self._note(block, done, local, i)
        for local, i in enumerate(block.instructions):
            if i.stream == "compute" and i.kind not in AROUND:
                for param, stretch in self._touched(block, i.writes, "g:"):
                    self._must_be_reduced(number, block, done, local, param, stretch)

    def _touched(self, block: Block, refs: tuple[int, ...], kind: str) -> Iterator[tuple[Param, Stretch]]:
        for ref in refs:
            if ref >= 0 and block.buffers[ref].slot is not None and block.buffers[ref].what.startswith(kind):
                yield self.params[block.buffers[ref].what[2:]], _stretch(block, ref)

    def _note(self, block: Block, done: _Block, local: int, i: Instruction) -> None:
        weights = {rank_wide(b.weight_buffer): b.index for b in self.stage.buckets if b.weights_sharded}
        if i.kind == "ZERO":
            done.cleared |= {tenant_of(block.buffers, ref): local for ref in i.writes if ref >= 0}
        elif i.kind == "ADD":
            done.added.setdefault(i.reads[0], []).append((local, i.writes[0]))
        elif i.kind in ("H2D", "COPY") and i.reads[0] in weights and i.writes[0] >= 0:
            done.staged[i.writes[0]] = weights[i.reads[0]]
        elif i.kind == "COPY" and i.reads[0] >= 0 and i.writes[0] >= 0:
            source, target = _stretch(block, i.reads[0]), _stretch(block, i.writes[0])
            done.moved[source] = local, target
            done.gathered |= {(b, target): local for b, place in [*done.gathered] if place == source}
        elif i.comm is not None and i.comm.op == "all_gather" and i.comm.role == "dp" and i.writes[0] >= 0:
            bucket = weights.get(i.reads[0], done.staged.get(i.reads[0]))
            if bucket is not None:
                done.gathered[bucket, _stretch(block, i.writes[0])] = local
        elif (
            i.comm is not None
            and i.comm.op in ("reduce_scatter", "all_reduce")
            and i.comm.role == "dp"
            and i.reads[0] >= 0
        ):
            stretch = _stretch(block, i.reads[0])
            done.reduced[stretch] = (local, i.writes[0]) if stretch not in done.reduced else (-1, 0)

    def _bucket(self, param: Param, stretch: Stretch) -> tuple[Bucket, Stretch]:
        """The parameter's bucket, and where it lies when the parameter lies there."""
        bucket = self.stage.buckets[param.bucket]
        first = stretch[1] - param.offset
        return bucket, (stretch[0], first, first + bucket.numel)

    def _must_be_gathered(
        self, number: int, block: Block, done: _Block, local: int, param: Param, stretch: Stretch
    ) -> None:
        bucket, whole = self._bucket(param, stretch)
        if (bucket.index, whole) not in done.gathered:
            raise self._error(f"{param.name} is read before its bucket {bucket.index} is gathered", [(number, local)])

    def _must_be_clear(self, number: int, done: _Block, local: int, param: Param, stretch: Stretch) -> None:
        if stretch[0] not in done.cleared:
            raise self._error(f"the gradient of {param.name} is added to what nobody cleared", [(number, local)])

    def _must_be_reduced(
        self, number: int, block: Block, done: _Block, local: int, param: Param, stretch: Stretch
    ) -> None:
        bucket, whole = self._bucket(param, stretch)
        copied, whole = done.moved.get(whole, (local, whole))
        at, result = done.reduced.get(whole, (-1, 0))
        if min(at, copied) < local:
            raise self._error(
                f"bucket {bucket.index} is not reduced once after the last gradient of {param.name}", [(number, local)]
            )
        shard, end = rank_wide(bucket.grad_buffer), at
        if result != shard:
            added = done.added.get(result, [])
            if len(added) != 1 or added[0][1] != shard or added[0][0] < at:
                raise self._error(f"the reduced gradient of bucket {bucket.index} is not added once", [(number, at)])
            end = added[0][0]
        mask = self.masks[number]
        self.written[param.name] = self.written.get(param.name, 0) | mask
        self.last[bucket.index] = max(self.last.get(bucket.index, (-1, -1)), (self.calls_of[number][-1], end))
        if (number, at) not in self._counted:
            self._counted.add((number, at))
            book = self._whole if result == shard else self._sums
            book[bucket.index] = book.get(bucket.index, 0) + mask.bit_count()

    def _error(self, reason: str, places: list[tuple[int, int]]) -> ProofError:
        named: list[Named] = [
            name(self.stage, self.class_, self.calls_of[number][0], local) for number, local in places
        ]
        return ProofError(PROOF, f"class {self.class_} (stage {self.stage.stage}): {reason}", named)


def _stretch(block: Block, ref: int) -> Stretch:
    buffer = block.buffers[ref]
    first = 0 if buffer.base is None else buffer.base[1]
    return tenant_of(block.buffers, ref), first, first + numel(buffer.shape)
