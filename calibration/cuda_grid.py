"""What `calibrate --device cuda` measures: a fixed list of kernel calls for one GPU, which depends on no run.

GEMM shapes are those of layers from 768 to 8192 wide at 2k to 32k tokens, with the shares that tensor parallelism
leaves; memory-bound operators take tensors from launch-bound to several times the L2.
"""

from __future__ import annotations

from plan.ops import OPERATORS
from plan.program import KernelCall

TOKENS = (2048, 8192, 32_768)
# (columns, depth) of a forward product: projections of hidden widths 768, 2048, 4096 and 8192, whole and over tp 8.
WIDTHS = (
    (768, 768), (2304, 768), (6144, 768), (768, 3072), (2048, 2048), (3072, 2048), (16_384, 2048), (2048, 8192),
    (4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (768, 4096), (4096, 512), (3584, 4096), (4096, 1792),
    (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (50_304, 768), (128_256, 2048), (16_032, 4096),
)  # fmt: skip
FEW_WIDTHS = ((768, 768), (3072, 768), (2048, 2048), (16_384, 2048), (4096, 4096), (4096, 512))
LARGEST_FLOPS = 8e13  # a tenth of a second of one product is enough
BMM_SHAPES = ((384, 1024, 1024, 64), (384, 1024, 64, 1024), (64, 2048, 2048, 128), (64, 2048, 128, 2048))
# (b, heads, kv_heads, s, d)
ATTENTION_SHAPES = (
    (32, 12, 12, 1024, 64), (8, 12, 12, 1024, 64), (4, 16, 16, 2048, 64), (2, 32, 8, 4096, 64), (1, 32, 8, 4096, 128),
    (2, 32, 8, 8192, 128), (1, 8, 8, 2048, 128), (8, 12, 12, 2048, 128), (1, 4, 1, 8192, 128), (1, 16, 16, 16_384, 128),
)  # fmt: skip
ROWS = ((1024, 768), (4096, 2048), (8192, 4096), (32_768, 2048), (16_384, 8192))
COMPILED_ROWS = ((4096, 2048), (32_768, 768), (16_384, 8192))  # each shape is a compilation of seconds
FLAT = (65_536, 1_048_576, 16_777_216, 268_435_456)
CE = ((2048, 50_304), (8192, 16_032), (8192, 128_256), (32_768, 50_304))
EMBEDDING = ((2048, 768, 50_304), (8192, 4096, 16_032), (32_768, 768, 50_304), (8192, 2048, 128_256))


def gemm_calls() -> list[KernelCall]:
    """Forward, input-gradient and accumulating weight-gradient products in bf16; a few in fp32 and of bmm."""
    calls = []
    for dtype, widths, tokens in (("bf16", WIDTHS, TOKENS), ("fp32", FEW_WIDTHS, TOKENS[:2])):
        for t in tokens:
            for columns, depth in widths:
                if 2.0 * t * columns * depth > LARGEST_FLOPS:
                    continue
                calls += [
                    KernelCall("gemm", (t, columns, depth), dtype, "nt"),
                    KernelCall("gemm", (t, depth, columns), dtype, "nn"),
                    KernelCall("gemm", (columns, depth, t), dtype, "tn+acc32"),
                ]
    return calls + [KernelCall("bmm", s, "bf16", layout) for layout in ("nt", "nn", "tn") for s in BMM_SHAPES]


def attention_calls(variants: tuple[str, ...]) -> list[KernelCall]:
    """Forward and backward in bf16 for the attention implementations given."""
    return [
        KernelCall(op, shape, "bf16", variant)
        for op in ("attention_forward", "attention_backward")
        for variant in variants
        for shape in ATTENTION_SHAPES
    ]


def memory_calls(compiled: frozenset[str]) -> list[KernelCall]:
    """Every memory-bound operator in bf16 (optimizer state and norms of gradients in fp32); fewer shapes of those that
    are compiled."""
    calls = []
    for name, operator in OPERATORS.items():
        if operator.kind != "memory":
            continue
        for variant in _variants(name):
            dtype = "fp32" if name in ("sqnorm", "adamw", "fill") or variant.startswith("fp32") else "bf16"
            calls += [KernelCall(name, shape, dtype, variant) for shape in _shapes(name, name in compiled)]
    return calls


def _shapes(name: str, compiled: bool) -> tuple[tuple[int, ...], ...]:
    rows = COMPILED_ROWS if compiled else ROWS
    if name in ("fill", "copy", "sqnorm", "adamw"):
        return tuple((n,) for n in FLAT)
    if name.startswith("ce_"):
        return CE
    if name.startswith("embedding"):
        return EMBEDDING
    if name.startswith("softmax"):
        return tuple((48 * s, s) for s in (1024, 2048))
    if name.startswith("rope"):
        return tuple((r, w // 64, 64) for r, w in rows)
    return rows


def _variants(name: str) -> tuple[str, ...]:
    if name == "copy":
        return ("bf16->bf16", "fp32->bf16")
    if name == "adamw":
        return ("bf16", "")
    if name in ("add", "add_backward"):
        return ("", "bias") if name == "add" else ("bias",)
    return ("causal",) if name.startswith("softmax") else ("",)
