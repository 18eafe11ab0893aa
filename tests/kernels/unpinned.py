"""A kernel with the fault that `tl.cast(scalar, tl.float32)` prevents: its float argument takes whatever type the
caller gives it."""

import triton
import triton.language as tl


@triton.jit
def scaled_kernel(x_ptr, y_ptr, width, scale, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    tl.store(y_ptr + cols, (x * scale).to(y_ptr.dtype.element_ty), mask=cols < width)
