"""What operators hold while they run beyond what a program declares: the profile's `workspace`.

A kernel that writes its result holds nothing. An eager operator is several kernels, and what stands between them is
counted on its torch reference (`calibration.traffic`; a test counts again): the cross entropy's sum has three fp32
copies of the logits alive at once. Compiled regions hold one fp32 copy of the logits: measured as what two runs on one
H200 peaked above the fused kernels (`calibration/measured/h200-training.json`: 6.15 and 3.94 GiB, 4.0 bytes a logit in
both). Ratios are to an operator's least bytes, in 16 bits; wider operands need no copy, and are taken to need nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibration import schema
from plan.ops import OPERATORS
from plan.program import DTYPE_BYTES, KernelCall

Section = dict[str, Any]
EAGER = {
    "softmax_forward": 2.06, "softmax_backward": 2.33, "rmsnorm_forward": 2.49, "rmsnorm_backward": 2.49,
    "layernorm_forward": 3.48, "layernorm_backward": 2.73, "swiglu_forward": 2.33, "swiglu_backward": 2.67,
    "gelu_forward": 1.50, "gelu_backward": 1.50, "rope_forward": 3.00, "rope_backward": 3.03,
    "embedding_backward": 0.80, "position_forward": 0.33, "position_backward": 1.99, "ce_exp": 5.97, "ce_loss": 2.00,
}  # fmt: skip
COMPILED = {"ce_exp": 2.0, "ce_loss": 1.0}
SOURCES: dict[str, Section] = {
    "workspace-eager": {
        "kind": "derived",
        "text": "temporaries alive at once in the torch references, over the operator's least bytes "
        "(calibration.traffic)",
    },
    "workspace-compiled": {
        "kind": "measured",
        "text": "peak of two training runs on one H200 above the same with fused kernels: 4.0 bytes a logit, torch "
        "2.11",
    },
}


def sections() -> list[Section]:
    """The section of every GPU's profile."""
    return [
        {"source": f"workspace-{kernels}", "kernels": kernels, "op": op, "ratio": ratio}
        for kernels, table in (("eager", EAGER), ("compiled", COMPILED))
        for op, ratio in table.items()
    ]


@dataclass(frozen=True, slots=True)
class Workspace:
    """`ratios[op]`: temporaries of a 16-bit call over its least bytes."""

    ratios: Mapping[str, float]

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
