"""What `calibrate` measures: a fixed list of kernel calls that depends on no run, so that a forecast is a forecast.

GEMM shapes span 32 to 2048 in every extent, on a lattice of factors of four thinned to what two cores can time;
attention and the memory-bound operators take small, middle and large working sets, from launch-bound to out of cache.
"""

from __future__ import annotations

from plan.ops import OPERATORS
from plan.program import KernelCall

# (m, n, k). m: tokens; n, k: widths. Chosen so that every extent takes 32, 128, 512 and 2048 with several partners.
GEMM_SHAPES = (
    (32, 32, 32), (32, 128, 128), (128, 32, 128), (128, 128, 32), (128, 128, 128), (32, 512, 512), (512, 32, 512),
    (512, 512, 32), (128, 512, 128), (512, 128, 128), (128, 128, 512), (256, 256, 256), (128, 512, 512),
    (512, 128, 512), (512, 512, 128), (256, 1024, 256), (1024, 256, 256), (256, 256, 1024), (512, 512, 512),
    (2048, 128, 128), (128, 2048, 128), (128, 128, 2048), (1024, 768, 256), (2048, 512, 512), (512, 2048, 512),
    (512, 512, 2048), (1024, 1024, 1024), (64, 2048, 2048), (2048, 64, 2048), (2048, 2048, 64),
)  # fmt: skip
GEMM_FEW = (
    (32, 128, 128), (128, 128, 128), (512, 128, 512), (128, 512, 512), (512, 512, 128), (256, 256, 256),
    (512, 512, 512), (2048, 128, 128), (128, 2048, 512), (1024, 256, 1024),
)  # fmt: skip
BMM_SHAPES = ((4, 64, 64, 32), (16, 128, 128, 64), (16, 128, 64, 128), (16, 512, 512, 64), (16, 512, 64, 512))
# (b, heads, kv_heads, s, d)
ATTENTION_SHAPES = (
    (1, 2, 2, 64, 32), (2, 4, 4, 128, 64), (4, 4, 4, 256, 32), (2, 4, 2, 256, 64), (1, 4, 4, 512, 64),
    (8, 8, 8, 128, 32), (4, 8, 8, 256, 64), (1, 8, 8, 1024, 64), (1, 4, 4, 1024, 128),
)  # fmt: skip
# (rows, width): working sets of 16 KiB to 16 MiB a tensor in fp32, at widths of small and middling models.
ROWS = (
    (64, 64), (256, 128), (512, 256), (1024, 256), (2048, 256), (2048, 512), (4096, 512), (4096, 1024),
)  # fmt: skip
FLAT = (1024, 16_384, 65_536, 262_144, 524_288, 1_048_576, 2_097_152, 8_388_608)
CE = (
    (64, 256), (256, 256), (512, 256), (2048, 256), (1024, 1024), (1024, 4096), (1024, 8192), (2048, 8192),
)  # fmt: skip
EMBEDDING = (
    (64, 64, 256), (256, 128, 256), (512, 256, 256), (1024, 256, 1024), (1024, 512, 8192), (2048, 512, 8192),
    (4096, 1024, 8192),
)  # fmt: skip

GEMM_DTYPES = {"fp32": GEMM_SHAPES, "bf16": GEMM_FEW, "fp64": GEMM_FEW}
ROW_OPERATORS = {
    "rmsnorm_forward", "rmsnorm_backward", "layernorm_forward", "layernorm_backward", "swiglu_forward",
    "swiglu_backward", "gelu_forward", "gelu_backward", "bias_grad", "position_forward", "position_backward",
}  # fmt: skip


def gemm_calls() -> list[KernelCall]:
    """Every layout in fp32, fewer shapes in other dtypes and for the accumulating weight gradient; bmm in all
    layouts."""
    calls = []
    for dtype, shapes in GEMM_DTYPES.items():
        for layout in ("nt", "nn", "tn", "tn+acc32"):
            chosen = shapes if layout == "nt" else GEMM_FEW if layout != "tn" else GEMM_FEW[:5]
            calls += [KernelCall("gemm", shape, dtype, layout) for shape in chosen]
    calls += [KernelCall("bmm", shape, "fp32", layout) for layout in ("nt", "nn", "tn") for shape in BMM_SHAPES]
    return calls


def attention_calls() -> list[KernelCall]:
    """Forward and backward, fp32 on every shape, bf16 and fp64 on the middle ones."""
    calls = []
    for op in ("attention_forward", "attention_backward"):
        calls += [KernelCall(op, shape, "fp32", "flash") for shape in ATTENTION_SHAPES]
        calls += [
            KernelCall(op, shape, dtype, "flash") for dtype in ("bf16", "fp64") for shape in ATTENTION_SHAPES[1:6]
        ]
    return calls


def memory_calls() -> list[KernelCall]:
    """Every memory-bound operator of the plan, in fp32 at every size and in bf16 and fp64 at a few."""
    calls = []
    for name, operator in OPERATORS.items():
        if operator.kind == "memory":
            for dtype in ("fp32", "bf16", "fp64"):
                shapes = _shapes(name)
                kept = shapes if dtype == "fp32" else shapes[1::3]
                calls += [
                    KernelCall(name, shape, dtype, variant) for variant in _variants(name, dtype) for shape in kept
                ]
    return calls


def _shapes(name: str) -> list[tuple[int, ...]]:
    if name in ("fill", "copy", "sqnorm", "adamw"):
        return [(n,) for n in FLAT]
    if name.startswith("ce_"):
        return list(CE)
    if name.startswith("embedding"):
        return list(EMBEDDING)
    if name.startswith("softmax"):
        return [(4 * s, s) for s in (64, 128, 192, 256, 384, 512, 1024)]
    if name.startswith("rope"):
        return [(rows, max(1, width // 64), 64) for rows, width in ROWS]
    return list(ROWS)


def _variants(name: str, dtype: str) -> tuple[str, ...]:
    if name == "copy":
        return (f"{dtype}->{dtype}", "fp32->bf16") if dtype == "fp32" else (f"{dtype}->{dtype}",)
    if name == "adamw":
        return ("",) if dtype == "fp64" else ("", "bf16") if dtype == "fp32" else ()
    if name == "add":
        return ("", "bias") if dtype == "fp32" else ("",)
    if name == "add_backward":
        return ("bias",)
    if name.startswith("softmax"):
        return ("causal",)
    return ("",)
