"""One call of the storage proof: reads the state of the under_proof, proves the call's accesses, writes the state
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from program.proofs.blocks import bits
from program.proofs.error import Proof, ProofError
from program.proofs.places import Place, place_text
from program.proofs.stage_under_proof import StageUnderProof
from program.proofs.state import Last, Owner, Point
from program.proofs.uses import COMPUTE, NOTHING, Broken, Clock, Order, Use, summarise

EMPTY = Last(None, ())


class Step:
    """Use once: `Step(under_proof).take()`."""

    def __init__(self, under_proof: StageUnderProof) -> None:
        self.under_proof, self.state = under_proof, under_proof.state
        self.here = under_proof.call
        self.placed = under_proof.program.calls[self.here]
        self.shape = under_proof.shapes[self.placed.block]
        self.order = self.shape.order
        self.base = self.state.counts
        self._known: dict[tuple[int, int], Clock] = {}

    def take(self) -> None:
        """Prove the call and bring the state behind it."""
        sheet = self.under_proof.ports.sheets[self.here]
        if sheet.simple:
            back = self.under_proof.ports.sequence.back(self.here)
            for which, needed, freed in sheet.simple:
                self._spend(self.here - (back[which] or 0), needed, freed)
        places: dict[Place, list[Use]] = {}
        if sheet.careful:
            self._careful(sheet.careful, places)
        self._places(places)
        self._regions()
        self._advance()

    # --- order

    def known(self, local: int) -> Clock:
        """What is known of earlier calls when an instruction starts."""
        key = (self.order.entry[local], self.order.ports[local])
        found = self._known.get(key)
        if found is None:
            tails, doors = self.state.tails, self.state.doors
            clocks = [self.state.host, NOTHING]
            clocks += [tails[s] for s in bits(key[0]) if s in tails]
            for port in bits(key[1]):
                call, out = self.placed.bindings[port]
                if call >= 0:
                    clocks.append(doors[call][out])
            found = self._known[key] = tuple(map(max, *clocks))
        return found

    def ended(self, local: int) -> Clock:
        """The real clock of an instruction of this call when it has finished."""
        inside = self.order.local[local]
        clock = [b + n if n else k for k, b, n in zip(self.known(local), self.base, inside, strict=True)]
        stream = self.order.streams[local]
        clock[stream] = self.base[stream] + self.order.position[local]
        return tuple(clock)

    def after(self, point: Point, local: int) -> bool:
        """Whether an access of an earlier call is finished when an instruction starts."""
        stream, position = point
        order = self.order
        return order.streams[local] == stream or order.local[local][stream] > 0 or self.known(local)[stream] >= position

    # --- allocator buffers

    def _spend(self, call: int, needed: frozenset[int], freed: frozenset[int]) -> None:
        """Buffers of an earlier call must be alive; `freed` are alive no longer."""
        alive = self.state.alive.get(call, frozenset())
        if not needed <= alive:
            raise self._dead((call, min(needed - alive)))
        if freed:
            if len(freed) == len(alive):
                del self.state.alive[call]
            else:
                self.state.alive[call] = alive - freed

    def _careful(self, ports: Sequence[tuple[int, Use]], places: dict[Place, list[Use]]) -> None:
        """Ports that bring what other streams touch too, or the same buffer twice."""
        by_owner: dict[Owner, list[Use]] = {}
        for port, use in ports:
            bound, out = self.placed.bindings[port]
            if bound < 0:
                block = self.under_proof.program.blocks[self.placed.block]
                reason = (
                    f"in-port {block.ports_in[port].name} of {block.name} is bound to nothing, but its buffer is used"
                )
                raise self._refuse("memory", reason, (use.accesses[0].local,))
            call, (kind, ref, found) = self.under_proof.ports.source(bound, out)
            if kind == "own":
                by_owner.setdefault((call, ref), []).append(use)
            else:
                self._bring_place(call, kind, ref, found, use, places)
        for owner, uses in by_owner.items():
            self._share(owner, uses)

    def _bring_place(
        self, call: int, kind: str, ref: int, found: tuple[Place, ...], use: Use, places: dict[Place, list[Use]]
    ) -> None:
        if use.free >= 0 or kind == "token":
            raise self._refuse(
                "memory", "what a port brings is freed or used, but is no allocator buffer", (_first(use),)
            )
        for place in found:
            if kind == "slot":
                place = self.under_proof.slots[self.under_proof.program.calls[call].block][place]  # type: ignore[index]
                if place not in self.state.places or self.state.places[place].tenant != (call, ref):
                    reason = f"{place_text(place)} is read after another tenant has taken it"
                    raise self._refuse("race", reason, (_first(use),))
            places.setdefault(place, []).append(use)

    def _share(self, owner: Owner, uses: list[Use]) -> None:
        """An allocator buffer that some port of this call brings."""
        call, ref = owner
        use = uses[0] if len(uses) == 1 else self._merge_freed(owner, uses)
        if ref not in self.state.alive.get(call, ()):
            raise self._dead(owner)
        if (self.under_proof.program.calls[call].block, ref) in self.under_proof.ports.shared:
            self._hold(self.state.buffers[owner], use, owner, owned=True)
            if use.free >= 0:
                del self.state.buffers[owner]
            else:
                self.state.buffers[owner] = self._next(self.state.buffers[owner], use)
        if use.free >= 0:
            self._spend(call, frozenset((ref,)), frozenset((ref,)))

    def _merge_freed(self, owner: Owner, uses: list[Use]) -> Use:
        frees = [use.free for use in uses if use.free >= 0]
        if len(frees) > 1:
            raise self._refuse("memory", f"{self._what(owner)} is freed twice", tuple(frees))
        return self._merge(uses, self._what(owner), max(frees, default=-1))

    def _merge(self, uses: list[Use], what: str, free: int = -1, tenanted: bool = False) -> Use:
        """Several uses of one storage in one call as one, proved among each other."""
        accesses = sorted((a for use in uses for a in use.accesses), key=lambda a: a.local)
        try:
            return summarise(self.order, accesses, what, free, tenanted=tenanted)
        except Broken as broken:
            raise self._refuse(broken.proof, broken.reason, broken.locals) from None

    # --- slots and rank-wide regions

    def _places(self, places: dict[Place, list[Use]]) -> None:
        names = self.under_proof.slots[self.placed.block]
        for place, use in self.shape.place_uses:
            places.setdefault(names[place] if isinstance(place, int) else place, []).append(use)
        for place, uses in places.items():
            region = isinstance(place, tuple)
            if region and place in self.shape.region_uses:
                uses.append(self.shape.region_uses[place])
            use = uses[0] if len(uses) == 1 else self._merge(uses, place_text(place), tenanted=not region)
            last = self._told(place) if region else self.state.places.get(place, EMPTY)
            self._hold(last, use, place)
            self.state.places[place] = self._next(last, use)
            if region:
                self.state.hot |= {place}

    def _regions(self) -> None:
        """Regions that compute alone touches here: those that another stream touched lately one by one, the rest by
        noting.
        """
        uses = self.shape.region_uses
        if not uses:
            return
        for place in self.state.hot:
            use = uses.get(place)
            if use is None or (place in self.state.places and self.state.places[place].told == self.here):
                continue
            last = self._told(place)
            self._hold(last, use, place)
            first = use.accesses[0].local
            strangers = [p for p in (last.writer, *last.reads) if p is not None and p[0] != COMPUTE]
            if all(self.after(point, first) for point in strangers):
                self.state.hot -= {place}
            self.state.places[place] = self._next(last, use)
        self.state.touched[self.under_proof.shape_of[self.placed.block]] = (self.here, self.base[COMPUTE])

    def _told(self, place: Place) -> Last:
        """The last accesses of an region, what compute did to it unnoticed included."""
        last = self.state.places.get(place, EMPTY)
        news = []
        for number, (call, count) in self.state.touched.items():
            shape = self.under_proof.shape_by_number[number]
            if call > last.told and place in shape.region_uses:
                news.append((call, count, shape, shape.region_uses[place]))
        for call, count, shape, use in sorted(news, key=lambda item: item[0]):
            base = [count if stream == COMPUTE else 0 for stream in range(len(NOTHING))]
            last = follow(last, use, shape.order, base, call)
        return last

    def _hold(self, last: Last, use: Use, storage: Place, owned: bool = False) -> None:
        """Raise unless everything the use's first accesses conflict with is finished before them.

        `owned`: the storage is an allocator buffer (call, local id), not a place.
        """
        after, writer = self.after, last.writer
        if writer is not None:
            for local in (*use.first_reads, use.first_write, use.free):
                if local >= 0 and not after(writer, local):
                    raise self._against(writer, local, storage, owned, "written, then used, and nothing orders the two")
        for local, does in ((use.first_write, "overwritten"), (use.free, "freed")):
            if local >= 0:
                for point in last.reads:
                    if not after(point, local):
                        raise self._against(point, local, storage, owned, f"{does} while it may still be read")

    # --- afterwards

    def _next(self, last: Last, use: Use) -> Last:
        return follow(last, use, self.order, self.base, self.here)

    def _advance(self) -> None:
        state, shape, block = self.state, self.shape, self.placed.block
        ends = {local: self.ended(local) for _, local in shape.tails}
        wanted = self.under_proof.ports.wanted[block]
        if wanted:
            outs = self.under_proof.program.blocks[block].ports_out
            doors = {}
            for out in wanted:
                local = outs[out].instruction
                if local not in ends:
                    ends[local] = self.ended(local)
                doors[out] = ends[local]
            state.doors[self.here] = doors
        if shape.sync >= 0:
            state.host = tuple(map(max, state.host, self.ended(shape.sync)))
        if shape.left:
            state.alive[self.here] = shape.left
            for ref in shape.left:
                if (block, ref) in self.under_proof.ports.shared:
                    state.buffers[self.here, ref] = self._next(EMPTY, shape.exports[ref])
        for stream, local in shape.tails:
            state.tails[stream] = ends[local]
        state.counts = tuple(map(int.__add__, state.counts, shape.counts))

    # --- refusing

    def _what(self, owner: Owner) -> str:
        block = self.under_proof.program.blocks[self.under_proof.program.calls[owner[0]].block]
        return f"buffer {owner[1]} ({block.buffers[owner[1]].what}) of {block.name}"

    def _dead(self, owner: Owner) -> ProofError:
        """Who uses a buffer that is gone."""
        for port, use in self.shape.port_uses:
            bound, out = self.placed.bindings[port]
            if bound >= 0:
                call, (kind, ref, _) = self.under_proof.ports.source(bound, out)
                if kind == "own" and (call, ref) == owner and _first(use) >= 0:
                    return self._refuse("memory", f"{self._what(owner)} is used after it was freed", (_first(use),))
        return self._refuse("memory", f"{self._what(owner)} is used after it was freed", (0,))

    def _refuse(self, proof: Proof, reason: str, locals_: tuple[int, ...]) -> ProofError:
        return self.under_proof.error(proof, reason, [self.under_proof.name(local) for local in locals_])

    def _against(self, point: Point, local: int, storage: Place, owned: bool, reason: str) -> ProofError:
        what = self._what(storage) if owned and isinstance(storage, tuple) else place_text(storage)
        proof: Proof = "memory" if "freed" in reason else "race"
        return self.under_proof.error(
            proof, f"{what} is {reason}", [self.under_proof.at(point), self.under_proof.name(local)]
        )


def follow(last: Last, use: Use, order: Order, base: Sequence[int], call: int) -> Last:
    """A storage's last accesses after a use in `call`, whose streams had `base` instructions before it."""
    position = order.position
    reads = tuple([(stream, base[stream] + position[local]) for stream, local in use.last_reads])
    if use.last_write >= 0:
        stream = order.streams[use.last_write]
        tenant = (call, use.tenant) if use.tenant >= 0 else last.tenant
        return Last((stream, base[stream] + position[use.last_write]), reads, tenant, call)
    if last.reads:
        reads = tuple(sorted((dict(last.reads) | dict(reads)).items()))
    return Last(last.writer, reads, last.tenant, call)


def _first(use: Use) -> int:
    return use.accesses[0].local if use.accesses else use.free
