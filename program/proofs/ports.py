"""How calls of a rank class are wired: bindings point backwards, both sides of a port agree, and whose storage a port
brings.

Most ports bring activations that compute made and compute alone uses. Their order needs no proof, only that they are
alive and freed once: a call's *sheet* sorts its ports into those, gathered by the call they come from, and the few
that need clocks. Calls with the same key and the same blocks behind it share a sheet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from program import Buffer, RankProgram
from program.proofs.blocks import Shape
from program.proofs.error import ProofError, name
from program.proofs.places import Place, StorageRegions
from program.proofs.steady_state import CallSequence
from program.proofs.uses import Use

Wire = tuple[int, int, int, int]  # consumer's block and in-port, producer's block and out-port
Kind = tuple[str, int, tuple[Place, ...]]  # own | slot | wide | forward | token; reference or in-port; places


@dataclass(frozen=True, slots=True)
class Sheet:
    """`simple`: (calls back, buffers that must be alive, those of them that are freed); `careful`: ports that need
    clocks.
    """

    simple: tuple[tuple[int, frozenset[int], frozenset[int]], ...]
    careful: tuple[tuple[int, Use], ...]


class Ports:
    """The wiring of one class. Raises ProofError (memory, deadlock) when it does not fit.

    `wanted[block]`: out-ports whose instruction some call waits for. `shared`: (block, buffer) handed out that some
    stream other than compute touches: only these need clocks. `sheets[call]`: the call's sheet.
    """

    def __init__(
        self, program: RankProgram, class_: int, shapes: list[Shape], regions: StorageRegions, sequence: CallSequence
    ) -> None:
        self.program, self.class_, self.shapes, self.regions, self.sequence = program, class_, shapes, regions, sequence
        self._check_backwards()
        self.kinds = [self._kinds(block) for block in range(len(program.blocks))]
        keys, firsts = self._keys()
        wires = self._wires(firsts)
        for wire, call in wires.items():
            self._check(wire, call)
        self.wanted: list[set[int]] = [set() for _ in shapes]
        for block, port, source, out in wires:
            if port in shapes[block].waited_ports:
                self.wanted[source].add(out)
        self.shared = self._shared(wires)
        made = [self._sheet(call) for call in firsts]
        self.sheets = [made[key] for key in keys]

    def _check_backwards(self) -> None:
        """A call may only be bound to calls issued before it."""
        for key, (_, back) in enumerate(self.sequence.distinct):
            if any(distance is not None and distance <= 0 for distance in back):
                here = self.sequence.keys.index(key)
                bindings = self.program.calls[here].bindings
                port = next(k for k, (bound, _) in enumerate(bindings) if bound >= here)
                named = self.program.blocks[self.program.calls[here].block].ports_in[port].name
                reason = f"in-port {named} of call {here} is bound to call {bindings[port][0]}, not issued before it"
                raise ProofError("deadlock", reason, [name(self.program, self.class_, here, 0)])

    def _keys(self) -> tuple[list[int], list[int]]:
        """For every call the number of its (pattern, blocks behind it), and the first call of each number."""
        blocks = [call.block for call in self.program.calls]
        distinct = self.sequence.distinct
        numbers: dict[tuple[int, ...], int] = {}
        keys: list[int] = []
        firsts: list[int] = []
        for here, call_key in enumerate(self.sequence.keys):
            pattern, back = distinct[call_key]
            key = (pattern, blocks[here], *[-1 if d is None else blocks[here - d] for d in back])
            number = numbers.setdefault(key, len(firsts))
            if number == len(firsts):
                firsts.append(here)
            keys.append(number)
        return keys, firsts

    def _wires(self, firsts: list[int]) -> dict[Wire, int]:
        """Every distinct wire, with the first call that uses it."""
        wires: dict[Wire, int] = {}
        for here in firsts:
            call = self.program.calls[here]
            for port, (bound, out) in enumerate(call.bindings):
                if bound >= 0:
                    wires.setdefault((call.block, port, self.program.calls[bound].block, out), here)
        return wires

    def _check(self, wire: Wire, call: int) -> None:
        block, port, source, out = wire
        declared = self.program.blocks[block].ports_in[port]
        if declared.buffer is None:
            return
        taken = self.program.blocks[block].buffers[declared.buffer]
        given = self._given(source, out)
        if given is None:
            reason = f"in-port {declared.name} takes a buffer but is bound to a token"
        elif (given.shape, given.dtype) != (taken.shape, taken.dtype):
            reason = f"in-port {declared.name} takes {taken.shape} {taken.dtype} but gets {given.shape} {given.dtype}"
        else:
            return
        raise ProofError("memory", reason, [name(self.program, self.class_, call, 0)])

    def _given(self, source: int, out: int) -> Buffer | None:
        ref = self.program.blocks[source].ports_out[out].buffer
        if ref is None:
            return None
        return self.program.buffers[-1 - ref] if ref < 0 else self.program.blocks[source].buffers[ref]

    def _shared(self, wires: dict[Wire, int]) -> set[tuple[int, int]]:
        shared = {(b, ref) for b, shape in enumerate(self.shapes) for ref, use in shape.exports.items() if not use.solo}
        uses = [dict(shape.port_uses) for shape in self.shapes]
        todo = [
            (source, out) for block, port, source, out in wires if port in uses[block] and not uses[block][port].solo
        ]
        seen = set(todo)
        while todo:
            source, out = todo.pop()
            kind, ref, _ = self.kinds[source][out]
            if kind == "own":
                shared.add((source, ref))
            elif kind == "forward":
                more = {(w[2], w[3]) for w in wires if w[:2] == (source, ref)} - seen
                seen |= more
                todo += more
        return shared

    def _sheet(self, here: int) -> Sheet:
        call = self.program.calls[here]
        looks_at = self.sequence.patterns[self.sequence.distinct[self.sequence.keys[here]][0]][1]
        owners: dict[int, tuple[int, int]] = {}  # port -> which call, and its buffer that compute alone touches
        uses = [(port, use) for port, use in self.shapes[call.block].port_uses if use.accesses or use.free >= 0]
        for port, _ in uses:
            bound, out = call.bindings[port]
            if bound >= 0:
                block = self.program.calls[bound].block
                kind, ref, _ = self.kinds[block][out]
                if kind == "own" and (block, ref) not in self.shared:
                    owners[port] = (looks_at[port], ref)
        often = Counter(owners.values())
        needs: dict[int, set[int]] = {}
        frees: dict[int, set[int]] = {}
        careful = []
        for port, use in uses:
            owner = owners.get(port)
            if owner is not None and often[owner] == 1:
                needs.setdefault(owner[0], set()).add(owner[1])
                if use.free >= 0:
                    frees.setdefault(owner[0], set()).add(owner[1])
            elif use.accesses or call.bindings[port][0] >= 0:
                careful.append((port, use))
        simple = tuple((which, frozenset(refs), frozenset(frees.get(which, ()))) for which, refs in needs.items())
        return Sheet(simple, tuple(careful))

    def _kinds(self, block: int) -> list[Kind]:
        """What each out-port of a block hands out."""
        declared, ports = self.program.blocks[block], self.shapes[block].port_of
        places = self.regions.local_places(declared)
        kinds: list[Kind] = []
        for out in declared.ports_out:
            ref = out.buffer
            if ref is None:
                kinds.append(("token", 0, ()))
            elif ref < 0:
                kinds.append(("wide", ref, self.regions.wide[-1 - ref]))
            elif ref in ports:
                kinds.append(("forward", ports[ref], ()))
            elif declared.buffers[ref].slot is not None:
                kinds.append(("slot", ref, places[ref]))
            else:
                kinds.append(("own" if declared.buffers[ref].base is None else "wide", ref, places[ref]))
        return kinds

    def source(self, call: int, out: int) -> tuple[int, Kind]:
        """What stands behind an out-port, through the ports of the calls it came by (call -1: nothing)."""
        placed = self.program.calls[call]
        kind = self.kinds[placed.block][out]
        while kind[0] == "forward":
            call, out = placed.bindings[kind[1]]
            if call < 0:
                return -1, ("token", 0, ())
            placed = self.program.calls[call]
            kind = self.kinds[placed.block][out]
        return call, kind
