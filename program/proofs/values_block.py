"""What a block does to values, wherever it is called: what it asks of its in-ports, what its buffers hold at the end,
and what it does to parameters, gradients and neighbours, in order.

Every value of a block belongs to the micro-batch of the call. Buffers hold (identity, placement) as the instructions
declare (`program.declared`): a read asks for both, a write leaves both. A collective takes a value from one placement
to another. What declares nothing has a meaning by its kind: gathers of partitioned weights, reductions of partitioned
gradients, and what is done once a step (`program.proofs.values_step`).
"""

from __future__ import annotations

from typing import Any

from program import Block, Bucket, Buffer, Comm, Instruction, Param, RankProgram, numel, rank_wide, tenant_of
from program.declared import SHARE, Value, identity, parameter
from program.proofs.values_bodies import body_fault, made_afresh
from program.proofs.values_sheet import Event, HeldValue, Misheld, Part, Sheet

TRANSFERS = ("send", "recv", "exchange")
BECOMES = {
    ("all_reduce", "sum", "P+"): ("R",),
    ("all_reduce", "max", "Pmax"): ("R",),
    ("all_gather", "", "S0"): ("R",),
    ("all_gather", "", SHARE): ("R",),
    ("reduce_scatter", "sum", "P+"): ("S0",),
}


class Reader:
    """Reads the blocks of one class."""

    def __init__(self, stage: RankProgram) -> None:
        self.stage = stage
        self.params = {param.name: param for param in stage.params}
        self.weights = {rank_wide(b.weight_buffer): b for b in stage.buckets if b.weights_sharded}
        self.fresh: dict[int, int] = {}  # a flat of fresh gradients -> bucket

    def read(self, block: Block) -> Sheet:
        """The sheet of a block. Raises Misheld."""
        return _Reading(self, block).sheet()


class _Reading:
    def __init__(self, reader: Reader, block: Block) -> None:
        self.reader, self.stage, self.block = reader, reader.stage, block
        self.port_of = {port.buffer: k for k, port in enumerate(block.ports_in) if port.buffer is not None}
        outs = (port.buffer for port in block.ports_out)
        self.done = Sheet(self.port_of, tuple(None if ref is None or ref < 0 else ref for ref in outs))
        self.seen = {*self.port_of, *self.done.outs}
        self.now: dict[int, HeldValue] = {}
        self.gathered: set[tuple[int, int, int]] = set()  # tenant, first element, bucket
        self.staged: dict[int, int] = {}  # slot's tenant -> bucket
        self.parts: dict[int, list[tuple[int, Part]]] = {}  # tenant -> (where its bucket begins, part)
        self.clear: dict[int, list[tuple[int, int]]] = {}  # tenant -> stretches that hold sums or zeros
        self.reduced: dict[int, tuple[int, tuple[Part, ...]]] = {}  # buffer -> bucket, parts
        self.local = 0

    def sheet(self) -> Sheet:
        for local, instruction in enumerate(self.block.instructions):
            self.local = local
            if instruction.values is not None:
                self._declared(instruction)
                continue
            fault = body_fault(self.stage, instruction, tuple(self._buffer(ref) for ref in instruction.writes))
            self._need(fault is None, str(fault))
            if instruction.phase == "step" or instruction.kind == "ACC":
                self._note("step", instruction)
            else:
                self._by_kind(instruction)
        for tenant, parts in self.parts.items():
            self._need(not parts, f"gradients in {self.block.buffers[tenant].what} are never reduced")
        self._need(not self.reduced, "a reduced gradient is never added to its shard")
        return self.done

    def _need(self, holds: bool, reason: str) -> None:
        if not holds:
            raise Misheld(reason, self.local)

    def _note(self, what: str, about: Any) -> None:
        self.done.events.append(Event(what, self.local, about))

    # --- what declares its values

    def _declared(self, i: Instruction) -> None:
        values = i.values
        assert values is not None
        fits = len(values.reads) == len(i.reads) and len(values.writes) == len(i.writes)
        self._need(fits, f"it declares {len(values.reads)} reads and {len(values.writes)} writes, and has others")
        for value, ref in zip(values.reads, i.reads, strict=True):
            if ":" not in value.name:
                self._ask(HeldValue(identity(value.name, i.unit), value.at), ref)
            elif value.name[0] == "w":
                self._weight(parameter(value.name, i.unit), ref)
            elif value.name[0] == "c":
                table = self._buffer(ref)
                there = ref < 0 and table.make is not None and table.what == value.name
                self._need(there, f"the table {value.name[2:]} is asked for in {table.what}")
        if i.comm is not None:
            self._communicate(i, i.comm, values.reads, values.writes)
        else:
            self._need(i.lines is not None and i.lines.calls == i.body, "what is priced is not what it computes")
            self._in_place(i, values.reads, values.writes)
            if i.kind == "LOAD":  # targets are the tokens that come next
                shifts = [(line[0], dict(line[3]).get("shift")) for line in (i.lines.lines if i.lines else ())]
                self._need(shifts == [("load", int(i.piece == "targets"))], f"it does not load {i.piece}")
                self._need([value.name for value in values.writes] == [i.piece], f"{i.piece} is loaded as another")
        for value, ref in zip(values.writes, i.writes, strict=True):
            if ":" not in value.name:
                self._leave(HeldValue(identity(value.name, i.unit), value.at), ref)
            elif value.name[0] == "g":
                self._gradient(i, value, ref)
            else:
                self._need(
                    ref < 0 and self.stage.buffers[-1 - ref].what == "loss", "the loss is added to something else"
                )
                self._note("loss", (i.unit, i.piece, i.kind))

    def _ask(self, wanted: HeldValue, ref: int) -> None:
        found = self.now.get(ref)
        if found is None:
            if ref < 0 or self.block.buffers[ref].base is not None:
                raise Misheld(f"{wanted} is asked for in a rank-wide buffer", self.local)
            if ref not in self.port_of:
                raise Misheld(f"{wanted} is asked for; the buffer holds nothing yet", self.local)
            self.done.asked.append((self.port_of[ref], wanted, self.local))
            self.now[ref] = wanted
        elif found != wanted:
            raise Misheld(f"{wanted} is asked for; the buffer holds {found}", self.local)

    def _leave(self, held: HeldValue, ref: int) -> None:
        if ref < 0 or self.block.buffers[ref].base is not None:
            raise Misheld(f"{held} is written to a rank-wide buffer", self.local)
        self.now[ref] = held
        if ref in self.seen:
            self.done.held[ref] = held

    def _in_place(self, i: Instruction, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> None:
        """A tensor that lines change is the one they read; what they make is none of those."""
        assert i.lines is not None
        made = len(i.lines.results)
        places = {value.name.partition("'")[0]: ref for value, ref in zip(reads, i.reads, strict=True)}
        for value, ref in zip(writes[made:], i.writes[made:], strict=True):
            same = places.get(value.name.partition("'")[0], ref) == ref and ref in i.reads
            self._need(same, f"{value.name} is changed in place, but is not where it is read")
        self._need(not set(i.writes[:made]) & set(i.reads), "a result takes the place of what it is made from")
        given = len(i.reads) == i.lines.arguments
        self._need(given, f"its lines take {i.lines.arguments} tensors; it reads {len(i.reads)}")

    def _communicate(self, i: Instruction, comm: Comm, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> None:
        if comm.op in TRANSFERS:
            counts = {"send": (1, 0), "recv": (0, 1)}.get(comm.op, (1, 1))
            self._need((len(reads), len(writes)) == counts, f"it is no {comm.op}")
            for value in reads:
                self._note("send", (comm, HeldValue(identity(value.name, i.unit), value.at)))
            for value, ref in zip(writes, i.writes, strict=True):
                self._note("receive", (comm, ref, HeldValue(identity(value.name, i.unit), value.at)))
            return
        self._need(len(reads) == len(writes) == 1, "it communicates several values")
        before, after = reads[0].along(comm.role), writes[0].along(comm.role)
        becomes = BECOMES.get((comm.op, comm.reduce, before), ())
        what = f"{comm.op} {comm.reduce}".rstrip()
        self._need(
            after in becomes, f"a {what} over {comm.role} does not take {reads[0].name} from {before} to {after}"
        )
        self._need(reads[0].name == writes[0].name, f"{reads[0].name} does not become {writes[0].name}")
        in_place = comm.op == "all_reduce"
        self._need((i.reads == i.writes) == in_place, f"the {comm.op} is {'not ' * in_place}in place")

    # --- parameters and gradients

    def _find(self, name: str) -> tuple[Param, Bucket]:
        self._need(name in self.reader.params, f"the rank holds no parameter {name}")
        param = self.reader.params[name]
        return param, self.stage.buckets[param.bucket]

    def _buffer(self, ref: int) -> Buffer:
        return self.stage.buffers[-1 - ref] if ref < 0 else self.block.buffers[ref]

    def _weight(self, name: str, ref: int) -> None:
        param, bucket = self._find(name)
        buffer = self._buffer(ref)
        self._need(buffer.shape == param.local_shape, f"{name} is asked for in a buffer of shape {buffer.shape}")
        if ref < 0:
            home = bucket.whole_buffer if bucket.weights_sharded else bucket.weight_buffer
            there = buffer.base == (home, param.offset)
            self._need(there, f"{name} is asked for where it is not: in {buffer.what} ({buffer.pool})")
            self._read(bucket.index)
            return
        tenant, first = self._stretch(ref)
        whole = (tenant, first - param.offset, bucket.index) in self.gathered
        self._need(whole, f"{name} is read where its bucket {bucket.index} is not gathered")

    def _read(self, bucket: int) -> None:
        """Reads of weights are noted once between two events of the step."""
        found = self._recent("weights")
        if found is None:
            self._note("weights", {bucket})
        else:
            found.add(bucket)

    def _stretch(self, ref: int) -> tuple[int, int]:
        """The slot's tenant, and where in it a buffer begins."""
        buffer = self.block.buffers[ref]
        self._need(buffer.slot is not None or buffer.base is None, f"{buffer.what} is in no slot")
        return tenant_of(self.block.buffers, ref), 0 if buffer.base is None else buffer.base[1]

    def _gradient(self, i: Instruction, value: Value, ref: int) -> None:
        param, bucket = self._find(parameter(value.name, i.unit))
        part = Part(param.name, i.unit, i.piece, i.kind, value.along("tp") == "P+")
        buffer = self._buffer(ref)
        self._need(buffer.shape == param.local_shape, f"the gradient of {param.name} is added to {buffer.what}")
        if ref >= 0:
            tenant, first = self._stretch(ref)
            self._join(tenant, first, first - param.offset, part, ref in made_afresh(i))
            return
        base, offset = buffer.base or (-1, -1)
        there = offset == param.offset and not bucket.gradients_sharded and buffer.pool == "grad"
        self._need(there, f"the gradient of {param.name} is added to {buffer.what} ({buffer.pool})")
        if base == bucket.grad_buffer:
            self._add(part)
            return
        others = {held for b in self.stage.buckets for held in (b.grad_buffer, b.reduced_buffer)}
        own = base not in others and self.reader.fresh.setdefault(base, bucket.index) == bucket.index
        self._need(own, f"the gradient of {param.name} is added to that of another bucket")
        self._note("fresh", part)

    def _join(self, tenant: int, first: int, begin: int, part: Part, afresh: bool) -> None:
        """A part joins a slot's gradients, whose bucket begins at `begin`, or is written over what was there."""
        end = first + self.reader.params[part.param].local_numel
        held, clear = self.parts.setdefault(tenant, []), self.clear.setdefault(tenant, [])
        if afresh:
            lost = any(other.param == part.param for _, other in held)
            self._need(not lost, f"the gradient of {part.param} is written over what was added to it")
            clear.append((first, end))
        known = any(a <= first and end <= b for a, b in clear)
        self._need(known, f"the gradient of {part.param} is added to what nobody cleared")
        held.append((begin, part))

    def _filled(self, tenant: int, first: int, end: int) -> bool:
        """Whether all of a stretch of gradients holds sums or zeros."""
        for a, b in sorted(self.clear.get(tenant, [])):
            first = max(first, b) if a <= first else first
        return first >= end

    def _add(self, part: Part) -> None:
        """Parts of gradients are noted together, as long as nothing but weights is read between."""
        found = self._recent("gradients")
        if found is None:
            self._note("gradients", [part])
        else:
            found.append(part)

    def _recent(self, what: str) -> Any:
        """What an event among the last is about, if nothing else than reads and additions came since."""
        for event in reversed(self.done.events[-2:]):
            if event.what == what:
                return event.about
            if event.what not in ("weights", "gradients"):
                return None
        return None

    # --- what has a meaning by its kind

    def _by_kind(self, i: Instruction) -> None:
        comm = i.comm
        if i.kind == "ZERO" and i.writes and min(i.writes) >= 0:
            for ref in i.writes:
                tenant, first = self._stretch(ref)
                self._need(not self.parts.get(tenant), "gradients are cleared before they are reduced")
                self.parts[tenant] = []
                stretch = (first, first + numel(self.block.buffers[ref].shape))
                self.clear.setdefault(tenant, []).append(stretch)
        elif i.kind == "COPY" and len(i.reads) == len(i.writes) == 1:
            self._copy(i.reads[0], i.writes[0])
        elif i.kind == "H2D" and len(i.reads) == len(i.writes) == 1:
            self._need(i.reads[0] in self.reader.weights and i.writes[0] >= 0, "no shard of weights is copied")
            self.staged[i.writes[0]] = self.reader.weights[i.reads[0]].index
        elif comm is not None and comm.role == "dp" and len(i.reads) == len(i.writes) == 1:
            self._need(comm.op != "all_gather" or not comm.reduce, f"a gather does not take a {comm.reduce}")
            self._gather(i) if comm.op == "all_gather" else self._reduce(i, comm)
        elif i.kind == "ADD" and len(i.reads) == 2 and len(i.writes) == 1:
            self._need(i.reads[0] in self.reduced, "what is added to a gradient shard is not reduced")
            bucket, parts = self.reduced.pop(i.reads[0])
            shard = rank_wide(self.stage.buckets[bucket].grad_buffer)
            self._need(
                i.reads[1] == i.writes[0] == shard, f"the gradient of bucket {bucket} is added to another's shard"
            )
            self._note("shard", (bucket, parts, False))
        else:
            self._need(False, "it declares nothing of what it reads and writes")

    def _copy(self, source: int, target: int) -> None:
        """A shard to where it is gathered from; what was gathered to where it is read; gradients to be reduced."""
        if source in self.reader.weights:
            self._need(target >= 0, "a shard of weights is copied to no slot")
            self.staged[target] = self.reader.weights[source].index
            return
        self._need(source >= 0, "what is copied is no shard of weights")
        at, size = self._stretch(source), numel(self.block.buffers[source].shape)
        found = [bucket for *place, bucket in self.gathered if tuple(place) == at]
        if found:
            bucket = self.stage.buckets[found[0]]
            self._need(size == bucket.numel, f"a part of bucket {bucket.index} is copied")
            if target >= 0:
                self._hold(target, bucket.index)
            else:
                self._need(target == rank_wide(bucket.whole_buffer), f"bucket {bucket.index} is copied to another's")
                self._note("whole", bucket.index)
            return
        self._need(at[0] in self.parts and target >= 0, "what is copied is neither weights nor gradients")
        (tenant, first), (goal, begin) = at, self._stretch(target)
        same = (first, begin) == (0, 0) and tenant == source and goal == target
        self._need(same and not self.parts.get(goal), "a part of a slot's gradients is copied")
        self._need(self._filled(tenant, 0, size), "gradients are copied that are neither made nor cleared")
        self.parts[goal], self.clear[goal] = self.parts.pop(tenant), self.clear.pop(tenant)

    def _hold(self, ref: int, bucket: int) -> None:
        """A stretch of a slot holds a bucket's whole weights."""
        place = self._stretch(ref)
        self.gathered = {g for g in self.gathered if g[:2] != place} | {(*place, bucket)}

    def _gather(self, i: Instruction) -> None:
        bucket = self.reader.weights.get(i.reads[0])
        index = bucket.index if bucket is not None else self.staged.get(i.reads[0], -1)
        self._need(index >= 0 and i.writes[0] >= 0, "what is gathered is no shard of weights")
        self._hold(i.writes[0], index)

    def _reduce(self, i: Instruction, comm: Comm) -> None:
        self._need(
            i.reads[0] >= 0 and comm.reduce == "sum", f"a {comm.op} {comm.reduce} is no sum of a unit's gradients"
        )
        tenant, first = self._stretch(i.reads[0])
        end = first + numel(self.block.buffers[i.reads[0]].shape)
        self._need(tenant in self.parts, "what is reduced is no gradient")
        inside = [(begin, part) for begin, part in self.parts[tenant] if first <= begin < end]
        buckets = {self.reader.params[part.param].bucket for _, part in inside}
        alike = len(buckets) == 1 and all(begin == first for begin, _ in inside)
        self._need(alike, f"the stretch holds gradients of buckets {sorted(buckets)}, or nothing")
        bucket = self.stage.buckets[buckets.pop()]
        self.parts[tenant] = [held for held in self.parts[tenant] if held not in inside]
        parts = tuple(part for _, part in inside)
        if i.writes[0] == rank_wide(bucket.grad_buffer):
            self._need(comm.op == "reduce_scatter", "a whole sum is left where a shard belongs")
            self._note("shard", (bucket.index, parts, True))
            return
        self._need(i.writes[0] >= 0, f"the gradient of bucket {bucket.index} is reduced into another's")
        self.reduced[i.writes[0]] = (bucket.index, parts)
