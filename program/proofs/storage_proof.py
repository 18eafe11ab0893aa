"""Races, reuse, leaks and the closing of the step for one rank class: exact vector clocks, one step a call.

`program.proofs.blocks` has proved what happens inside a block. Here a call is one step (`program.proofs.call_step`):
its in-ports and streams get real clocks, the first accesses of every storage it shares are held against the last ones
before it, and its own last ones become the storage's state. A storage is an allocator buffer (call, local id), a slot,
or an region of a rank-wide buffer. Steady states are skipped (`program.proofs.state`).

Host order is the meaning of the program: a read must see the write before it in host order. So it suffices that every
two conflicting accesses are ordered as the host issues them; allocator buffers that compute alone touches are, by its
own order.
"""

from __future__ import annotations

from program.proofs.call_step import Step
from program.proofs.error import Named
from program.proofs.stage_under_proof import StageUnderProof
from program.proofs.state import Shift, State
from program.proofs.steady_state import SteadyState


class Storage:
    """The proof of one class; `steady` may be skipped through (None: every call is stepped)."""

    def __init__(self, under_proof: StageUnderProof, steady: SteadyState | None) -> None:
        self.under_proof, self.steady = under_proof, steady
        self._snapshot: tuple[int, State] | None = None

    def prove(self) -> None:
        """Raises ProofError for the first call (in host order) that breaks a rule, then for a leak, then for a step
        left open.
        """
        while self.under_proof.call < len(self.under_proof.program.calls):
            if self.steady is not None:
                self._try_skip(self.steady)
            Step(self.under_proof).take()
            self.under_proof.call += 1
        self._prove_freed()
        self._prove_closed()

    def _try_skip(self, steady: SteadyState) -> None:
        here = self.under_proof.call
        if (
            here < steady.start + steady.reach
            or (here - steady.start) % steady.period
            or here + steady.period > steady.end
        ):
            return
        if self._snapshot is not None and self._snapshot[0] == here - steady.period:
            shift = Shift(self._snapshot[1], self.under_proof.state, here, steady)
            if shift.repeats():
                times = (steady.end - here) // steady.period
                self.under_proof.state = shift.moved(times)
                self.under_proof.call += times * steady.period
                self.steady = None
                return
        self._snapshot = (here, self.under_proof.state.copy())

    def _prove_freed(self) -> None:
        for call, refs in sorted(self.under_proof.state.alive.items()):
            block = self.under_proof.program.blocks[self.under_proof.program.calls[call].block]
            ref = min(refs)
            writer = next(i for i, instruction in enumerate(block.instructions) if ref in instruction.writes)
            reason = f"buffer {ref} ({block.buffers[ref].what}) of {block.name} is never freed"
            raise self.under_proof.error("memory", reason, [self.under_proof.name(writer, call)])

    def _prove_closed(self) -> None:
        state = self.under_proof.state
        for stream, (known, count) in enumerate(zip(state.host, state.counts, strict=True)):
            if known < count:
                named = [self.under_proof.at((stream, known + 1)), *self._last_sync()]
                reason = "the step can end while an instruction still runs: the last host_sync is not ordered after it"
                raise self.under_proof.error("close", reason, named)

    def _last_sync(self) -> list[Named]:
        for call in range(len(self.under_proof.program.calls) - 1, -1, -1):
            sync = self.under_proof.shapes[self.under_proof.program.calls[call].block].sync
            if sync >= 0:
                return [self.under_proof.name(sync, call)]
        return []
