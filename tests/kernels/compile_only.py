"""Compiles a kernel for sm_90 on a machine without a GPU, and reads what the compiler says of it.

    resources = compile_for_hopper(kernel, {"x": "bf16", …}, {"ROWS": 1, …}, warps=8)

Pointers are parameters named *_ptr; float parameters are those in FLOAT_NAMES; everything else that is not a constant
is an integer. Types of pointers come from the prefix map, fp32 otherwise. Pointers, strides and widths are taken as
multiples of 16, as they are in a model.
"""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

FLOAT_NAMES = {
    "eps", "p", "keep_scale", "scale", "z_loss", "step_size", "decay_rate", "beta1", "beta2", "root_c2",
    "one_minus_beta1", "one_minus_beta2",
}  # fmt: skip
UNALIGNED = {
    "rows",
    "key_low",
    "key_high",
    "token_first",
    "element_first",
    "vocab_first",
    "ignore_index",
    "word_first",
    "workers",
}


@dataclass(frozen=True)
class Compiled:
    registers: int
    stack_bytes: int
    shared_bytes: int
    ptx: str

    @property
    def widest_load_bytes(self) -> int:
        """Widest vector a thread loads from global memory, by plain or asynchronous loads."""
        widths = [
            int(n or 1) * int(bits) // 8 for n, bits in re.findall(r"ld\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)", self.ptx)
        ]
        widths += [16] * len(re.findall(r"cp\.async\.cg", self.ptx))
        return max(widths, default=0)

    @property
    def double_arithmetic(self) -> list[str]:
        """fp64 instructions other than a conversion."""
        return [
            i for i in re.findall(r"\b(\w+)(?:\.\w+)*\.f64", self.ptx) if i not in {"cvt", "mov", "ld", "st", "reg"}
        ]


def compile_for_hopper(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int, *, float_type: str = "fp32",
    aligned: tuple[str, ...] = (),
) -> Compiled:  # fmt: skip
    """`aligned`: integers among UNALIGNED that are multiples of 16 here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        if name.endswith("_ptr"):
            signature[name] = "*" + types.get(name.removesuffix("_ptr"), "fp32")
        else:
            signature[name] = types.get(name, float_type if name in FLOAT_NAMES else "i32")
        if name in aligned or name not in UNALIGNED | FLOAT_NAMES:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found, report
    return Compiled(int(found[1]), int(found[2]), compiled.metadata.shared, compiled.asm["ptx"])
