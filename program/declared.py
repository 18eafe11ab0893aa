"""What an instruction declares of the buffers that it touches: the value that each holds, and where it is placed.

A value is named within its unit and micro-batch. Four names cross units: `in` and `out` are the residual stream as the
unit takes and leaves it, `d.out` and `d.in` the gradients of the two. A tensor that was changed in place is another
value (`logits'1`). `w:` and `g:` are a parameter and its gradient (`@` stands for the layer), `s:` the rank's sums,
`c:` a constant table. Instructions of one kind share one `Values`, whatever their layer.
"""

from __future__ import annotations

from dataclasses import dataclass

At = tuple[tuple[str, str], ...]
Identity = tuple[str, int]  # a value of the residual stream: h or dh and the unit it leaves or enters; else name, unit
SHARE = "flat"  # placement of a tensor of which every rank keeps a flat share


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a placement, axis by axis: `S0` sharded along dimension 0, `P+` a sum is owed, `Pmax` a maximum,
    `flat` a share of the flattened tensor; an axis not named: every rank holds the same."""

    name: str
    at: At = ()

    def along(self, axis: str) -> str:
        """Its state along an axis."""
        return next((state for name, state in self.at if name == axis), "R")


@dataclass(frozen=True, slots=True)
class Values:
    """What the buffers of an instruction hold, in the order of its reads and of its writes; `seal` is that of the body
    that a unit declares them of ("": a communication, or no unit's)."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    seal: str = ""


def identity(name: str, unit: int) -> Identity:
    """Equal for equal values of one micro-batch: what leaves a unit is what enters the next."""
    crossing = {"in": ("h", unit - 1), "out": ("h", unit), "d.out": ("dh", unit), "d.in": ("dh", unit - 1)}
    return crossing.get(name, (name, unit))


def parameter(name: str, unit: int) -> str:
    """The name of the parameter behind a `w:` or `g:` value of a unit."""
    return name[2:].replace("@", f"layers.{unit - 1}")
