"""What the kernel suites share: the device they run on, and tolerance by comparison instead of by magic number.

`assert_faithful(ours, low, exact)`: our error against fp64 may be at most twice the error PyTorch makes in the same
storage types, plus one unit in the last place of the result's scale (the interpreter truncates fp32 → bf16 where
hardware rounds).
"""

import torch

EXP_UNITS = {torch.float32: 4.0, torch.bfloat16: 1.0}
"""Units in the last place for what is made of exponentials: the hardware's own (PTX `ex2.approx`, up to 2^-22) is 2 off
in fp32."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"


def error(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.double() - exact.double()).abs().max()) if exact.numel() else 0.0


def assert_faithful(
    ours: torch.Tensor, low: torch.Tensor, exact: torch.Tensor, name: str = "", factor: float = 2, terms: float = 0.0,
    units: float = 1.0,
) -> None:  # fmt: skip
    """`terms`: size of the terms that the result is the difference of, where they may cancel to less. `units` in the
    last place are allowed beside PyTorch's error."""
    assert ours.shape == exact.shape, f"{name}: shape {tuple(ours.shape)} instead of {tuple(exact.shape)}"
    assert bool(torch.isfinite(ours).all()), f"{name}: not finite"
    scale = float(exact.abs().max()) if exact.numel() else 0.0
    unit = torch.finfo(ours.dtype).eps * max(scale, terms) * units * (1.0 if ON_GPU else 2.0)
    bound = factor * error(low, exact) + unit
    assert error(ours, exact) <= bound, (
        f"{name}: error {error(ours, exact):.3e}, PyTorch's {error(low, exact):.3e}, bound {bound:.3e}"
    )


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)
