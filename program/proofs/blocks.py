"""What can be said about a block once, wherever it is called: the order inside it, and what it asks of outside.

Every instruction has a symbolic vector clock: what is finished when it starts. It is a join of three kinds of
knowledge,

    local    for each stream, how many of this block's instructions are finished,
    entry    the streams whose history up to the call is finished (bit s: stream s),
    ports    the in-ports whose instruction is finished (bit k: port k),

and the host's own knowledge (a `host_sync` before) which every instruction has. Two instructions of a block can only
be ordered through the block, so races between them are decided here, exactly. Storage that comes from outside (a port,
a slot, a rank-wide buffer) is summarised as `Use`: the first accesses, which something outside must precede, and the
last ones, which something outside must follow.

Blocks that differ in labels and costs alone share one `Shape`: a pipeline's middle stages are analysed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from program import STREAMS, Block, tenant_of
from program.proofs.places import Place, StorageRegions, place_text, slot_names
from program.proofs.uses import (
    NOTHING,
    STREAM,
    Access,
    Broken,
    Clock,
    Ends,
    Order,
    Touched,
    Use,
    summarise,
)
from program.proofs.values_bodies import made_afresh


@dataclass(frozen=True, slots=True)
class Shape:
    """A block as the storage proofs see it."""

    order: Order
    counts: Clock
    tails: Ends  # the last instruction of each stream
    port_uses: tuple[tuple[int, Use], ...]
    place_uses: tuple[tuple[Place, Use], ...]  # slots, and regions that not only compute touches here
    region_uses: dict[Place, Use]  # regions that compute alone touches here
    exports: dict[int, Use]  # own allocator buffers handed out
    left: frozenset[int]  # those of them that the block does not free itself
    sync: int  # the last host_sync instruction, -1 if none
    port_of: dict[int, int]  # local buffer → in-port
    waited_ports: tuple[int, ...]


_structure = attrgetter("stream", "waits", "reads", "writes", "frees", "host_sync")
_port_buffer = attrgetter("buffer")
_port_out = attrgetter("instruction", "buffer")


def shape_key(block: Block, wide: int) -> tuple[object, ...]:
    """Equal keys, equal shapes: labels, costs, communications and names of slots do not matter. `wide` numbers the
    class's layout of rank-wide buffers.
    """
    names = slot_names(block)
    storage = [
        None
        if b.slot is None and b.base is None
        else (b.base, b.shape)
        if b.slot is None
        else (names.index(b.slot), None if b.base is None else b.base[0])
        for b in block.buffers
    ]
    return (
        wide,
        tuple(map(_structure, block.instructions)),
        tuple(storage),
        tuple(map(_port_buffer, block.ports_in)),
        tuple(map(_port_out, block.ports_out)),
    )


def analyse(block: Block, regions: StorageRegions) -> Shape:
    """The shape of a block. Raises Broken when it races, leaks or waits forward within itself."""
    order = _order(block)
    own, ports, places = _accesses(block, regions)
    frees = _frees(block)
    port_of = {p.buffer: k for k, p in enumerate(block.ports_in) if p.buffer is not None}
    exports = _own_uses(block, order, own, frees, set(port_of))
    port_uses = tuple(
        (k, summarise(order, ports.get(p.buffer, []), _what(block, p.buffer), frees.pop(p.buffer, -1)))
        for k, p in enumerate(block.ports_in)
        if p.buffer is not None
    )
    uses = {
        place: summarise(order, accesses, _place_text(block, place), tenanted=not isinstance(place, tuple))
        for place, accesses in places.items()
    }
    region_uses: dict[Place, Use] = {place: use for place, use in uses.items() if use.solo and isinstance(place, tuple)}
    place_uses = tuple((place, use) for place, use in uses.items() if place not in region_uses)
    for ref, local in frees.items():
        raise Broken("memory", f"{_what(block, ref)} is freed, but the allocator does not own it", (local,))
    syncs = [i for i, instruction in enumerate(block.instructions) if instruction.host_sync]
    waited = tuple(sorted({-1 - w for i in block.instructions for w in i.waits if w < 0}))
    counts, tails = _totals(order)
    sync = syncs[-1] if syncs else -1
    left = frozenset(ref for ref, use in exports.items() if use.free < 0)
    return Shape(order, counts, tails, port_uses, place_uses, region_uses, exports, left, sync, port_of, waited)


def _place_text(block: Block, place: Place) -> str:
    return place_text(slot_names(block)[place] if isinstance(place, int) else place)


def _own_uses(block: Block, order: Order, own: Touched, frees: dict[int, int], imported: set[int]) -> dict[int, Use]:
    """Proves the block's own allocator buffers; returns those that are handed out. Frees found are taken from
    `frees`.
    """
    exported = {p.buffer for p in block.ports_out if p.buffer is not None and p.buffer >= 0} - imported
    exports = {}
    for ref, accesses in own.items():
        use = summarise(order, accesses, _what(block, ref), frees.pop(ref, -1), fresh=True)
        if ref in exported:
            exports[ref] = use
        elif use.free < 0:
            raise Broken("memory", f"{_what(block, ref)} is never freed", (accesses[0].local,))
    return exports


def _what(block: Block, ref: int) -> str:
    return f"rank-wide buffer {-1 - ref}" if ref < 0 else f"buffer {ref} ({block.buffers[ref].what})"


def _order(block: Block) -> Order:
    streams: list[int] = []
    position: list[int] = []
    local: list[Clock] = []
    entry: list[int] = []
    ports: list[int] = []
    tail: dict[int, int] = {}
    synced = -1
    for index, instruction in enumerate(block.instructions):
        stream = STREAM[instruction.stream]
        known, history, doors = NOTHING, 0, 0
        before = tail.get(stream, -1)
        if before < 0:
            history = 1 << stream
        sources = [before] if before >= 0 else []
        sources += [synced] if synced >= 0 else []
        for wait in instruction.waits:
            if wait >= index:
                raise Broken("deadlock", "an instruction waits for one that is issued after it", (index, wait))
            if wait < 0:
                doors |= 1 << (-1 - wait)
            else:
                sources.append(wait)
        for source in sources:
            end = _ended(local[source], streams[source], position[source])
            known = tuple(map(max, known, end))
            history |= entry[source]
            doors |= ports[source]
        streams.append(stream)
        position.append(position[before] + 1 if before >= 0 else 1)
        local.append(known)
        entry.append(history)
        ports.append(doors)
        tail[stream] = index
        synced = index if instruction.host_sync else synced
    return Order(streams, position, local, entry, ports)


def _ended(clock: Clock, stream: int, position: int) -> Clock:
    return (*clock[:stream], position, *clock[stream + 1 :])


def _totals(order: Order) -> tuple[Clock, Ends]:
    """How many instructions each stream has, and the last one on each."""
    last = {stream: index for index, stream in enumerate(order.streams)}
    counts = tuple(order.position[last[s]] if s in last else 0 for s in range(len(STREAMS)))
    return counts, tuple(sorted(last.items()))


def _accesses(block: Block, regions: StorageRegions) -> tuple[Touched, Touched, dict[Place, list[Access]]]:
    """Accesses in host order: of own allocator buffers, of port buffers, of places (slots and rank-wide regions)."""
    imported = {p.buffer for p in block.ports_in if p.buffer is not None}
    local_places = regions.local_places(block)
    own: Touched = {}
    ports: Touched = {}
    places: dict[Place, list[Access]] = {}
    for index, instruction in enumerate(block.instructions):
        reads, writes = instruction.reads, instruction.writes
        for ref in dict.fromkeys((*reads, *writes)):
            where = regions.wide[-1 - ref] if ref < 0 else local_places[ref]
            if not where and ref < 0:
                continue  # compute alone touches it
            holder = -1 if ref in imported else ref if ref < 0 else tenant_of(block.buffers, ref)
            read = ref in reads and not (ref in writes and ref in made_afresh(instruction))
            access = Access(index, read, ref in writes, holder)
            if ref in imported:
                ports.setdefault(ref, []).append(access)
            elif where:
                for place in where:
                    places.setdefault(place, []).append(access)
            else:
                own.setdefault(ref, []).append(access)
    return own, ports, places


def _frees(block: Block) -> dict[int, int]:
    """Who frees each local buffer. Raises Broken for a second free, or a free on another stream than the
    allocator's.
    """
    found: dict[int, int] = {}
    for index, instruction in enumerate(block.instructions):
        for ref in instruction.frees:
            if ref in found:
                raise Broken("memory", f"{_what(block, ref)} is freed twice", (found[ref], index))
            if instruction.stream != "compute":
                raise Broken("memory", f"{_what(block, ref)} is freed on stream {instruction.stream}", (index,))
            found[ref] = index
    return found


@lru_cache(maxsize=4096)
def bits(mask: int) -> tuple[int, ...]:
    """Positions of the set bits."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
