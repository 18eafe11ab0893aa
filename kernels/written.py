"""What a kernel wrote over, made known to autograd.

PyTorch's own operators count the versions of a tensor that they write into, and a backward that finds another version
of what it kept says so. A kernel's launch is not seen there: without this, a gradient would be formed from what was
written over, and be wrong in silence.
"""

from __future__ import annotations

import torch


def written(*tensors: torch.Tensor) -> None:
    """Counts a version of each tensor; a compiler does that by itself."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(tensors)
