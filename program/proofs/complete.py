"""Nothing is missing and nothing is done twice: units, parameters and buckets over all rank classes.

(phase, kind, micro-batch, unit, piece) is unique on a rank, and what a unit does for one micro-batch it does for all.
All layers do the same pieces. Every parameter's gradient is written for every micro-batch, every bucket is reduced
once over `dp` after its last gradient, and stepped once after that. Micro-batches are bits of an integer, so a block
is counted once for all its calls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from program import Block, Instruction, RankProgram, StepProgram, rank_wide
from program.proofs.error import Named, Proof, ProofError, name
from program.proofs.offloaded import prove_offloaded
from program.proofs.sharded import Sharded

Key = tuple[str, str, int, str]  # phase, kind, unit, piece
Place = tuple[int, int]  # call, local id
PROOF: Proof = "complete"


def prove_complete(program: StepProgram) -> None:
    """Raises ProofError when a unit, gradient, reduction or optimizer step is missing, repeated or too early."""
    stages: dict[int, tuple[int, dict[Key, int]]] = {}
    for number, stage in enumerate(program.classes):
        work = _Ledger(program, number).prove()
        first, expected = stages.setdefault(stage.stage, (number, work))
        if work != expected:
            odd = next(iter(work.keys() ^ expected.keys()))
            reason = f"classes {first} and {number} are both stage {stage.stage}, but only one does {_key_text(odd)}"
            raise ProofError(PROOF, reason)
    _prove_units({stage: work for stage, (_, work) in stages.items()}, program)


def _key_text(key: Key) -> str:
    phase, kind, unit, piece = key
    return f"`{phase} {kind} {piece}` of unit {unit}"


def _micros(mask: int) -> str:
    bits = [i for i in range(mask.bit_length()) if mask >> i & 1]
    return f"micro-batch {bits[0]}" if len(bits) == 1 else f"{len(bits)} micro-batches (first {bits[0]})"


@dataclass(slots=True)
class _Writes:
    """What a block does to rank-wide buffers, with local ids."""

    grads: dict[int, int] = field(default_factory=dict)  # reference written in a backward phase → last local id
    reduced: list[tuple[int, int]] = field(default_factory=list)  # (flat gradient reference, local id)
    stepped: list[tuple[int, int]] = field(default_factory=list)  # (exp_avg reference, local id)


class _Ledger:
    """The books of one class."""

    def __init__(self, program: StepProgram, class_: int) -> None:
        self.program, self.class_ = program, class_
        self.stage = program.classes[class_]
        self.all = (1 << program.degrees["microbatches"]) - 1
        self.calls_of: list[list[int]] = [[] for _ in self.stage.blocks]
        for index, call in enumerate(self.stage.calls):
            self.calls_of[call.block].append(index)

    def prove(self) -> dict[Key, int]:
        """What the class does for micro-batches (key → their bits), once proved."""
        self._prove_ids()
        masks = [self._mask(block) for block in range(len(self.stage.blocks))]
        work = self._work(masks)
        for key, mask in work.items():
            if mask != self.all and key[0] != "R":
                missing = _micros(self.all & ~mask)
                raise self._error(f"{_key_text(key)} is missing for {missing}", [self._find(key)])
        self._prove_parameters(masks)
        return work

    def _prove_ids(self) -> None:
        """No two calls share an instruction id."""
        sizes = [len(block.instructions) for block in self.stage.blocks]
        spans = sorted((call.base, call.base + sizes[call.block], index) for index, call in enumerate(self.stage.calls))
        for (_, end, one), (start, _, two) in pairwise(spans):
            if end > start:
                named = [name(self.stage, self.class_, call, 0) for call in (one, two)]
                raise self._error("two calls share instruction ids", named)

    def _mask(self, block: int) -> int:
        """The micro-batches a block is called for."""
        mask = 0
        for index in self.calls_of[block]:
            micro = self.stage.calls[index].micro
            if micro >= 0 and mask >> micro & 1:
                twin = next(c for c in self.calls_of[block] if self.stage.calls[c].micro == micro)
                named = [name(self.stage, self.class_, c, 0) for c in (twin, index)]
                raise self._error(
                    f"block {self.stage.blocks[block].name} is called twice for micro-batch {micro}", named
                )
            mask |= 1 << micro if micro >= 0 else 0
        return mask

    def _work(self, masks: list[int]) -> dict[Key, int]:
        work: dict[Key, int] = {}
        once: set[Key] = set()
        for number, block in enumerate(self.stage.blocks):
            mine: set[Key] = set()
            for local, i in enumerate(block.instructions):
                key = (i.phase, i.kind, i.unit, i.piece)
                if key in mine:
                    raise self._twice(key)
                mine.add(key)
                if i.phase == "step":
                    if key in once or len(self.calls_of[number]) > 1:
                        raise self._twice(key)
                    once.add(key)
                elif i.comm is not None and i.comm.role in ("pp_next", "pp_prev"):
                    continue  # prove_order compares them: a batched schedule pairs some sends with receives
                elif masks[number]:
                    before = work.get(key, 0)
                    if before & masks[number]:
                        raise self._twice(key)
                    work[key] = before | masks[number]
                elif self.calls_of[number]:
                    named = name(self.stage, self.class_, self.calls_of[number][0], local)
                    raise self._error("an instruction of a unit stands in a call without a micro-batch", [named])
        return work

    def _twice(self, key: Key) -> ProofError:
        named = [name(self.stage, self.class_, *place) for place in self._all(key)]
        clashes = Counter(n.label for n in named)
        again = [n for n in named if clashes[n.label] > 1][:2]
        return self._error(f"{_key_text(key)} stands twice in a step", again or named[:2])

    def _all(self, key: Key) -> list[Place]:
        found = []
        for index, call in enumerate(self.stage.calls):
            for local, i in enumerate(self.stage.blocks[call.block].instructions):
                if (i.phase, i.kind, i.unit, i.piece) == key:
                    found.append((index, local))
        return found

    def _find(self, key: Key) -> Named:
        return name(self.stage, self.class_, *self._all(key)[0])

    # --- parameters and buckets

    def _prove_parameters(self, masks: list[int]) -> None:
        stage = self.stage
        views = {
            (buffer.base, buffer.shape): rank_wide(index)
            for index, buffer in enumerate(stage.buffers)
            if buffer.base is not None and buffer.pool == "grad"
        }
        writes = [self._writes(block) for block in stage.blocks]
        covered: dict[int, int] = {}
        last: dict[int, Place] = {}
        for number, written in enumerate(writes):
            for ref, local in written.grads.items():
                covered[ref] = covered.get(ref, 0) | masks[number]
                if self.calls_of[number]:
                    base = self._base(ref)
                    last[base] = max(last.get(base, (-1, -1)), (self.calls_of[number][-1], local))
        sharded = Sharded(stage, self.class_, masks, self.calls_of)
        sharded.prove_blocks()
        for param in stage.params:
            bucket = stage.buckets[param.bucket]
            view = views.get(((bucket.grad_buffer, param.offset), param.local_shape), 0)
            done = sharded.written.get(param.name, 0) if bucket.gradients_sharded else covered.get(view, 0)
            missing = self.all & ~done
            if missing:
                raise self._error(f"the gradient of {param.name} is not written for {_micros(missing)}", [])
        self._prove_layout()
        reduced, stepped = self._sites([w.reduced for w in writes]), self._sites([w.stepped for w in writes])
        for bucket in stage.buckets:
            steps = stepped.get(rank_wide(bucket.exp_avg_buffer), [])
            sites = reduced.get(rank_wide(bucket.grad_buffer), [])
            if bucket.gradients_sharded:
                complete = sharded.last.get(bucket.index, (-1, -1))
                self._prove_stepped(bucket.index, complete, steps)
            else:
                complete = last.get(bucket.grad_buffer, (-1, -1))
                self._prove_bucket(bucket.index, complete, sites, steps)
            if bucket.offloaded:
                prove_offloaded(stage, self.class_, bucket, complete, steps[0])

    def _base(self, ref: int) -> int:
        buffer = self.stage.buffers[-1 - ref]
        return -1 - ref if buffer.base is None else buffer.base[0]

    def _writes(self, block: Block) -> _Writes:
        found = _Writes()
        grads = {rank_wide(b.grad_buffer) for b in self.stage.buckets}
        moments = {rank_wide(b.exp_avg_buffer) for b in self.stage.buckets}
        for local, i in enumerate(block.instructions):
            if i.phase in ("B", "W"):
                found.grads |= {
                    ref: local for ref in i.writes if ref < 0 and self.stage.buffers[-1 - ref].pool == "grad"
                }
            elif _reduces(i):
                found.reduced += [(ref, local) for ref in i.reads if ref in grads]
            elif i.kind == "STEP":
                found.stepped += [(ref, local) for ref in i.writes if ref in moments]
        return found

    def _prove_layout(self) -> None:
        ends: dict[int, int] = {}
        for param in sorted(self.stage.params, key=lambda p: (p.bucket, p.offset)):
            if param.offset < ends.get(param.bucket, 0):
                raise self._error(f"parameter {param.name} overlaps another in bucket {param.bucket}", [])
            ends[param.bucket] = param.offset + param.local_numel
            if ends[param.bucket] > self.stage.buckets[param.bucket].numel:
                raise self._error(f"parameter {param.name} does not fit in bucket {param.bucket}", [])

    def _prove_bucket(self, index: int, last: Place, reduced: list[Place], stepped: list[Place]) -> None:
        expected = 1 if self.program.degrees["dp"] > 1 else 0
        if len(reduced) != expected:
            named = [name(self.stage, self.class_, *place) for place in reduced] or self._named(last)
            raise self._error(f"bucket {index} is reduced {len(reduced)} times over dp instead of {expected}", named)
        if reduced and reduced[0] < last:
            named = [name(self.stage, self.class_, *place) for place in (reduced[0], last)]
            raise self._error(f"bucket {index} is reduced before its last gradient is written", named)
        self._prove_stepped(index, max([last, *reduced]), stepped)

    def _prove_stepped(self, index: int, complete: Place, stepped: list[Place]) -> None:
        if len(stepped) != 1:
            named = [name(self.stage, self.class_, *place) for place in stepped] or self._named(complete)
            raise self._error(f"bucket {index} is stepped {len(stepped)} times instead of once", named)
        if stepped[0] < complete:
            named = [name(self.stage, self.class_, *place) for place in (stepped[0], complete)]
            raise self._error(f"bucket {index} is stepped before its gradient is complete", named)

    def _sites(self, writes: list[list[tuple[int, int]]]) -> dict[int, list[Place]]:
        """Reference → where in the step it is touched, in host order; `writes[block]` are (reference, local id)."""
        found: dict[int, list[Place]] = {}
        for number, touched in enumerate(writes):
            for ref, local in touched:
                found.setdefault(ref, []).extend((call, local) for call in self.calls_of[number])
        return {ref: sorted(places) for ref, places in found.items()}

    def _named(self, place: Place) -> list[Named]:
        return [name(self.stage, self.class_, *place)] if place[0] >= 0 else []

    def _error(self, reason: str, named: list[Named]) -> ProofError:
        return ProofError(PROOF, f"class {self.class_} (stage {self.stage.stage}): {reason}", named)


def _reduces(i: Instruction) -> bool:
    return i.comm is not None and i.comm.role == "dp" and i.comm.op in ("all_reduce", "reduce_scatter")


def _prove_units(stages: dict[int, dict[Key, int]], program: StepProgram) -> None:
    """Units 0 … last are each in one stage, forward and backward, and all layers between do the same pieces."""
    home: dict[int, int] = {}
    pieces: dict[int, set[tuple[str, str, str]]] = {}
    for stage, work in stages.items():
        for phase, kind, unit, piece in work:
            if kind == "LOAD" or phase == "R" or piece.startswith("edge."):
                continue
            if home.setdefault(unit, stage) != stage:
                raise ProofError(PROOF, f"unit {unit} is computed by stage {home[unit]} and by stage {stage}")
            pieces.setdefault(unit, set()).add((phase, kind, piece))
    if not pieces:
        raise ProofError(PROOF, "the program computes nothing")
    absent = sorted(set(range(max(pieces) + 1)) - set(pieces))
    if absent:
        raise ProofError(PROOF, f"units {absent} are computed by no stage")
    for unit, done in sorted(pieces.items()):
        phases = {phase for phase, _, _ in done}
        if "F" not in phases or not phases & {"B", "W"}:
            way = "backward" if "F" in phases else "forward"
            raise ProofError(PROOF, f"unit {unit} is never computed {way}")
    _prove_layers_alike({u: frozenset(done) for u, done in pieces.items() if 0 < u < max(pieces)}, home, program)


def _prove_layers_alike(
    layers: dict[int, frozenset[tuple[str, str, str]]], home: dict[int, int], program: StepProgram
) -> None:
    usual = Counter(layers.values()).most_common(1)
    for unit, done in layers.items():
        for phase, kind, piece in sorted(usual[0][0] ^ done):
            does, others = ("lacks", "have") if (phase, kind, piece) not in done else ("has", "lack")
            reason = f"layer {unit} {does} `{phase} {kind} {piece}`, which the other layers {others}"
            number = next(n for n, stage in enumerate(program.classes) if stage.stage == home[unit])
            raise ProofError(PROOF, reason, _somebody(program.classes[number], number, unit))


def _somebody(stage: RankProgram, class_: int, unit: int) -> list[Named]:
    """The first instruction of a unit, to say where to look."""
    for index, call in enumerate(stage.calls):
        for local, i in enumerate(stage.blocks[call.block].instructions):
            if i.unit == unit and i.phase in ("F", "B", "W"):
                return [name(stage, class_, index, local)]
    return []
