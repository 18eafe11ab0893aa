"""The storage proofs again, on the flat list of instructions: plain, slow, and the judge of the fast ones in tests.

One vector clock an instruction, one table of accesses a storage, no blocks, no summaries, no skipping. It accepts and
refuses what `program.proofs` accepts and refuses for race, memory and close; the instructions named may differ where
several are at fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from program import STREAMS, Buffer, Placed, RankProgram, StepProgram, expand, numel, resolve_buffer, tenant_of
from program.proofs.error import Proof, ProofError, name
from program.proofs.values_bodies import made_afresh

Clock = list[int]
Owner = tuple[int, int]  # (call, local buffer), or (-1, rank-wide buffer)
COMPUTE = STREAMS.index("compute")


@dataclass(slots=True)
class _Touch:
    """An access of a storage: by whom, on which elements, through which owner."""

    at: int
    write: bool
    start: int
    end: int
    owner: Owner


@dataclass(slots=True)
class _Flat:
    """The instructions of a class in host order, with their start clocks and places on their streams."""

    placed: list[Placed] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    start: list[Clock] = field(default_factory=list)

    def before(self, a: int, b: int) -> bool:
        """Whether a is finished when b starts."""
        return self.start[b][self.stream[a]] >= self.position[a]

    def end(self, at: int) -> Clock:
        """The clock when an instruction has finished."""
        clock = list(self.start[at])
        clock[self.stream[at]] = self.position[at]
        return clock


def prove_expanded(program: StepProgram) -> None:
    """Raises ProofError (race, memory, deadlock or close) as `program.proofs` would."""
    for number, stage in enumerate(program.classes):
        _Class(stage, number).prove()


class _Class:
    def __init__(self, program: RankProgram, class_: int) -> None:
        self.program, self.class_ = program, class_
        self.flat = _Flat()
        self.touched: dict[object, list[_Touch]] = {}
        self.freed: dict[Owner, int] = {}
        self.synced = -1

    def prove(self) -> None:
        self._wired()
        self._order()
        for at in range(len(self.flat.placed)):
            self._touch(at)
            self._free(at)
        for owner in self._allocated():
            if owner not in self.freed:
                self._refuse("memory", "a buffer is never freed", self.touched[owner][0].at)
        self._close()

    def _wired(self) -> None:
        for here, call in enumerate(self.program.calls):
            if any(bound >= here for bound, _ in call.bindings):
                reason = f"call {here} is bound to one that is not issued before it"
                raise ProofError("deadlock", reason, [name(self.program, self.class_, here, 0)])

    def _order(self) -> None:
        flat = self.flat
        by_id: dict[int, int] = {}
        tails: dict[int, int] = {}
        for at, placed in enumerate(expand(self.program)):
            stream = STREAMS.index(placed.instruction.stream)
            clock = [0] * len(STREAMS)
            flat.placed.append(placed)
            sources = [s for s in (tails.get(stream), self.synced) if s is not None and s >= 0]
            for wait in placed.waits:
                if wait not in by_id:
                    self._refuse("deadlock", "it waits for an instruction that is issued after it", at)
                sources.append(by_id[wait])
            for source in sources:
                clock = list(map(max, clock, flat.end(source)))
            flat.stream.append(stream)
            flat.position.append(flat.position[tails[stream]] + 1 if stream in tails else 1)
            flat.start.append(clock)
            by_id[placed.id], tails[stream] = at, at
            if placed.instruction.host_sync:
                self.synced = at

    def _spec(self, owner: Owner) -> Buffer:
        if owner[0] < 0:
            return self.program.buffers[owner[1]]
        return self.program.blocks[self.program.calls[owner[0]].block].buffers[owner[1]]

    def _storage(self, owner: Owner) -> tuple[object, int, int]:
        """What stores a buffer (a slot's name, a rank-wide buffer, or the buffer itself), and the elements it
        covers.
        """
        spec = self._spec(owner)
        if spec.slot is not None:
            return spec.slot, 0, 1
        if spec.base is not None:
            return (-1, spec.base[0]), spec.base[1], spec.base[1] + numel(spec.shape)
        return owner, 0, numel(spec.shape) if owner[0] < 0 else 1

    def _owner(self, at: int, ref: int) -> Owner:
        placed = self.flat.placed[at]
        try:
            owner = resolve_buffer(self.program, placed.call, ref)
        except KeyError as error:
            self._refuse("memory", str(error), at)
            raise
        block = self.program.blocks[self.program.calls[placed.call].block]
        if ref >= 0:
            mine, given = block.buffers[ref], self._spec(owner)
            if (mine.shape, mine.dtype) != (given.shape, given.dtype):
                self._refuse("memory", "a port's two sides differ", at)
        if owner[0] < 0:
            return owner
        held = self.program.blocks[self.program.calls[owner[0]].block].buffers
        return owner[0], tenant_of(held, owner[1])

    def _touch(self, at: int) -> None:
        instruction = self.flat.placed[at].instruction
        for ref in dict.fromkeys((*instruction.reads, *instruction.writes)):
            owner = self._owner(at, ref)
            storage, start, end = self._storage(owner)
            writes = ref in instruction.writes
            reads = ref in instruction.reads and not (writes and ref in made_afresh(instruction))
            past = self.touched.setdefault(storage, [])
            if owner in self.freed:
                self._refuse("memory", "a buffer is used after it was freed", self.freed[owner], at)
            if storage == owner and owner[0] >= 0 and not past:
                self._birth(at, reads)
            if isinstance(storage, str) and reads:
                holder = next((t for t in reversed(past) if t.write), None)
                if holder is None or holder.owner != owner:
                    self._refuse("race", "a slot is read by a tenant that does not hold it", at)
            for touch in past:
                meet = touch.start < end and start < touch.end and touch.at != at
                if meet and (touch.write or writes) and not self.flat.before(touch.at, at):
                    self._refuse("race", "two accesses are not ordered", touch.at, at)
            past.append(_Touch(at, writes, start, end, owner))

    def _birth(self, at: int, reads: bool) -> None:
        if reads:
            self._refuse("race", "a buffer is read before anything was written to it", at)
        if self.flat.stream[at] != COMPUTE:
            self._refuse("memory", "only compute may allocate", at)

    def _free(self, at: int) -> None:
        placed = self.flat.placed[at]
        call = self.program.calls[placed.call]
        ports = {p.buffer: k for k, p in enumerate(self.program.blocks[call.block].ports_in)}
        for ref in placed.instruction.frees:
            if ref in ports and call.bindings[ports[ref]][0] < 0:
                continue
            owner = self._owner(at, ref)
            if (
                owner in self.freed
                or self._storage(owner)[0] != owner
                or owner[0] < 0
                or self.flat.stream[at] != COMPUTE
            ):
                self._refuse("memory", "this free is not allowed", at)
            for touch in self.touched.get(owner, []):
                if touch.at != at and not self.flat.before(touch.at, at):
                    self._refuse("memory", "a buffer is freed while it may still be used", touch.at, at)
            self.freed[owner] = at

    def _allocated(self) -> list[Owner]:
        return [s for s in self.touched if isinstance(s, tuple) and s[0] >= 0]

    def _close(self) -> None:
        for at in range(len(self.flat.placed)):
            if at != self.synced and (self.synced < 0 or not self.flat.before(at, self.synced)):
                self._refuse("close", "the step can end while an instruction still runs", at)

    def _refuse(self, proof: Proof, reason: str, *places: int) -> None:
        placed = [self.flat.placed[at] for at in places]
        raise ProofError(proof, reason, [name(self.program, self.class_, p.call, p.local) for p in placed])
