"""Builds one block: emits instructions in host order and finds their waits, frees and memory by itself.

A wait is added exactly where a read or write crosses streams and is not already ordered. Ordering is known through a
small vector clock: for each instruction, the last instruction of every stream (and the set of in-ports) that is
finished when it starts. Frees are placed at the first compute instruction that is already ordered after every access,
so they never add a wait (a weight gradient that freed what a reduce-scatter still reads would lose the overlap).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from program import Block, Buffer, Comm, Instruction, Phase, PortIn, PortOut, Stream
from program.declared import Values
from program.lines import Body


@dataclass(slots=True)
class _Clock:
    """What is finished when an instruction starts: last local id of each stream, and a bit for each in-port."""

    last: dict[Stream, int]
    ports: int

    def copy(self) -> _Clock:
        return _Clock(dict(self.last), self.ports)

    def join(self, other: _Clock) -> None:
        self.ports |= other.ports
        for stream, index in other.last.items():
            if index > self.last.get(stream, -1):
                self.last[stream] = index


@dataclass(slots=True)
class _Access:
    """Where a buffer (or slot) was last written and who has read it since."""

    writer: int | None = None
    readers: tuple[int, ...] = ()


class BlockBuilder:
    """Collects one block. `names` are for messages and ports; references are those of `program`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instructions: list[Instruction] = []
        self.buffers: list[Buffer] = []
        self.ports_in: list[PortIn] = []
        self.ports_out: list[PortOut] = []
        self._port_stream: list[Stream] = []
        self._ports_on: dict[Stream, int] = {}  # bit k: port k is on the stream
        self._port_of: dict[int, int] = {}
        self._clocks: list[_Clock] = []
        self._tail: dict[Stream, int] = {}
        self._access: dict[int | str, _Access] = {}
        self._accesses: dict[int, list[int]] = {}
        self._kept: set[int] = set()
        self._consumed: set[int] = set()
        self._follow: str | None = None
        self._guards: dict[str, int] = {}
        self._previous: int | None = None

    def buffer(self, spec: Buffer) -> int:
        """A new local buffer."""
        self.buffers.append(spec)
        return len(self.buffers) - 1

    def take(self, name: str, stream: Stream, spec: Buffer | None, consume: bool = False) -> int:
        """An in-port whose instruction ran on `stream`; returns the local buffer, or the port's number for a token.

        `consume`: this block must free the buffer.
        """
        buffer = None if spec is None else self.buffer(spec)
        self.ports_in.append(PortIn(name, buffer))
        self._ports_on[stream] = self._ports_on.get(stream, 0) | 1 << len(self._port_stream)
        self._port_stream.append(stream)
        port = len(self.ports_in) - 1
        if buffer is None:
            return port
        self._port_of[buffer] = port
        if consume:
            self._consumed.add(buffer)
        return buffer

    def follow(self, name: str) -> None:
        """An in-port for the last compute instruction of the call before, which may still read a slot's last tenant:
        whoever writes a slot first in this block waits for it, unless it is known to be finished."""
        self._follow = name

    def guard(self, slot: str, name: str, stream: Stream) -> None:
        """An in-port for the last access, on `stream`, to a slot in the calls before: whoever writes the slot first in
        this block waits for that alone."""
        self._guards[slot] = self.take(name, stream, None)

    def latest(self, place: int | str) -> int:
        """The last instruction of this block that touched a buffer, or a slot by name."""
        access = self._access[place]
        return max((-1 if access.writer is None else access.writer), *access.readers, -1)

    def port_of(self, buffer: int) -> int:
        """The in-port that brought a buffer."""
        return self._port_of[buffer]

    def give(self, name: str, buffer: int | None, instruction: int | None = None) -> int:
        """An out-port: hands `buffer` over (default instruction: its last writer), or a token of `instruction`."""
        if instruction is None:
            if buffer is None:
                raise ValueError(f"{self.name}: out-port {name} names neither a buffer nor an instruction")
            writer = self._access.get(self._key(buffer), _Access()).writer
            instruction = writer if writer is not None else self._accesses[buffer][-1]
        if buffer is not None and buffer >= 0:
            self._kept.add(buffer)
        self.ports_out.append(PortOut(name, instruction, buffer))
        return len(self.ports_out) - 1

    def done_with(self, buffer: int) -> int:
        """The first compute instruction that is ordered after every access to a buffer, on whatever stream: a token of
        it says that the buffer's place is free."""
        return self._free_point(buffer)

    def last_of(self, stream: Stream) -> int:
        """The last instruction of a stream so far."""
        return self._tail[stream]

    def tail(self, stream: Stream) -> tuple[int, ...]:
        """The last instruction of a stream so far, if there is one."""
        return (self._tail[stream],) if stream in self._tail else ()

    def emit(
        self, phase: Phase, kind: str, unit: int, piece: str, stream: Stream,
        reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), lines: Body | None = None,
        comm: Comm | None = None, after: tuple[int, ...] = (),
        priority: int = 0, host_sync: bool = False, values: Values | None = None,
    ) -> int:  # fmt: skip
        """Append an instruction; `after` are waits (local ids, or -1 - port) wanted besides those its buffers ask
        for.
        """
        index = len(self.instructions)
        clock = self._start_clock(stream)
        waits = self._waits(stream, clock, self._dependencies(reads, writes, clock.last), after)
        self._note(index, reads, writes)
        clock.last[stream] = index
        self._clocks.append(clock)
        self._tail[stream] = index
        calls, bytes_ = ((), 0) if lines is None else (lines.calls, lines.transient_bytes)
        instruction = Instruction(
            phase, kind, unit, piece, stream, calls, comm, waits, reads, writes, (), bytes_, priority, host_sync, lines,
            values,
        )  # fmt: skip
        self.instructions.append(instruction)
        return index

    def _start_clock(self, stream: Stream) -> _Clock:
        if stream in self._tail:
            return self._clocks[self._tail[stream]].copy()
        return _Clock({}, self._ports_on.get(stream, 0))

    def _waits(self, stream: Stream, clock: _Clock, needs: list[int], after: tuple[int, ...]) -> tuple[int, ...]:
        """Waits for the needs not yet ordered, latest first so that one wait covers what it implies."""
        # Ports added since this stream's first instruction are known too when they ran on the same stream.
        clock.ports |= self._ports_on.get(stream, 0)
        waits: list[int] = []
        for need in sorted({*needs, *after}, reverse=True):
            if need < 0:
                # Knowing an instruction of this block on the port's stream is knowing all that stream did before.
                if clock.ports >> (-1 - need) & 1 or self._port_stream[-1 - need] in clock.last:
                    continue
                clock.ports |= 1 << (-1 - need)
            else:
                if clock.last.get(self.instructions[need].stream, -1) >= need:
                    continue
                clock.join(self._clocks[need])
            waits.append(need)
        return tuple(sorted(waits))

    def _key(self, ref: int) -> int | str:
        """Storage identity: successive tenants of a slot share it; a view shares it with nobody (its base is ordered
        by the step).
        """
        if ref >= 0 and self.buffers[ref].slot is not None and ref not in self._port_of:
            return str(self.buffers[ref].slot)
        return ref

    def _dependencies(self, reads: tuple[int, ...], writes: tuple[int, ...], known: dict[Stream, int]) -> list[int]:
        needs: list[int] = []
        for ref in reads:
            access = self._access.get(self._key(ref))
            if access is not None and access.writer is not None:
                needs.append(access.writer)
            elif ref in self._port_of:
                needs.append(-1 - self._port_of[ref])
        for ref in writes:
            access = self._access.get(self._key(ref))
            if access is not None:
                needs += [*access.readers, *((access.writer,) if access.writer is not None else ())]
            elif ref in self._port_of:
                needs.append(-1 - self._port_of[ref])
            elif self._key(ref) in self._guards:
                needs.append(-1 - self._guards[str(self._key(ref))])
            elif self._follow is not None and isinstance(self._key(ref), str) and "compute" not in known:
                if self._previous is None:
                    self._previous = self.take(self._follow, "compute", None)
                needs.append(-1 - self._previous)
        return needs

    def _note(self, index: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        for ref in reads:
            access = self._access.setdefault(self._key(ref), _Access())
            access.readers = (*access.readers, index)
        for ref in writes:
            self._access[self._key(ref)] = _Access(index)
        for ref in {*reads, *writes}:
            self._accesses.setdefault(ref, []).append(index)

    def discard(self, buffer: int, at: int) -> None:
        """Free an imported buffer at instruction `at`, which must wait for its port (if the port is bound)."""
        self._consumed.discard(buffer)
        self._kept.add(buffer)
        instruction = self.instructions[at]
        self.instructions[at] = replace(instruction, frees=(*instruction.frees, buffer))

    def finish(self) -> Block:
        """The block, with frees placed and memory summed."""
        self._place_frees()
        net, peak = self._memory()
        return Block(
            self.name,
            tuple(self.instructions),
            tuple(self.buffers),
            tuple(self.ports_in),
            tuple(self.ports_out),
            net,
            peak,
        )

    def _place_frees(self) -> None:
        frees: dict[int, list[int]] = {}
        for ref, spec in enumerate(self.buffers):
            owned = ref not in self._port_of or ref in self._consumed
            if not owned or ref in self._kept or spec.slot is not None or spec.base is not None:
                continue
            frees.setdefault(self._free_point(ref), []).append(ref)
        for index, refs in frees.items():
            instruction = self.instructions[index]
            self.instructions[index] = replace(instruction, frees=(*instruction.frees, *refs))

    def _free_point(self, ref: int) -> int:
        accesses = self._accesses.get(ref, [])
        if not accesses:
            raise ValueError(f"{self.name}: buffer {ref} ({self.buffers[ref].what}) is never used")
        for index in range(max(accesses), len(self.instructions)):
            if self.instructions[index].stream != "compute":
                continue
            clock = self._clocks[index]
            if all(clock.last.get(self.instructions[a].stream, -1) >= a for a in accesses):
                return index
        raise ValueError(f"{self.name}: no compute instruction is ordered after every use of {self.buffers[ref].what}")

    def _memory(self) -> tuple[int, int]:
        """(bytes left allocated, highest bytes on the way), in host issue order."""
        live = peak = 0
        born: set[int] = set(self._port_of)
        for instruction in self.instructions:
            for ref in instruction.writes:
                if ref >= 0 and ref not in born and self.buffers[ref].slot is None:
                    born.add(ref)
                    live += self.buffers[ref].bytes
            peak = max(peak, live + instruction.transient_bytes)
            live -= sum(self.buffers[ref].bytes for ref in instruction.frees if self.buffers[ref].slot is None)
        return live, peak
