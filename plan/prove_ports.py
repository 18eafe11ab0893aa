"""How calls of a rank class are wired: bindings point backwards, both sides of a port agree, and whose storage a port
brings.
"""

from __future__ import annotations

from plan.program import Buffer, RankProgram
from plan.prove_blocks import Atoms, Place, Shape
from plan.prove_error import ProofError, name
from plan.prove_state import Owner

Wire = tuple[int, int, int, int]  # consumer's block and in-port, producer's block and out-port
Kind = tuple[str, int, tuple[Place, ...]]  # own | slot | wide | forward | token; reference or in-port; places


class Ports:
    """The wiring of one class. Raises ProofError (memory, deadlock) when it does not fit.

    `wanted[block]`: out-ports whose instruction some call waits for. `shared`: (block, buffer) handed out that some
    stream other than compute touches: only these need clocks.
    """

    def __init__(self, program: RankProgram, class_: int, shapes: list[Shape], atoms: Atoms) -> None:
        self.program, self.class_, self.shapes, self.atoms = program, class_, shapes, atoms
        self.kinds = [[self._kind(b, out.buffer) for out in block.ports_out] for b, block in enumerate(program.blocks)]
        wires = self._wires()
        for wire, call in wires.items():
            self._check(wire, call)
        self.wanted: list[set[int]] = [set() for _ in shapes]
        for block, port, source, out in wires:
            if port in shapes[block].waited_ports:
                self.wanted[source].add(out)
        self.shared = self._shared(wires)

    def _wires(self) -> dict[Wire, int]:
        """Every distinct wire, with the first call that uses it."""
        blocks = [call.block for call in self.program.calls]
        seen: dict[tuple[object, ...], int] = {}
        wires: dict[Wire, int] = {}
        for here, call in enumerate(self.program.calls):
            sources = tuple([(blocks[bound], out) if bound >= 0 else None for bound, out in call.bindings])
            if any(bound >= here for bound, _ in call.bindings):
                self._refuse_forward(here)
            if seen.setdefault((call.block, sources), here) == here:
                for port, source in enumerate(sources):
                    if source is not None:
                        wires.setdefault((call.block, port, *source), here)
        return wires

    def _refuse_forward(self, here: int) -> None:
        call = self.program.calls[here]
        port = next(k for k, (bound, _) in enumerate(call.bindings) if bound >= here)
        named = self.program.blocks[call.block].ports_in[port].name
        reason = (
            f"in-port {named} of call {here} is bound to call {call.bindings[port][0]}, which is not issued before it"
        )
        raise ProofError("deadlock", reason, [name(self.program, self.class_, here, 0)])

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
            ref = self.program.blocks[source].ports_out[out].buffer
            if ref is None or ref < 0:
                continue
            port = self.shapes[source].port_of.get(ref)
            if port is None:
                shared.add((source, ref))
                continue
            more = {(w[2], w[3]) for w in wires if w[:2] == (source, port)} - seen
            seen |= more
            todo += more
        return shared

    # --- whose storage --------------------------------------------------------------------------------------------------

    def _kind(self, block: int, ref: int | None) -> Kind:
        if ref is None:
            return "token", 0, ()
        if ref in self.shapes[block].port_of:
            return "forward", self.shapes[block].port_of[ref], ()
        places = self.atoms.places(self.program.blocks[block], ref)
        if ref >= 0 and self.program.blocks[block].buffers[ref].slot is not None:
            return "slot", ref, places
        if ref < 0 or self.program.blocks[block].buffers[ref].base is not None:
            return "wide", ref, places
        return "own", ref, ()

    def _resolve(self, call: int, out: int) -> tuple[int, Kind]:
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

    def owner(self, call: int, out: int) -> Owner | None:
        """The allocator buffer behind an out-port, or None when it is something else."""
        call, kind = self._resolve(call, out)
        return (call, kind[1]) if kind[0] == "own" else None

    def places(self, call: int, out: int) -> list[tuple[Place, Owner | None]]:
        """The slot behind an out-port, with the tenant that must hold it, or the rank-wide atoms."""
        call, (kind, ref, places) = self._resolve(call, out)
        return [(place, (call, ref) if kind == "slot" else None) for place in places]
