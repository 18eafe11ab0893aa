"""The books of a rank as micro-batches keep them: weights that are read, gradients and loss that are added to.

A gradient is the set of parts that were added to it (which instruction, which micro-batch). What is asked of them once
a step is in `program.proofs.values_step`.
"""

from __future__ import annotations

from program import RankProgram, StepProgram, rank_wide
from program.proofs.values_sheet import Part

Key = tuple[int, str, str]


class Wrong(Exception):
    """What the books do not allow, in words."""


def need(holds: bool, reason: str) -> None:
    """Raises Wrong."""
    if not holds:
        raise Wrong(reason)


class MicroBooks:
    """The books of one class over its micro-batches. `expected`: the instructions that add to each parameter's
    gradient."""

    def __init__(self, program: StepProgram, stage: RankProgram, expected: dict[str, set[Key]]) -> None:
        self.stage, self.degrees = stage, program.degrees
        self.all = (1 << self.degrees["microbatches"]) - 1
        self.expected = expected
        self.bucket_of = {param.name: stage.buckets[param.bucket] for param in stage.params}
        self.members: list[list[str]] = [[] for _ in stage.buckets]
        for param in stage.params:
            self.members[param.bucket].append(param.name)
        self.at = {(b.grad_buffer, p.offset): p.name for p in stage.params for b in [stage.buckets[p.bucket]]}
        self.by_gradient = {rank_wide(b.grad_buffer): b for b in stage.buckets}
        self.by_reduced = {rank_wide(b.reduced_buffer): b for b in stage.buckets}
        self.parts: dict[str, dict[Key, int]] = {}  # micro-batches (bits) of each part; absent: never zeroed
        self.fresh: dict[str, list[tuple[Key, int]]] = {}
        self.owing: set[int] = set()  # buckets whose parts owe a sum over `tp`
        self.sums: list[set[str]] = [set() for _ in stage.buckets]
        self.shares: set[int] = {b.index for b in stage.buckets if b.gradients_sharded}
        self.weights: dict[int, str] = {}
        self.assumed: dict[int, str] = {}
        self.loss: int | None = None
        self.loss_parts: set[Key] = set()
        self.loss_sums = 0
        self.stats: str | None = None  # who they are summed over: nobody ("") | model | world; None: not made
        self.hosted: set[str] = set()  # buckets' gradients and the statistics that the host has
        self.widened: dict[int, int] = {}  # a local buffer -> its bucket
        self.stepped: set[int] = set()
        self.changes = 0  # events of the step so far
        self.current: dict[int, int] = {}  # what was checked against the books as they were after so many
        self.pending: dict[int, tuple[list[Part], int]] = {}  # parts and their micro-batches, still to be entered

    def read_weights(self, buckets: set[int]) -> None:
        """A forward or backward reads weights of these buckets."""
        if self.current.get(id(buckets)) != self.changes:
            self.current[id(buckets)] = self.changes
            for bucket in buckets:
                self._read(bucket)

    def copy_weights(self, bucket: int) -> None:
        """What was gathered of a bucket is copied to where its weights stay whole until the backward."""
        self.changes += 1
        self.assumed.setdefault(bucket, "share")
        self.weights[bucket] = "whole"

    def _read(self, bucket: int) -> None:
        state = self.weights.get(bucket)
        if state is None:
            self.weights[bucket] = self.assumed[bucket] = "whole"
        else:
            need(state == "whole", f"weights of bucket {bucket} are read before all shares are gathered")

    def add_all(self, parts: list[Part], micro: int) -> None:
        """Parts join the main gradients. They are entered one by one when somebody asks for them."""
        if self.current.get(id(parts)) != self.changes:
            self.current[id(parts)] = self.changes
            for part in parts:
                self._open(part)
        _, done = self.pending.get(id(parts), (parts, 0))
        need(not done >> micro & 1, f"the gradient of {parts[0].param} holds a micro-batch twice")
        self.pending[id(parts)] = parts, done | 1 << micro

    def enter_pending(self) -> None:
        """Enter every part that joined main gradients, with its micro-batches."""
        for parts, done in self.pending.values():
            for part in parts:
                self._enter(part.param, part[1:4], done)
        self.pending.clear()

    def _open(self, part: Part) -> None:
        """A part may join the main gradient now."""
        bucket = self.bucket_of[part.param]
        need(part.param in self.parts, f"the gradient of {part.param} is added to what nobody cleared")
        need(not self.sums[bucket.index], f"the gradient of {part.param} is added to after it was reduced")
        if part.owes:
            self.owing.add(bucket.index)

    def add(self, part: Part, micro: int) -> None:
        """A part joins the main gradient."""
        self._open(part)
        self._enter(part.param, part[1:4], 1 << micro)

    def _enter(self, name: str, key: Key, bit: int) -> None:
        known = self.parts[name]
        need(not known.get(key, 0) & bit, f"the gradient of {name} holds a micro-batch twice")
        known[key] = known.get(key, 0) | bit

    def add_fresh(self, part: Part, micro: int) -> None:
        """A part in the computing type, beside the main gradient until ACC."""
        held = self.fresh.setdefault(part.param, [])
        need(
            all(bit == 1 << micro for _, bit in held), f"a fresh gradient of {part.param} was not added to the main one"
        )
        held.append((part[1:4], 1 << micro))
        if part.owes:
            self.owing.add(self.bucket_of[part.param].index)

    def add_shard(self, bucket: int, parts: tuple[Part, ...], direct: bool, micro: int) -> None:
        """What was reduced over `dp` joins this rank's shard; `direct`: it takes the place of what was there."""
        names = {part.param for part in parts}
        empty = not any(self.parts.get(name) for name in self.members[bucket])
        need(not direct or empty, f"the gradient shard of bucket {bucket} is overwritten")
        need(names <= set(self.members[bucket]), f"gradients of {sorted(names)} are added to bucket {bucket}")
        for part in parts:
            self.add(part, micro)

    def add_loss(self, key: Key, micro: int) -> None:
        """A micro-batch's loss joins the rank's sum."""
        need(self.loss is not None, "the loss is added to what nobody cleared")
        assert self.loss is not None
        need(not self.loss >> micro & 1, "the loss holds a micro-batch twice")
        need(not self.loss_sums, "the loss is added to after it was summed")
        self.loss |= 1 << micro
        self.loss_parts.add(key)
