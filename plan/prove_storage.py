"""Races, reuse, leaks and the closing of the step for one rank class: exact vector clocks, one step a call.

`plan.prove_blocks` has proved what happens inside a block. Here a call is one step: its in-ports and streams get real
clocks, the first accesses of every storage it shares are held against the last ones before it, and its own last ones
become the storage's state. A storage is an allocator buffer (call, local id), a slot, or an atom of a rank-wide
buffer. Steady states are skipped (`plan.prove_state`).

Host order is the meaning of the program: a read must see the write before it in host order. So it suffices that every
two conflicting accesses are ordered as the host issues them; allocator buffers that compute alone touches are, by its
own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from plan.program import RankProgram
from plan.prove_blocks import NOTHING, Atoms, Broken, Clock, Place, Shape, Use, bits, place_text, summarise
from plan.prove_error import Named, Proof, ProofError, name, on_stream
from plan.prove_period import Run
from plan.prove_ports import Ports
from plan.prove_state import Last, Owner, Point, Shift, State

EMPTY = Last(None, ())


class Storage:
    """The proof of one class. `shapes[b]` belongs to `program.blocks[b]`; `run` may be skipped through (None: every
    call is stepped).
    """

    def __init__(
        self, program: RankProgram, class_: int, shapes: list[Shape], atoms: Atoms, ports: Ports, run: Run | None
    ) -> None:
        self.program, self.class_, self.shapes, self.atoms, self.ports = program, class_, shapes, atoms, ports
        self.run = run
        self.state = State()
        self.call = 0
        self._snapshot: tuple[int, State] | None = None

    def prove(self) -> None:
        """Raises ProofError for the first call (in host order) that breaks a rule; then for a leak, then for a step
        left open.
        """
        while self.call < len(self.program.calls):
            if self.run is not None:
                self._try_skip(self.run)
            _Step(self).take()
            self.call += 1
        self._prove_freed()
        self._prove_closed()

    def _try_skip(self, run: Run) -> None:
        here = self.call
        if here < run.start + run.reach or (here - run.start) % run.period or here + run.period > run.end:
            return
        if self._snapshot is not None and self._snapshot[0] == here - run.period:
            shift = Shift(self._snapshot[1], self.state, here, run.period, run.reach)
            if shift.repeats():
                times = (run.end - here) // run.period
                self.state = shift.moved(times)
                self.call += times * run.period
                self.run = None
                return
        self._snapshot = (here, self.state.copy())

    def _prove_freed(self) -> None:
        for call, refs in sorted(self.state.alive.items()):
            block = self.program.blocks[self.program.calls[call].block]
            ref = min(refs)
            writer = next(i for i, instruction in enumerate(block.instructions) if ref in instruction.writes)
            what = block.buffers[ref].what
            raise self.error("memory", f"the buffer {what} is written but never freed", [self.name(writer, call)])

    def _prove_closed(self) -> None:
        state = self.state
        for stream, (known, count) in enumerate(zip(state.host, state.counts, strict=True)):
            if known < count:
                open_ = self.at((stream, known + 1))
                last = self._last_sync()
                reason = "the step can end while an instruction still runs: the last host_sync is not ordered after it"
                raise self.error("close", reason, [open_, *last])

    def _last_sync(self) -> list[Named]:
        for call in range(len(self.program.calls) - 1, -1, -1):
            sync = self.shapes[self.program.calls[call].block].sync
            if sync >= 0:
                return [self.name(sync, call)]
        return []

    def name(self, local: int, call: int | None = None) -> Named:
        """An instruction of a call (default: the current one)."""
        return name(self.program, self.class_, self.call if call is None else call, local)

    def at(self, point: Point) -> Named:
        """The instruction at a position of a stream."""
        call, local = on_stream(self.program, *point)
        return self.name(local, call)

    def error(self, proof: Proof, reason: str, named: Iterable[Named]) -> ProofError:
        """A ProofError of this class."""
        return ProofError(proof, reason, named)


class _Step:
    """One call: reads the state, proves, writes the state."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.state = storage, storage.state
        self.placed = storage.program.calls[storage.call]
        self.shape = storage.shapes[self.placed.block]
        self.order = self.shape.order
        self.base = self.state.counts
        self._known: dict[tuple[int, int], Clock] = {}

    def take(self) -> None:
        """Prove the call and bring the state behind it."""
        self._buffers()
        self._places()
        self._advance()

    # --- order ----------------------------------------------------------------------------------------------------------

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
        return self.order.local[local][point[0]] > 0 or self.known(local)[point[0]] >= point[1]

    def point(self, local: int) -> Point:
        """Where an instruction of this call stands on its stream."""
        stream = self.order.streams[local]
        return stream, self.base[stream] + self.order.position[local]

    # --- storage --------------------------------------------------------------------------------------------------------

    def _buffers(self) -> None:
        """Allocator buffers that ports bring: alive, ordered, freed once."""
        by_owner: dict[Owner, list[tuple[int, Use]]] = {}
        for port, use in self.shape.port_uses:
            bound, out = self.placed.bindings[port]
            if bound < 0:
                self._check_unbound(use, port)
                continue
            owner = self.storage.ports.owner(bound, out)
            if owner is not None:
                by_owner.setdefault(owner, []).append((port, use))
        freed: dict[int, set[int]] = {}
        alive, shared = self.state.alive, self.storage.ports.shared
        for owner, uses in by_owner.items():
            use = uses[0][1] if len(uses) == 1 else self._merged(owner, uses)
            call, ref = owner
            if ref not in alive.get(call, ()):
                local = use.accesses[0].local if use.accesses else use.free
                if local >= 0:
                    raise self._refuse("memory", f"{self._what(owner)} is used after it was freed", (local,))
                continue
            if (self.storage.program.calls[call].block, ref) in shared:
                self._hold(self.state.buffers[owner], use, self._what(owner))
                if use.free >= 0:
                    del self.state.buffers[owner]
                else:
                    self.state.buffers[owner] = self._next(self.state.buffers[owner], use)
            if use.free >= 0:
                freed.setdefault(call, set()).add(ref)
        for call, refs in freed.items():
            left = alive[call] - refs
            if left:
                alive[call] = left
            else:
                del alive[call]

    def _check_unbound(self, use: Use, port: int) -> None:
        if use.accesses:
            block = self.storage.program.blocks[self.placed.block]
            reason = f"in-port {block.ports_in[port].name} of {block.name} is bound to nothing, but its buffer is used"
            raise self._refuse("memory", reason, (use.accesses[0].local,))

    def _merged(self, owner: Owner, uses: list[tuple[int, Use]]) -> Use:
        frees = [use.free for _, use in uses if use.free >= 0]
        if len(frees) > 1:
            raise self._refuse("memory", f"{self._what(owner)} is freed twice", tuple(frees))
        return self._merge([use for _, use in uses], self._what(owner), max(frees, default=-1))

    def _merge(self, uses: list[Use], what: str, free: int = -1, tenanted: bool = False) -> Use:
        """Several uses of one storage in one call as one, proved among each other."""
        accesses = sorted((a for use in uses for a in use.accesses), key=lambda a: a.local)
        try:
            return summarise(self.order, accesses, what, free, tenanted=tenanted)
        except Broken as broken:
            raise self._refuse(broken.proof, broken.reason, broken.locals) from None

    def _places(self) -> None:
        """Slots and rank-wide atoms: ordered, and a slot read only by the tenant that holds it."""
        by_place: dict[Place, list[Use]] = {place: [use] for place, use in self.shape.place_uses}
        places = self.state.places
        for port, use in self.shape.port_uses:
            bound, out = self.placed.bindings[port]
            if bound < 0 or not use.accesses:
                continue
            for place, tenant in self.storage.ports.places(bound, out):
                if tenant is not None and (place not in places or places[place].tenant != tenant):
                    what = f"{place_text(place)} is read after another tenant has taken it"
                    raise self._refuse("race", what, (use.accesses[0].local,))
                by_place.setdefault(place, []).append(use)
        for place, uses in by_place.items():
            slot, what = isinstance(place, str), place_text(place)
            use = uses[0] if len(uses) == 1 else self._merge(uses, what, tenanted=slot)
            last = places.get(place, EMPTY)
            self._hold(last, use, what)
            places[place] = self._next(last, use)

    def _hold(self, last: Last, use: Use, what: str) -> None:
        """Raise unless everything the use's first accesses conflict with is finished before them."""
        if last.writer is not None:
            for local in (*use.first_reads, use.first_write, use.free):
                if local >= 0 and not self.after(last.writer, local):
                    raise self._against(last.writer, local, f"{what} is written, then used, and nothing orders the two")
        for local, does in ((use.first_write, "overwritten"), (use.free, "freed")):
            if local >= 0:
                for point in last.reads:
                    if not self.after(point, local):
                        raise self._against(
                            point, local, f"{what} is {does} while it may still be read", does == "freed"
                        )

    def _next(self, last: Last, use: Use) -> Last:
        """The state behind a use."""
        order, base = self.order, self.base
        reads = [(s, base[s] + order.position[local]) for s, local in use.last_reads]
        if use.last_write >= 0:
            tenant = (self.storage.call, use.tenant) if use.tenant >= 0 else last.tenant
            return Last(self.point(use.last_write), tuple(sorted(reads)), tenant)
        return Last(last.writer, tuple(sorted((dict(last.reads) | dict(reads)).items())), last.tenant)

    # --- afterwards -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        state, shape, here = self.state, self.shape, self.storage.call
        ends = {local: self.ended(local) for _, local in shape.tails}
        wanted = self.storage.ports.wanted[self.placed.block]
        if wanted:
            outs = self.storage.program.blocks[self.placed.block].ports_out
            doors = {}
            for out in wanted:
                local = outs[out].instruction
                if local not in ends:
                    ends[local] = self.ended(local)
                doors[out] = ends[local]
            state.doors[here] = doors
        host = tuple(map(max, state.host, self.ended(shape.sync))) if shape.sync >= 0 else state.host
        left = frozenset(ref for ref, use in shape.exports.items() if use.free < 0)
        if left:
            state.alive[here] = left
        for ref, use in shape.exports.items():
            if (self.placed.block, ref) in self.storage.ports.shared:
                state.buffers[here, ref] = self._next(EMPTY, use)
        for stream, local in shape.tails:
            state.tails[stream] = ends[local]
        state.host = host
        state.counts = tuple(map(int.__add__, state.counts, shape.counts))

    # --- refusing -------------------------------------------------------------------------------------------------------

    def _what(self, owner: Owner) -> str:
        block = self.storage.program.blocks[self.storage.program.calls[owner[0]].block]
        return f"buffer {owner[1]} ({block.buffers[owner[1]].what}) of {block.name}"

    def _refuse(self, proof: Proof, reason: str, locals_: tuple[int, ...]) -> ProofError:
        return self.storage.error(proof, reason, [self.storage.name(local) for local in locals_])

    def _against(self, point: Point, local: int, reason: str, freed: bool = False) -> ProofError:
        named = [self.storage.at(point), self.storage.name(local)]
        return self.storage.error("memory" if freed else "race", reason, named)
