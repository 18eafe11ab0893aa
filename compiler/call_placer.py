"""Places a stage's blocks in host order: the calls of one step and what stands behind every in-port.

Three drivers, one for each way to talk to neighbours. *Separate* (implementation windtunnel, and every interleaved
schedule) follows `compiler.schedules.place_transfers`: sends and receives on four streams, receives posted ahead.
*Batched* (Megatron-LM, non-interleaved 1F1B) pairs a send with the opposite receive of the same neighbour and blocks
the host on each, as its `batch_p2p_comm` with `batch_p2p_sync` does. *Blocking* (DeepSpeed's pipeline engine) does one
transfer after another, each blocking, in the order of its `TrainSchedule`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from compiler.open_close import Ports
from compiler.schedules import Placement
from compiler.stage import StageBlocks
from plan.implementations import engine
from plan.pipeline import Slot
from program import Call, Stream

_UNBOUND = (-1, -1)


@dataclass(slots=True)
class _ReceiveSlots:
    """Fixed receive slots of one (direction, chunk): which are free, oldest first."""

    made: int = 0
    free: list[tuple[int, tuple[int, int]]] = field(default_factory=list)  # (slot, (call, port) of the last reader)

    def claim(self) -> tuple[int, tuple[int, int]]:
        """A slot and what must have finished with it. Two slots at least: a transfer can run beside its predecessor's
        use.
        """
        if self.free and self.made >= 2:
            return self.free.pop(0)
        self.made += 1
        return self.made - 1, _UNBOUND


class CallPlacer:
    """One use: `place`, then `close`; `calls` is what was placed."""

    def __init__(self, blocks: StageBlocks, placement: Placement) -> None:
        self.b, self.placement = blocks, placement
        self.calls: list[Call] = []
        self._base = self._placed = 0  # instructions and slots so far
        self._receive_slots: dict[tuple[bool, int], _ReceiveSlots] = {}
        self._arrived: dict[Slot, tuple[tuple[int, int], int]] = {}  # consumer -> (call and out-port, ring slot)
        self._sent: dict[tuple[bool, int], list[tuple[int, int]]] = {}  # sends whose payload nobody has freed yet
        self._done: dict[Slot, int] = {}
        self._reduced: Ports = {}
        self._shards: Ports = {}  # the last access of every slot of partitioned parameters
        self._fresh = {
            (s.crossing.phase, s.chunk) for s in placement.slots
        }  # passes whose weights nobody has waited for yet
        self._closing = blocks.context.closing(placement.slots)
        self._weights: Ports = {}
        self._latest: int | None = None  # the last compute call
        self._microbatches = sum(slot.phase == "F" and slot.chunk == 0 for slot in placement.slots)

    def _call(self, block: int, micro: int, bound: Ports, forward: int = -1) -> int:
        """Place a block. `bound` says what stands behind its in-ports; ports called after the forward block's are that
        call's."""
        ports = self.b.in_ports[block]
        bindings = [(forward, k) if k >= 0 else bound.get(name, _UNBOUND) for name, k in ports]
        self.calls.append(Call(block, micro, self._base, tuple(bindings)))
        self._base += len(self.b.blocks[block].instructions)
        return len(self.calls) - 1

    def _port(self, call: int, name: str) -> tuple[int, int]:
        """An out-port of a call, ready to be bound."""
        return call, self.b.out_ports[self.calls[call].block][name]

    def _ports(self, call: int, prefix: str) -> Ports:
        """The out-ports of a call whose names start so."""
        outs = self.b.out_ports[self.calls[call].block]
        return {name: (call, k) for name, k in outs.items() if name.startswith(prefix)}

    def _open(self) -> None:
        """The start of the step."""
        self._weights = self._ports(self._call(self.b.index["open"], -1, {}), "weights.")

    def compute(self, slot: Slot) -> None:
        """A forward or backward call, or one of a half of a backward."""
        context, chunk, crossing = self.b.context, slot.chunk, slot.crossing
        if not context.phase(slot):
            return
        forward = Slot("F", slot.micro, chunk)
        ports: Ports = {} if self._latest is None else {"previous": self._port(self._latest, "tail")}
        ports |= self._shards
        if slot.phase == "W":
            ports |= self._ports(self._done[Slot("B", slot.micro, chunk)], "half.")
        else:
            ports |= self._crossed(crossing)
        if slot.phase == "F":
            self._done[slot] = self._latest = call = self._call(self.b.index[f"F{chunk}"], slot.micro, ports)
        else:
            closes = self._closing.get(slot, "")
            block = self.b.index[context.form(slot, closes)]
            self._done[crossing] = self._latest = call = self._call(block, slot.micro, ports, self._done[forward])
            if closes:
                self._reduced |= self._ports(call, "bucket.")
        self._shards |= self._ports(call, "shard.")
        self._release(forward, call, "x_done")
        self._release(Slot("B", slot.micro, chunk), call, "d_done")

    def _crossed(self, slot: Slot) -> Ports:
        """What arrived for a slot, the send whose payload it frees, and weights that are read for the first time."""
        ports: Ports = {}
        backward, chunk = slot.phase == "B", slot.chunk
        if slot in self._arrived:
            ports["d" if backward else "x"] = self._arrived[slot][0]
        queue = self._sent.setdefault((backward, chunk), [])
        if len(queue) >= 2:
            ports["sent"] = queue.pop(0)
        if (slot.phase, chunk) in self._fresh:
            self._fresh.discard((slot.phase, chunk))
            ports |= self._weights
        return ports

    def _release(self, consumer: Slot, call: int, token: str) -> None:
        """A call has finished with the slot in which a consumer's input (or gradient) arrived, if it arrived."""
        if consumer in self._arrived and token in self.b.out_ports[self.calls[call].block]:
            ring = self._receive_slots[consumer.phase == "B", consumer.chunk]
            ring.free.append((self._arrived[consumer][1], self._port(call, token)))

    def receive(self, consumer: Slot) -> None:
        """Post the receive of a slot's input."""
        backward = consumer.phase == "B"
        number, free = self._receive_slots.setdefault((backward, consumer.chunk), _ReceiveSlots()).claim()
        call = self._call(self.b.receive(backward, consumer.chunk, number), consumer.micro, {"free": free})
        self._arrived[consumer] = (self._port(call, "received"), number)

    def send(self, producer: Slot) -> None:
        """Send a slot's result."""
        backward = producer.phase == "B"
        payload = self._port(self._done[producer], "out")
        call = self._call(self.b.send(backward, producer.chunk), producer.micro, {"payload": payload})
        if backward or not self.b.context.edges.kept:
            self._sent.setdefault((backward, producer.chunk), []).append(self._port(call, "sent"))

    def exchange(self, producer: Slot, consumer: Slot) -> None:
        """Send a slot's result and receive the opposite from the same neighbour, in one batch."""
        backward = producer.phase == "B"
        number, free = self._receive_slots.setdefault((consumer.phase == "B", 0), _ReceiveSlots()).claim()
        bound = {"free": free, "payload": self._port(self._done[producer], "out")}
        call = self._call(self.b.exchange(backward, number), producer.micro, bound)
        self._sent.setdefault((backward, 0), []).append(self._port(call, "sent"))
        self._arrived[consumer] = (self._port(call, "received"), number)

    def _separate(self) -> None:
        """Transfers in the one global order, each its own call."""
        for position in range(self._placed, len(self.placement.slots)):
            self._slot(position)

    def _slot(self, position: int) -> None:
        """A slot with its transfers."""
        slot = self.placement.slots[position]
        for transfer in self.placement.receives[position]:
            self.receive(Slot("B" if transfer.backward else "F", transfer.micro, transfer.target_chunk))
        self.compute(slot)
        for _ in self.placement.sends[position]:
            self.send(slot.crossing)

    def _batched(self) -> None:
        """Megatron-LM's non-interleaved loop: warm-up, one forward and one backward with paired transfers, drain."""
        slots = self.placement.slots
        first, last = self.b.context.first(0), self.b.context.last(0)
        steady = self.b.context.plan.pipeline_parallel - 1 - self.b.context.stage < self._microbatches
        for i, slot in enumerate(slots):
            after = slots[i + 1] if i + 1 < len(slots) else slot
            backward = slot.phase == "B"
            outer, inner = (last, first) if backward else (first, last)  # no neighbour to receive from, to send to
            if not outer and slot not in self._arrived:
                self.receive(slot)
            self.compute(slot)
            if inner:
                continue
            # F then B: output for gradient; B then F: gradient for the next input. A stage that warms up on every
            # micro-batch has no such pair: its first gradient is not on the way yet.
            if after.phase != slot.phase and steady:
                self.exchange(slot, after)
            else:
                self.send(slot)

    def _blocking(self) -> None:
        """DeepSpeed's `TrainSchedule`: stage r runs the forward of micro-batch k at tick 2k + r and its backward at
        tick 2k + 2p - 1 - r. A tick with a forward begins by receiving its input from the stage before, then returns
        the gradient of the backward before; one with a backward (or with none due) begins by sending the output of the
        forward before, then receives its gradient. So at every tick stages exchange in pairs, and nobody waits for a
        third.
        """
        p, stage, m = self.b.context.plan.pipeline_parallel, self.b.context.stage, self._microbatches
        first, last = self.b.context.first(0), self.b.context.last(0)
        for tick in range(2 * (m + p - 1) + 1):
            forward = (tick - stage) % 2 == 0
            micro = (tick - stage) // 2 if forward else (tick + 1 + stage) // 2 - p
            before = (tick + stage) // 2 - p if forward else (tick - 1 - stage) // 2
            due = 0 <= micro < m
            now, past = Slot("F" if forward else "B", micro, 0), Slot("B" if forward else "F", before, 0)
            receives = due and not (first if forward else last)
            sends = 0 <= before < m and not (first if forward else last)
            if receives and forward:
                self.receive(now)
            if sends:
                self.send(past)
            if receives and not forward:
                self.receive(now)
            if due:
                self.compute(now)

    def shared(self, other: Placement) -> CallPlacer:
        """A placer of `other` that stands where its step parts from this one's; this one has come there too."""
        twin = CallPlacer(self.b, other)
        self._open()
        if engine(self.b.context.plan).transfers == "separate":
            ends = self._closing.keys() | twin._closing.keys()
            while self.placement.alike(other, self._placed) and self.placement.slots[self._placed] not in ends:
                self._slot(self._placed)
                self._placed += 1
        for name in ("calls", "_arrived", "_done", "_reduced", "_shards", "_fresh", "_weights"):
            setattr(twin, name, copy(getattr(self, name)))
        twin._base, twin._latest, twin._placed = self._base, self._latest, self._placed
        twin._receive_slots = {key: _ReceiveSlots(ring.made, [*ring.free]) for key, ring in self._receive_slots.items()}
        twin._sent = {key: [*queue] for key, queue in self._sent.items()}
        return twin

    def place(self) -> None:
        """All calls but the one that closes the step."""
        if not self.calls:
            self._open()
        drivers = {"blocking": self._blocking, "batched": self._batched, "separate": self._separate}
        drivers[engine(self.b.context.plan).transfers]()

    def close(self, block: int | None = None) -> tuple[list[str], list[Stream]]:
        """Place the block that closes the step, a given one or a new one. Returns what was left for it: gradients to
        reduce and sends to wait for."""
        left = [(backward, port) for (backward, _), queue in sorted(self._sent.items()) for port in queue]
        streams: list[Stream] = ["send_bwd" if backward else "send_fwd" for backward, _ in left]
        if block is None:
            block = self.b.close(list(self._reduced), streams)
        assert self._latest is not None  # a step computes
        bound = self._shards | self._reduced | {"tail": self._port(self._latest, "tail")}
        bound |= {f"sent.{i}": port for i, (_, port) in enumerate(left)}
        self._call(block, -1, bound)
        return list(self._reduced), streams
