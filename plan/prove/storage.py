"""Races, reuse, leaks and the closing of the step for one rank class: exact vector clocks, one step a call.

`plan.prove.blocks` has proved what happens inside a block. Here a call is one step (`plan.prove.step`): its in-ports
and streams get real clocks, the first accesses of every storage it shares are held against the last ones before it,
and its own last ones become the storage's state. A storage is an allocator buffer (call, local id), a slot, or an atom
of a rank-wide buffer. Steady states are skipped (`plan.prove.state`).

Host order is the meaning of the program: a read must see the write before it in host order. So it suffices that every
two conflicting accesses are ordered as the host issues them; allocator buffers that compute alone touches are, by its
own order.
"""

from __future__ import annotations

from collections.abc import Iterable

from plan.program import RankProgram
from plan.prove.blocks import Shape
from plan.prove.error import Named, Proof, ProofError, name, on_stream
from plan.prove.period import Run
from plan.prove.ports import Ports
from plan.prove.state import Point, Shift, State
from plan.prove.step import Step


class Storage:
    """The proof of one class.

    `shapes[b]`, `shape_of[b]` and `slots[b]` are the shape, its number and the slots of `program.blocks[b]`; `run` may
    be skipped through (None: every call is stepped).
    """

    def __init__(
        self,
        program: RankProgram,
        class_: int,
        shapes: list[Shape],
        shape_of: list[int],
        slots: list[tuple[str, ...]],
        ports: Ports,
        run: Run | None,
    ) -> None:
        self.program, self.class_, self.shapes, self.shape_of = program, class_, shapes, shape_of
        self.slots, self.ports, self.run = slots, ports, run
        self.shape_by_number = dict(zip(shape_of, shapes, strict=True))
        self.state = State()
        self.call = 0
        self._snapshot: tuple[int, State] | None = None

    def prove(self) -> None:
        """Raises ProofError for the first call (in host order) that breaks a rule, then for a leak, then for a step
        left open.
        """
        while self.call < len(self.program.calls):
            if self.run is not None:
                self._try_skip(self.run)
            Step(self).take()
            self.call += 1
        self._prove_freed()
        self._prove_closed()

    def _try_skip(self, run: Run) -> None:
        here = self.call
        if here < run.start + run.reach or (here - run.start) % run.period or here + run.period > run.end:
            return
        if self._snapshot is not None and self._snapshot[0] == here - run.period:
            shift = Shift(self._snapshot[1], self.state, here, run)
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
            reason = f"buffer {ref} ({block.buffers[ref].what}) of {block.name} is never freed"
            raise self.error("memory", reason, [self.name(writer, call)])

    def _prove_closed(self) -> None:
        state = self.state
        for stream, (known, count) in enumerate(zip(state.host, state.counts, strict=True)):
            if known < count:
                named = [self.at((stream, known + 1)), *self._last_sync()]
                reason = "the step can end while an instruction still runs: the last host_sync is not ordered after it"
                raise self.error("close", reason, named)

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
