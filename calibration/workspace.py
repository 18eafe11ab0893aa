"""What operators hold while they run beyond what a program declares: the profile's `workspace`.

A kernel that writes its result holds nothing. An eager operator is several kernels, and holds what stands between
them. Ratios are to an operator's least bytes, in 16 bits; wider operands need no copy, and are taken to need nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calibration import schema
from program import DTYPE_BYTES, KernelCall
from program.ops import OPERATORS


@dataclass(frozen=True, slots=True)
class Workspace:
    """`ratios[op]`: temporaries of a 16-bit call over its least bytes.

    What a framework holds at its peak beside that: `kept[op]` = (tensors of the shape of a forward operator's result
    that it keeps until the operator's backward, which operator that is), `logit_copies` of the logits in fp32 at the
    loss, and with `gradient_buckets` a second copy of the 16-bit gradients where replicas reduce them."""

    ratios: Mapping[str, float]
    kept: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    logit_copies: int = 0
    gradient_buckets: bool = False

    @staticmethod
    def of(file: schema.ProfileFile, kernels: str) -> Workspace:
        """What a profile says of a kind of kernels."""
        return Workspace({part.op: part.ratio for part in file.workspace if part.kernels == kernels})

    def bytes_(self, call: KernelCall) -> int:
        """Most bytes alive at once in one execution."""
        ratio = self.ratios.get(call.op, 0.0)
        if not ratio or DTYPE_BYTES[call.dtype] != 2:
            return 0
        return round(ratio * OPERATORS[call.op].bytes_(call))


NOTHING = Workspace({})
