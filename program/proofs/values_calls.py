"""Every buffer holds the value that its reader declares: of the right unit and micro-batch, in the right placement, and
with every sum it owes.

Blocks are read once (`program.proofs.values_block`); here calls bind them together. A call's in-ports must hold what
its block asks, for the call's micro-batch. What a batched transfer brings is a variable, which its first reader binds;
in the end the k-th message that a stage receives on a channel is held against the k-th that its neighbour sends. What
happens to parameters and gradients goes into the books of the step (`program.proofs.values_step`). A program that
declares nothing at all is no compiled one, and is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from program import STREAMS, Block, Comm, Instruction, StepProgram
from program.proofs.error import ProofError, name
from program.proofs.values_block import Reader
from program.proofs.values_books import Key, Wrong
from program.proofs.values_sheet import Event, HeldValue, Misheld, Part, Sheet
from program.proofs.values_step import Books

Owner = tuple[int, int]  # call, local buffer


@dataclass(slots=True)
class Message:
    """Something sent or received: what it is, of which micro-batch (None: not known yet), and where in the program."""

    held: HeldValue
    micro: int | None
    call: int
    local: int


@dataclass(slots=True)
class Transfers:
    """What a class sends and receives, in order, by (role, channel)."""

    sent: dict[tuple[str, str], list[Message]] = field(default_factory=dict)
    received: dict[tuple[str, str], list[Message]] = field(default_factory=dict)


def prove_values(program: StepProgram) -> None:
    """Raises ProofError (`values`) for the first instruction that is given something else than it declares."""
    if not any(i.values for stage in program.classes for block in stage.blocks for i in block.instructions):
        return
    alike = Alike(program)
    found = [_Class(program, number, alike).prove() for number in range(len(program.classes))]
    for earlier, later in _neighbours(program):
        _meet(program, earlier, later, found, "pp_next", "pp_prev")
        _meet(program, later, earlier, found, "pp_prev", "pp_next")


class Alike:
    """What a piece of a layer declares and computes, all layers do, in every block; where there are two kinds of
    layers, those of its kind."""

    def __init__(self, program: StepProgram) -> None:
        units = [i.unit for s in program.classes for b in s.blocks for i in b.instructions if i.phase != "step"]
        self.last = max(units, default=0)
        self.period = program.degrees.get("layer_period", 1)
        self.known: dict[tuple[Any, ...], Instruction] = {}
        self.sealed: dict[int, str] = {}

    def differs(self, i: Instruction) -> str | None:
        """In what an instruction differs from its like, if in anything."""
        if i.lines is not None:
            if id(i.lines) not in self.sealed:
                self.sealed[id(i.lines)] = i.lines.sealed()
            if self.sealed[id(i.lines)] != i.lines.seal:
                return "its lines are not those that were declared"
        if i.values is None:
            return None
        if i.values.seal and (i.lines is None or i.lines.seal != i.values.seal):
            return "its lines are not those of what it declares"
        where = i.unit if i.unit in (0, self.last) else -1 - (i.unit % self.period == 0)
        like = self.known.setdefault(("F" if i.phase == "R" else i.phase, i.kind, where, i.piece), i)
        for what in ("lines", "values"):
            mine, theirs = getattr(i, what), getattr(like, what)
            if mine is not theirs and mine != theirs:
                return f"its {what} are not those of unit {like.unit}"
        return None


class _Class:
    def __init__(self, program: StepProgram, number: int, alike: Alike) -> None:
        self.program, self.number, self.stage = program, number, program.classes[number]
        self.call_of = {call.block: index for index, call in reversed(list(enumerate(self.stage.calls)))}
        self.streams: dict[tuple[str, str], str] = {}
        self.alike = alike
        self.sheets = self._sheets()
        self.books = Books(program, self.stage, self._expected())
        self.state: dict[Owner, Message] = {}
        self.owners: list[list[Owner | None]] = []  # of every call's in-ports
        self.transfers = Transfers()

    def prove(self) -> Transfers:
        """The class's transfers, once every call is proved."""
        for index in range(len(self.stage.calls)):
            self._take(index)
        try:
            self.books.close()
        except Wrong as wrong:
            raise ProofError("values", f"class {self.number}: {wrong}") from None
        return self.transfers

    def _error(self, reason: str, call: int | None, local: int) -> ProofError:
        named = [] if call is None else [name(self.stage, self.number, call, local)]
        return ProofError("values", reason, named)

    # --- blocks

    def _sheets(self) -> list[Sheet]:
        reader = Reader(self.stage)
        found = []
        for number, block in enumerate(self.stage.blocks):
            self._check(number, block)
            try:
                found.append(reader.read(block))
            except Misheld as wrong:
                raise self._error(f"{block.name}: {wrong.reason}", self.call_of.get(number), wrong.local) from None
        return found

    def _check(self, number: int, block: Block) -> None:
        """A channel runs on one stream; pieces of one kind are alike."""
        for local, i in enumerate(block.instructions):
            wrong = self.alike.differs(i)
            if i.comm is not None:
                known = i.comm.channel if i.comm.channel in STREAMS else i.stream
                stream = self.streams.setdefault((i.comm.role, i.comm.channel), known)
                if stream != i.stream:
                    wrong = f"it runs on stream {i.stream}; {i.comm.role}#{i.comm.channel} runs on {stream}"
            if wrong:
                raise self._error(f"{block.name}: {wrong}", self.call_of.get(number), local)

    def _expected(self) -> dict[str, set[Key]]:
        found: dict[str, set[Key]] = {}
        for sheet in self.sheets:
            for what, _, about in sheet.events:
                parts = about if what == "gradients" else [about] if what == "fresh" else ()
                for part in about[1] if what == "shard" else parts:
                    found.setdefault(part.param, set()).add(part[1:4])
        return found

    # --- calls

    def _take(self, index: int) -> None:
        call = self.stage.calls[index]
        block, sheet, state = self.stage.blocks[call.block], self.sheets[call.block], self.state
        if any(bound >= index for bound, _ in call.bindings):
            raise self._error("an in-port is bound to a call that is issued later", index, 0)
        owners = [None if bound < 0 else self._owner(bound, out) for bound, out in call.bindings]
        for port, wanted, local in sheet.asked:
            found = state.get(owners[port])  # type: ignore[arg-type]
            if found is None or found.micro != call.micro or found.held != wanted:
                wrong = self._holds(found, wanted, call.micro)
                if wrong is None:
                    continue
                raise self._error(f"in-port {block.ports_in[port].name}: {wrong}", index, local)
        ports = sheet.ports
        for ref, held in sheet.held.items():
            owner = owners[ports[ref]] if ref in ports else (index, ref)
            if owner is not None:
                state[owner] = Message(held, call.micro, index, 0)
        for event in sheet.events:
            try:
                self._happen(event, index, call.micro)
            except Wrong as wrong:
                raise self._error(f"{block.name}: {wrong}", index, event.local) from None
        self.owners.append(owners)

    def _owner(self, call: int, out: int) -> Owner | None:
        """Whose buffer an out-port of a call hands on; None where it hands on none."""
        sheet = self.sheets[self.stage.calls[call].block]
        ref = sheet.outs[out]
        if ref in sheet.ports:
            return self.owners[call][sheet.ports[ref]]
        return None if ref is None else (call, ref)

    def _holds(self, found: Message | None, wanted: HeldValue, micro: int) -> str | None:
        if found is None:
            return f"{wanted} is asked for; nothing is there"
        if found.held != wanted:
            return f"{wanted} is asked for; the buffer holds {found.held}"
        if found.micro is None:
            found.micro = micro
        if found.micro != micro:
            return f"{wanted} of micro-batch {micro} is asked for; the buffer holds that of micro-batch {found.micro}"
        return None

    def _happen(self, event: Event, call: int, micro: int) -> None:
        books, about = self.books, event.about
        if event.what == "weights":
            books.read_weights(about)
        elif event.what == "whole":
            books.copy_weights(about)
        elif event.what == "gradients":
            books.add_all(about, micro)
        elif event.what == "fresh":
            assert isinstance(about, Part)
            books.add_fresh(about, micro)
        elif event.what == "loss":
            books.add_loss(about, micro)
        elif event.what == "shard":
            bucket, parts, direct = about
            books.add_shard(bucket, parts, direct, micro)
        elif event.what == "step":
            assert isinstance(about, Instruction)
            books.step(about)
        else:
            self._transfer(event, call, micro)

    def _transfer(self, event: Event, call: int, micro: int) -> None:
        if event.what == "send":
            comm, held = event.about
            self._lane(self.transfers.sent, comm).append(Message(held, micro, call, event.local))
            return
        comm, ref, held = event.about
        message = Message(held, None if comm.op == "exchange" else micro, call, event.local)
        self.state[call, ref] = message
        self._lane(self.transfers.received, comm).append(message)

    def _lane(self, lanes: dict[tuple[str, str], list[Message]], comm: Comm) -> list[Message]:
        return lanes.setdefault((comm.role, comm.channel), [])


def _neighbours(program: StepProgram) -> set[tuple[int, int]]:
    """Pairs of classes of which one stands before the other on a ring of stages."""
    pairs = set()
    for group in program.groups.get("pp_next", ()):
        classes = [program.class_of[rank] for rank in group.ranks]
        if len(classes) > 1:
            pairs |= set(pairwise([*classes, classes[0]]))
    return pairs


def _meet(program: StepProgram, a: int, b: int, found: list[Transfers], out: str, back: str) -> None:
    """What class `a` sends over role `out` is what class `b` receives over role `back`, message by message."""
    sent, received = found[a].sent, found[b].received
    channels = {c for role, c in sent if role == out} | {c for role, c in received if role == back}
    for channel in sorted(channels):
        ours, theirs = sent.get((out, channel), []), received.get((back, channel), [])
        for one, two in zip(ours, theirs, strict=False):
            if one.held != two.held or two.micro not in (None, one.micro):
                reason = (
                    f"on channel {channel} {one.held} of micro-batch {one.micro} is sent, and received as {two.held}"
                )
                raise ProofError("values", f"{reason} of micro-batch {two.micro}", _both(program, (a, one), (b, two)))
        if len(ours) != len(theirs):
            reason = f"on channel {channel} {len(ours)} messages are sent and {len(theirs)} received"
            raise ProofError("values", reason)


def _both(program: StepProgram, *places: tuple[int, Message]) -> list[Any]:
    return [name(program.classes[class_], class_, m.call, m.local) for class_, m in places]
