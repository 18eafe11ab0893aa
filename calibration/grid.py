"""What `calibrate` measures: fixed lists of kernel calls that depend on no run, so that a forecast is a forecast.

On a CPU GEMM shapes span 32 to 2048 in every extent, on a lattice of factors of four thinned to what two cores can
time; attention and the memory-bound operators take small, middle and large working sets, from launch-bound to out of
cache.
On a GPU GEMM shapes are those of layers from 768 to 8192 wide at 2k to 32k tokens, with the shares that tensor
parallelism leaves; memory-bound operators take tensors from launch-bound to several times the L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from program import KernelCall
from program.ops import OPERATORS

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes of the memory-bound operators by what an operator reads: (rows, width), flat elements, (rows, vocabulary),
    (tokens, width, vocabulary), and lengths of sequences whose scores `heads` heads hold."""

    rows: Sequence[Shape]
    flat: Sequence[int]
    ce: Sequence[Shape]
    embedding: Sequence[Shape]
    heads: int
    lengths: Sequence[int]

    def shapes(self, name: str, rows: Sequence[Shape] | None = None) -> list[Shape]:
        """Those of an operator; `rows` in place of the grid's own."""
        if name in ("fill", "copy", "sqnorm", "adamw"):
            return [(n,) for n in self.flat]
        if name.startswith("ce_"):
            return list(self.ce)
        if name.startswith("embedding"):
            return list(self.embedding)
        if name.startswith("softmax"):
            return [(self.heads * s, s) for s in self.lengths]
        if name.startswith("rope"):
            return [(r, max(1, width // 64), 64) for r, width in rows or self.rows]
        return list(rows or self.rows)


# ---------------------------------------------------------------- a CPU

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
# Working sets of 16 KiB to 16 MiB a tensor in fp32, at widths of small and middling models.
SIZES = Sizes(
    rows=((64, 64), (256, 128), (512, 256), (1024, 256), (2048, 256), (2048, 512), (4096, 512), (4096, 1024)),
    flat=(1024, 16_384, 65_536, 262_144, 524_288, 1_048_576, 2_097_152, 8_388_608),
    ce=((64, 256), (256, 256), (512, 256), (2048, 256), (1024, 1024), (1024, 4096), (1024, 8192), (2048, 8192)),
    embedding=(
        (64, 64, 256), (256, 128, 256), (512, 256, 256), (1024, 256, 1024), (1024, 512, 8192), (2048, 512, 8192),
        (4096, 1024, 8192),
    ),
    heads=4, lengths=(64, 128, 192, 256, 384, 512, 1024),
)  # fmt: skip
GEMM_DTYPES = {"fp32": GEMM_SHAPES, "bf16": GEMM_FEW, "fp64": GEMM_FEW}


def gemm_calls() -> list[KernelCall]:
    """Every layout in fp32, fewer shapes in other dtypes and for the accumulating weight gradient; bmm in all
    layouts."""
    calls = []
    for dtype, shapes in GEMM_DTYPES.items():
        for layout in ("nt", "nn", "tn", "tn+acc32"):
            chosen = shapes if layout == "nt" else GEMM_FEW if layout != "tn" else GEMM_FEW[:5]
            calls += [KernelCall("gemm", shape, dtype, layout) for shape in chosen]
    return calls + [KernelCall("bmm", s, "fp32", layout) for layout in ("nt", "nn", "tn") for s in BMM_SHAPES]


def attention_calls() -> list[KernelCall]:
    """Forward and backward, fp32 on every shape, bf16 and fp64 on the middle ones."""
    chosen = {"fp32": ATTENTION_SHAPES, "bf16": ATTENTION_SHAPES[1:6], "fp64": ATTENTION_SHAPES[1:6]}
    return [
        KernelCall(op, shape, dtype, "flash")
        for op in ("attention_forward", "attention_backward")
        for dtype, shapes in chosen.items()
        for shape in shapes
    ]


def memory_calls() -> list[KernelCall]:
    """Every memory-bound operator of the plan, in fp32 at every size and in bf16 and fp64 at a few."""
    calls = []
    for name in (name for name, operator in OPERATORS.items() if operator.kind == "memory"):
        for dtype in ("fp32", "bf16", "fp64"):
            kept = SIZES.shapes(name) if dtype == "fp32" else SIZES.shapes(name)[1::3]
            calls += [KernelCall(name, shape, dtype, variant) for variant in _variants(name, dtype) for shape in kept]
    return calls


def _variants(name: str, dtype: str) -> tuple[str, ...]:
    if name == "copy":
        return (f"{dtype}->{dtype}", "fp32->bf16") if dtype == "fp32" else (f"{dtype}->{dtype}",)
    if name == "adamw":
        return ("",) if dtype == "fp64" else ("", "bf16") if dtype == "fp32" else ()
    if name == "add":
        return ("", "bias") if dtype == "fp32" else ("",)
    return _variant(name)


def _variant(name: str) -> tuple[str, ...]:
    if name == "add_backward":
        return ("bias",)
    return ("causal",) if name.startswith("softmax") else ("",)


# ---------------------------------------------------------------- a GPU

GPU_TOKENS = (2048, 8192, 32_768)
# (columns, depth) of a forward product: projections of hidden widths 768, 2048, 4096 and 8192, whole and over tp 8.
GPU_WIDTHS = (
    (768, 768), (2304, 768), (6144, 768), (768, 3072), (2048, 2048), (3072, 2048), (16_384, 2048), (2048, 8192),
    (4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (768, 4096), (4096, 512), (3584, 4096), (4096, 1792),
    (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (50_304, 768), (128_256, 2048), (16_032, 4096),
)  # fmt: skip
GPU_FEW_WIDTHS = ((768, 768), (3072, 768), (2048, 2048), (16_384, 2048), (4096, 4096), (4096, 512))
LARGEST_FLOPS = 8e13  # a tenth of a second of one product is enough
GPU_BMM_SHAPES = ((384, 1024, 1024, 64), (384, 1024, 64, 1024), (64, 2048, 2048, 128), (64, 2048, 128, 2048))
GPU_ATTENTION = ("flash", "cudnn")
# (b, heads, kv_heads, s, d)
GPU_ATTENTION_SHAPES = (
    (32, 12, 12, 1024, 64), (8, 12, 12, 1024, 64), (4, 16, 16, 2048, 64), (2, 32, 8, 4096, 64), (1, 32, 8, 4096, 128),
    (2, 32, 8, 8192, 128), (1, 8, 8, 2048, 128), (8, 12, 12, 2048, 128), (1, 4, 1, 8192, 128), (1, 16, 16, 16_384, 128),
)  # fmt: skip
GPU_SIZES = Sizes(
    rows=((1024, 768), (4096, 2048), (8192, 4096), (32_768, 2048), (16_384, 8192)),
    flat=(65_536, 1_048_576, 16_777_216, 268_435_456),
    ce=((2048, 50_304), (8192, 16_032), (8192, 128_256), (32_768, 50_304)),
    embedding=((2048, 768, 50_304), (8192, 4096, 16_032), (32_768, 768, 50_304), (8192, 2048, 128_256)),
    heads=48, lengths=(1024, 2048),
)  # fmt: skip
COMPILED_ROWS = ((4096, 2048), (32_768, 768), (16_384, 8192))  # each shape is a compilation of seconds


def gpu_gemm_calls() -> list[KernelCall]:
    """Forward, input-gradient and accumulating weight-gradient products in bf16; a few in fp32 and of bmm."""
    calls = []
    for dtype, widths, tokens in (("bf16", GPU_WIDTHS, GPU_TOKENS), ("fp32", GPU_FEW_WIDTHS, GPU_TOKENS[:2])):
        for t in tokens:
            for columns, depth in widths:
                if 2.0 * t * columns * depth > LARGEST_FLOPS:
                    continue
                calls += [
                    KernelCall("gemm", (t, columns, depth), dtype, "nt"),
                    KernelCall("gemm", (t, depth, columns), dtype, "nn"),
                    KernelCall("gemm", (columns, depth, t), dtype, "tn+acc32"),
                ]
    return calls + [KernelCall("bmm", s, "bf16", layout) for layout in ("nt", "nn", "tn") for s in GPU_BMM_SHAPES]


def gpu_attention_calls() -> list[KernelCall]:
    """Forward and backward in bf16 for both attention implementations."""
    return [
        KernelCall(op, shape, "bf16", variant)
        for op in ("attention_forward", "attention_backward")
        for variant in GPU_ATTENTION
        for shape in GPU_ATTENTION_SHAPES
    ]


def gpu_memory_calls(compiled: frozenset[str]) -> list[KernelCall]:
    """Every memory-bound operator in bf16 (optimizer state and norms of gradients in fp32); fewer shapes of those that
    are compiled."""
    calls = []
    for name in (name for name, operator in OPERATORS.items() if operator.kind == "memory"):
        for variant in GPU_VARIANTS.get(name) or _variant(name):
            dtype = "fp32" if name in ("sqnorm", "adamw", "fill") or variant.startswith("fp32") else "bf16"
            shapes = GPU_SIZES.shapes(name, COMPILED_ROWS if name in compiled else None)
            calls += [KernelCall(name, shape, dtype, variant) for shape in shapes]
    return calls


GPU_VARIANTS = {"copy": ("bf16->bf16", "fp32->bf16"), "adamw": ("bf16", ""), "add": ("", "bias")}
