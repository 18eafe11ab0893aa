"""Where rank-wide and slot storage is, in the units the storage proofs reason in.

A *place* is a slot or a piece of a rank-wide buffer. Blocks are analysed apart from their names of slots, so that the
receives into the slots of a ring share one analysis: inside a block a slot is its number in `slot_names(block)`.
"""

from __future__ import annotations

from program import Block, Buffer, RankProgram, numel

Place = int | str | tuple[int, int]  # a block's slot by number, a slot by name, an region (rank-wide buffer, number)


def slot_names(block: Block) -> tuple[str, ...]:
    """The slots a block's own buffers name, in order of appearance."""
    return tuple(dict.fromkeys(buffer.slot for buffer in block.buffers if buffer.slot is not None))


def place_text(place: Place) -> str:
    """A place in words."""
    return f"rank-wide buffer {place[0]}" if isinstance(place, tuple) else f"slot {place}"


def rank_range(buffer: Buffer, index: int) -> tuple[int, int, int]:
    """(base buffer, first element, end) of rank-wide buffer `index`, or of a local view (index -1)."""
    if buffer.base is None:
        return index, 0, numel(buffer.shape)
    return buffer.base[0], buffer.base[1], buffer.base[1] + numel(buffer.shape)


class StorageRegions:
    """Rank-wide storage cut into the pieces that communication streams touch as one.

    A place is (base buffer, region). Buffers that only the compute stream touches need no proof and have no place. Cut
    points are the ends of the ranges other streams touch, so two accesses meet in an region exactly when their ranges
    meet or both are compute's (whose accesses are ordered anyway).
    """

    def __init__(self, program: RankProgram) -> None:
        self.buffers = program.buffers
        spans: dict[int, set[int]] = {}
        for block in program.blocks:
            for instruction in block.instructions:
                if instruction.stream != "compute":
                    for ref in (*instruction.reads, *instruction.writes):
                        self._note(block, ref, spans)
        self.cuts = {base: tuple(sorted(ends)) for base, ends in sorted(spans.items())}
        self.wide = tuple(self._find(buffer, index) for index, buffer in enumerate(self.buffers))
        own = [index for index, buffer in enumerate(self.buffers) if buffer.slot is None]
        self.layout = tuple((index, self.wide[index]) for index in own)

    def _note(self, block: Block, ref: int, spans: dict[int, set[int]]) -> None:
        buffer = self.buffers[-1 - ref] if ref < 0 else block.buffers[ref]
        if buffer.slot is None and (ref < 0 or buffer.base is not None):
            base, start, end = rank_range(buffer, -1 - ref)
            spans.setdefault(base, set()).update((start, end))

    def _find(self, buffer: Buffer, index: int) -> tuple[Place, ...]:
        if buffer.slot is not None:
            return (buffer.slot,)
        base, start, end = rank_range(buffer, index)
        cuts = self.cuts.get(base, ())
        return tuple((base, i) for i in range(len(cuts) - 1) if cuts[i] < end and start < cuts[i + 1])

    def local_places(self, block: Block) -> list[tuple[Place, ...]]:
        """For each local buffer of a block, the places it stands for (none for allocator buffers)."""
        names = slot_names(block)
        return [
            (names.index(b.slot),) if b.slot is not None else self._find(b, -1) if b.base is not None else ()
            for b in block.buffers
        ]
