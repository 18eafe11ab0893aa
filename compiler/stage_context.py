"""What a pipeline stage holds: its units and their recompute, its parameters, fixed slots, rank-wide names."""

from __future__ import annotations

from compiler.chunk import StageNames
from compiler.edges import Edges
from compiler.parameters import Parameters, lay_out, unit_params
from compiler.recompute import UnitPlan, share_saved, unit_plan
from compiler.shards import Shards
from compiler.slot_allocator import SlotAllocator
from compiler.units import HEAD, TABLE, AdamNumbers, UnitShape, embedding, head, layer
from plan.implementations import engine
from plan.model import Model
from plan.parallel import Plan
from plan.pipeline import Slot
from program import Buffer, Param, Phase, Stream
from program.lines import Lines

Units = tuple[tuple[int, ...], ...]  # units of each chunk


def _halved(chunk: list[UnitPlan]) -> bool:
    """Whether a chunk's backward computes in both halves."""
    computed = [part for plan in chunk for part in plan.unit.backward if isinstance(part, Lines)]
    return len({part.phase == "W" for part in computed}) == 2


class StageContext:
    """One stage of `model` under `plan`. `batched`: transfers are paired, and share one stream for each neighbour."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        optimizer: AdamNumbers,
        e: UnitShape,
        units: Units,
        slots: tuple[Slot, ...],
        stage: int,
        batched: bool,
    ) -> None:
        self.model, self.plan, self.optimizer, self.e = model, plan, optimizer, e
        self.units, self.stage, self.batched, self.slots = units, stage, batched, slots
        self._last = {slot.chunk: i for i, slot in enumerate(slots) if slot.phase in ("B", "W")}
        self.allocator = SlotAllocator()
        self.edges = Edges(e, plan, self.allocator)
        self.here = {u for chunk in units for u in chunk}
        self.chunks = [[self._unit_plan(u, i) for i, u in enumerate(chunk)] for chunk in units]
        self.halved = [_halved(chunk) for chunk in self.chunks]
        self.parameters = self._parameters()
        self.shards = Shards(plan, self.parameters, self.allocator, self.chunks)
        self.scalars = len(self.parameters.buffers)  # loss, then stats
        fixed = (*self.parameters.buffers, *self._numbers())
        self.fixed = (*fixed, *self._tables())
        self.names = StageNames(
            self.parameters.weight_ref,
            self.parameters.fresh_ref,
            self.scalars,
            {table.what: len(fixed) + i for i, table in enumerate(self.fixed[len(fixed) :])},
            {p.name: p.bucket for p in self.parameters.params},
        )

    # --- where the stage stands

    def first(self, chunk: int) -> bool:
        """Whether a chunk begins with the embedding: nothing is received."""
        return self.stage == 0 and chunk == 0

    def last(self, chunk: int) -> bool:
        """Whether a chunk ends with the head: nothing is sent on."""
        return self.stage == self.plan.pipeline_parallel - 1 and chunk == self.plan.virtual_pipeline - 1

    def has_head(self) -> bool:
        """Whether the loss is computed here."""
        return self.model.layers + 1 in self.here

    def last_backwards(self) -> list[int]:
        """Chunks in the order in which they run their last backward."""
        return sorted(self._last, key=lambda c: self._last[c])

    def arrival(self, backward: bool) -> Stream:
        """The stream on which an input (or a gradient) arrives. Batched transfers share one for each neighbour."""
        if self.batched:
            return "send_fwd" if backward else "send_bwd"
        return "recv_bwd" if backward else "recv_fwd"

    # --- halves of the backward

    def phase(self, slot: Slot) -> str:
        """The block of a slot: a backward that has one half only is run whole where the input half stands."""
        if self.halved[slot.chunk] or slot.phase in ("F", "B"):
            return slot.phase
        return "B" if slot.phase == "I" else ""

    def closing(self, slots: tuple[Slot, ...]) -> dict[Slot, str]:
        """The slots that make the last input half (I), the last weight half (W) of a chunk's gradients, or both."""
        found: dict[Slot, str] = {}
        for half in "IW":
            for slot in {s.chunk: s for s in slots if self.phase(s) in ("B", half)}.values():
                found[slot] = found.get(slot, "") + half
        return {slot: found[slot] for slot in slots if slot in found}

    def form(self, slot: Slot, closes: str) -> str:
        """The name of the block of a backward slot that closes these halves."""
        phase = self.phase(slot)
        last = f".last{closes if phase == 'B' and closes != 'IW' else ''}" if closes else ""
        return f"{phase}{slot.chunk}{last}"

    # --- units and parameters

    def _unit_plan(self, number: int, position: int) -> UnitPlan:
        if number == 0:
            return unit_plan(embedding(self.e), 0, "none")
        if number == self.model.layers + 1:
            return unit_plan(head(self.e, TABLE if self._tied_here() else HEAD), number, "none")
        recompute = self.plan.recompute
        if recompute == "layers":
            recompute = "full" if position < self.plan.recompute_layers + (0 in self.units[0]) else "none"
        unit = layer(self.e, number, cut=recompute == "selective")
        made = unit_plan(unit, number, recompute, whole=engine(self.plan).recomputes_whole)
        shared = self.plan.partition_activations and recompute == "full"
        return share_saved(made, self.plan.tensor_parallel) if shared else made

    def _tied_here(self) -> bool:
        return self.model.tied_embeddings and 0 in self.here

    def params_of(self, unit: int) -> list[Param]:
        """A unit's parameters."""
        plan = next(plan for chunk in self.chunks for plan in chunk if plan.number == unit)
        return unit_params(self.model, self.plan, plan.unit, self._tied_here())

    def _parameters(self) -> Parameters:
        order = [self.params_of(unit) for chunk in self.last_backwards() for unit in reversed(self.units[chunk])]
        return lay_out(order, self.model, self.plan, first_stage=0 in self.here)

    def buckets_read(self, chunk: int, phase: Phase) -> list[int]:
        """Buckets of the whole parameters that a chunk's forward (or backward) reads, in order."""
        units = [plan.unit for plan in self.chunks[chunk]]
        steps = [step for unit in units for step in (unit.forward if phase == "F" else unit.backward)]
        params = [n[2:] for step in steps for n in step.reads if n.startswith("w:")]
        found = dict.fromkeys(self.names.bucket_of[p] for p in params)
        return [b for b in found if not self.parameters.buckets[b].weights_sharded]

    def buffers(self) -> tuple[Buffer, ...]:
        """Rank-wide buffers: flats and views, loss and stats, constant tables, fixed slots."""
        return (*self.fixed, *self.allocator.buffers())

    def _numbers(self) -> tuple[Buffer, ...]:
        """The running loss, the statistics of a step, and these on the host where it steps."""
        scalars = (Buffer((1,), self.e.stat, "work", "loss"), Buffer((2,), self.e.stat, "work", "stats"))
        hosted = self.plan.offload.optimizer != "none"
        host = (Buffer((2,), self.e.stat, "host", "stats on the host"),) if hosted else ()
        return (*scalars, *host)

    def _tables(self) -> tuple[Buffer, ...]:
        """Constant tables that units read, each once."""
        units = [plan.unit for chunk in self.chunks for plan in chunk]
        names = ((n, u) for u in units for part in (*u.forward, *u.backward) for n in part.reads)
        read = {n: u.tensors[n] for n, u in names if n.startswith("c:")}
        return tuple(Buffer(t.dims, t.dtype, t.pool, name, make=t.make) for name, t in read.items())
