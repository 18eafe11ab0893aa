"""Races, reuse, leaks and the closing of the step for one rank class: exact vector clocks, one step a call.

`program.proofs.blocks` has proved what happens inside a block. Here a call is one step (`program.proofs.step`): its
in-ports and streams get real clocks, the first accesses of every storage it shares are held against the last ones
before it, and its own last ones become the storage's state. A storage is an allocator buffer (call, local id), a slot,
or an atom of a rank-wide buffer. Steady states are skipped (`program.proofs.state`).

Host order is the meaning of the program: a read must see the write before it in host order. So it suffices that every
two conflicting accesses are ordered as the host issues them; allocator buffers that compute alone touches are, by its
own order.
"""

from __future__ import annotations

from program.proofs.error import Named
from program.proofs.period import Run
from program.proofs.state import Shift, State
from program.proofs.step import Step
from program.proofs.subject import Subject


class Storage:
    """The proof of one class; `run` may be skipped through (None: every call is stepped)."""

    def __init__(self, subject: Subject, run: Run | None) -> None:
        self.subject, self.run = subject, run
        self._snapshot: tuple[int, State] | None = None

    def prove(self) -> None:
        """Raises ProofError for the first call (in host order) that breaks a rule, then for a leak, then for a step
        left open.
        """
        while self.subject.call < len(self.subject.program.calls):
            if self.run is not None:
                self._try_skip(self.run)
            Step(self.subject).take()
            self.subject.call += 1
        self._prove_freed()
        self._prove_closed()

    def _try_skip(self, run: Run) -> None:
        here = self.subject.call
        if here < run.start + run.reach or (here - run.start) % run.period or here + run.period > run.end:
            return
        if self._snapshot is not None and self._snapshot[0] == here - run.period:
            shift = Shift(self._snapshot[1], self.subject.state, here, run)
            if shift.repeats():
                times = (run.end - here) // run.period
                self.subject.state = shift.moved(times)
                self.subject.call += times * run.period
                self.run = None
                return
        self._snapshot = (here, self.subject.state.copy())

    def _prove_freed(self) -> None:
        for call, refs in sorted(self.subject.state.alive.items()):
            block = self.subject.program.blocks[self.subject.program.calls[call].block]
            ref = min(refs)
            writer = next(i for i, instruction in enumerate(block.instructions) if ref in instruction.writes)
            reason = f"buffer {ref} ({block.buffers[ref].what}) of {block.name} is never freed"
            raise self.subject.error("memory", reason, [self.subject.name(writer, call)])

    def _prove_closed(self) -> None:
        state = self.subject.state
        for stream, (known, count) in enumerate(zip(state.host, state.counts, strict=True)):
            if known < count:
                named = [self.subject.at((stream, known + 1)), *self._last_sync()]
                reason = "the step can end while an instruction still runs: the last host_sync is not ordered after it"
                raise self.subject.error("close", reason, named)

    def _last_sync(self) -> list[Named]:
        for call in range(len(self.subject.program.calls) - 1, -1, -1):
            sync = self.subject.shapes[self.subject.program.calls[call].block].sync
            if sync >= 0:
                return [self.subject.name(sync, call)]
        return []
