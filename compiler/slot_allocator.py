"""Fixed slots of a stage: where gathered tensors and received edges lie, two for each family, taken in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from program import Buffer
from program.lines import Tensor


@dataclass(slots=True)
class SlotAllocator:
    """Fixed slots of a stage and the largest tenant of each; successive tenants of a family alternate between two."""

    sizes: dict[str, Tensor] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)

    def start_block(self) -> None:
        """Every block starts on the first slot: blocks are position-independent."""
        self._next = {}

    def slot(self, name: str, spec: Tensor) -> str:
        """The slot of the next tenant: names differ by digits and end in f (gathered), g (gathered again) or r
        (reduced).
        """
        stem = "".join(c for c in name[:-1] if not c.isdigit())
        family = f"{stem}.{'scatter' if name[-1] == 'r' else 'gather'}"
        turn = self._next.get(family, 0)
        self._next[family] = (turn + 1) % 2
        return self.claim(f"{family}.{turn}", spec)

    def claim(self, slot: str, spec: Tensor) -> str:
        """Note a tenant of a named slot."""
        held = self.sizes.get(slot)
        if held is None or spec.bytes > held.bytes:
            self.sizes[slot] = spec
        return slot

    def buffers(self) -> list[Buffer]:
        """The slots as rank-wide buffers."""
        return [
            Buffer(s.shape, s.dtype, "comm" if n.startswith("recv") else "gather", n, n) for n, s in self.sizes.items()
        ]
