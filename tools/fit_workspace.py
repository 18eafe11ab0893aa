"""The `workspace` sections of the published profiles: what eager and compiled operators hold while they run.

Eager: counted on the torch references (`tools.traffic`; a test counts again): the cross entropy's sum has three fp32
copies of the logits alive at once. Compiled regions hold one fp32 copy of the logits: measured as what two runs on one
H200 peaked above the fused kernels (`calibration/measured/h200-training.json`: 6.15 and 3.94 GiB, 4.0 bytes a logit in
both).
"""

from __future__ import annotations

from typing import Any

Section = dict[str, Any]
EAGER = {
    "softmax_forward": 2.00, "softmax_backward": 2.33, "rmsnorm_forward": 2.49, "rmsnorm_backward": 2.49,
    "layernorm_forward": 3.48, "layernorm_backward": 2.73, "swiglu_forward": 2.33, "swiglu_backward": 2.67,
    "gelu_forward": 1.50, "gelu_backward": 1.50, "rope_forward": 3.00, "rope_backward": 3.03,
    "embedding_backward": 0.80, "position_forward": 0.33, "position_backward": 1.99, "ce_exp": 5.97, "ce_loss": 2.00,
}  # fmt: skip
COMPILED = {"ce_exp": 2.0, "ce_loss": 1.0}
SOURCES: dict[str, Section] = {
    "workspace-eager": {
        "kind": "derived",
        "text": "temporaries alive at once in the torch references, over the operator's least bytes (tools.traffic)",
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
