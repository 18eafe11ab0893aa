"""Sweeps the launch configurations behind the tables of each operator's file; run on the device after a kernel changed.

    python -m tools.tune [NAME ...]      names: the keys of SWEEPS, all by default

Prints, for each operator and width, the configurations from fastest to slowest as a share of the copy bandwidth
measured in the same run. The winner is written into the table by hand: a launch configuration is part of the source,
so that equal inputs run equal code anywhere.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from calibration.timing import copy_tb_s, kernel_ms
from kernels import activations, adamw, crossentropy, crossentropy_columns, norms, rotary
from kernels.launch import HAS_TRITON

ELEMENTS = 2**28
"""Elements of the large tensors, as in `tools.bench`."""


def _rank(name: str, copy: float, bytes_: float, runs: Mapping[str, Callable[[], object]], keep: int = 7) -> None:
    results = []
    for label, call in runs.items():
        try:
            results.append((kernel_ms(call, budget_ms=10.0).p50_ms, label))
        except Exception as error:  # a configuration may not fit the machine
            print(f"{name} {label}: {type(error).__name__} {str(error)[:80]}")
    results.sort()
    for ms, label in results[:keep]:
        print(f"{name:34s} {label:44s} {ms * 1e3:9.1f} us {bytes_ / ms / 1e9 / copy:6.1%}", flush=True)


def _rows(width: int) -> torch.Tensor:
    return torch.randn(ELEMENTS // width, width, device="cuda", dtype=torch.bfloat16)


F, B = norms.ForwardConfig, norms.BackwardConfig
FORWARD: dict[tuple[norms.Kind, int], list[norms.ForwardConfig]] = {
    ("layer", 768): [
        F(2, 2, 8, 3, False),
        F(2, 2, 8, 3),
        F(2, 2, 12, 3, False),
        F(2, 2, 8, 4, False),
        F(1, 2),
        F(2, 2),
        F(4, 4, 4, 3, False),
    ],
    ("layer", 4096): [
        F(1, 4, 4, 3, False),
        F(1, 8),
        F(1, 4),
        F(1, 4, 5, 3, False),
        F(1, 4, loop=2048),
        F(1, 8, loop=4096),
        F(2, 16, loop=4096),
        F(1, 2, 8, 3, False),
    ],
    ("rms", 4096): [F(1, 4, reload=False), F(1, 8), F(2, 16, loop=4096), F(1, 8, loop=4096), F(1, 8, loop=2048)],
    ("rms", 8192): [
        F(2, 8),
        F(1, 8),
        F(1, 16, loop=2048),
        F(1, 16, loop=4096),
        F(2, 16, loop=4096),
        F(1, 16, loop=8192),
    ],
    ("rms", 16384): [
        F(1, 8),
        F(1, 16),
        F(1, 16, loop=2048),
        F(1, 16, loop=4096),
        F(1, 16, loop=8192),
        F(1, 32, loop=8192),
    ],
}
BACKWARD: dict[tuple[norms.Kind, int], list[norms.BackwardConfig]] = {
    ("layer", 768): [
        B(1, 1, 16, 1, False), B(1, 1, 16, 2, False), B(1, 1, 16, 3, False), B(1, 2, 8, 3, False), B(1, 2, 8, 2, False),
        B(2, 2, 8, 2, False),
        B(2, 2, 6, 3, False), B(1, 2, 12, 2, False), B(2, 4, 4, 3, False), B(2, 4, 6, 2, False), B(1, 4, 6, 3, False),
    ],
    ("rms", 2048): [B(1, 4, 3, 3, False), B(1, 4, 4, 3, False), B(1, 4, 6, 1, False)],
    ("rms", 4096): [B(1, 8, 2, 3, False), B(1, 8, 3, 1, False), B(1, 4, 2, 3, False)],
    ("rms", 8192): [B(1, 16, 1, 3, False), B(1, 8, 1, 3, False)],
    ("rms", 16384): [B(1, 16, 1, 1, True), B(1, 16, 1, 3, True)],
}  # fmt: skip


def tune_norm_forward(copy: float) -> None:
    for (kind, width), configs in FORWARD.items():
        x, w = _rows(width), torch.randn(width, device="cuda", dtype=torch.bfloat16)
        bias = w if kind == "layer" else None
        call = partial(norms.norm_forward, kind, x, w, bias, eps=1e-5)
        runs = {str(tuple(c)): partial(call, config=c) for c in configs}
        _rank(f"{kind} forward {width}", copy, 4.0 * x.numel(), runs)


def tune_add_norm_forward(copy: float) -> None:
    for width in (2048, 4096, 8192):
        x, residual, w = _rows(width), _rows(width), torch.randn(width, device="cuda", dtype=torch.bfloat16)
        call = partial(norms.norm_forward, "rms", x, w, eps=1e-5, residual=residual)
        configs = F(1, 4), F(1, 8), F(1, 16), F(2, 16), F(1, 8, loop=2048), F(1, 16, loop=4096), F(2, 16, loop=4096)
        runs = {str(tuple(c)): partial(call, config=c) for c in configs if c.loop <= width}
        _rank(f"add + rms forward {width}", copy, 8.0 * x.numel(), runs)


def tune_norm_backward(copy: float) -> None:
    for (kind, width), configs in BACKWARD.items():
        x, dy, w = _rows(width), _rows(width), torch.randn(width, device="cuda", dtype=torch.bfloat16)
        rstd = torch.rand(x.shape[0], device="cuda")
        call = partial(norms.norm_backward, kind, dy, x, w, rstd, rstd, has_bias=kind == "layer")
        runs = {str(tuple(c)): partial(call, config=c) for c in configs}
        _rank(f"{kind} backward {width}", copy, 6.0 * x.numel(), runs)


def _with(module: Any, settings: dict[str, Any], call: Callable[[], object]) -> Callable[[], object]:
    """`call` with the module's constants at `settings`, which it has back afterwards."""

    def run() -> object:
        before = {key: getattr(module, key) for key in settings}
        for key, value in settings.items():
            setattr(module, key, value)
        try:
            return call()
        finally:
            for key, value in before.items():
                setattr(module, key, value)

    return run


def tune_pointwise(copy: float) -> None:
    x, dh = _rows(3072), _rows(3072)
    gate, up, bias = x, dh, x[0].clone()
    for name, call, passes in (
        ("swiglu forward", lambda: activations.swiglu_forward(gate, up), 3),
        ("gelu forward", lambda: activations.gelu_forward(x, bias), 2),
        ("gelu backward", lambda: activations.gelu_backward(dh, x, bias), 3),
    ):
        runs = {
            f"{b} {w}": _with(activations, {"BLOCK": b, "WARPS": w, "GELU_FORWARD_WARPS": w}, call)
            for b, w in ((512, 2), (1024, 2), (1024, 4), (2048, 4))
        }
        _rank(name, copy, passes * 2.0 * x.numel(), runs, keep=4)


def tune_rotary(copy: float) -> None:
    q, k = torch.randn(8, 4096, 40, 128, device="cuda", dtype=torch.bfloat16).split((32, 8), dim=2)
    q, k = q.contiguous(), k.contiguous()
    cos, sin = rotary.rotary_table(4096, 128, device="cuda")
    runs = {}
    for (h, w), (name, rotate) in itertools.product(
        ((8, 2), (8, 4), (16, 4), (32, 8)), (("forward", rotary.rotary_forward), ("backward", rotary.rotary_backward))
    ):
        runs[f"{h} {w} {name}"] = _with(rotary, {"HEADS_PER_TILE": h, "WARPS": w}, partial(rotate, q, k, cos, sin))
    _rank("rotary", copy, 4.0 * (q.numel() + k.numel()), runs, keep=8)


def tune_adamw(copy: float) -> None:
    n = 2**28
    p, m, v = (torch.rand(n, device="cuda") for _ in range(3))
    g, out = torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.empty(n, device="cuda", dtype=torch.bfloat16)
    step = adamw.AdamWStep(1e-4, 10, weight_decay=0.1)
    runs = {
        f"{b} {w}": _with(adamw, {"MASK_BLOCK": b, "WARPS": w}, lambda: adamw.adamw_step(p, m, v, g, step, copy=out))
        for b in (512, 1024, 2048, 4096)
        for w in (2, 4, 8)
    }
    _rank("adamw bf16 gradient, copy out", copy, 28.0 * n, runs)


def tune_crossentropy(copy: float) -> None:
    logits = torch.randn(2048, 128256, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, 128256, (2048,), device="cuda")
    configs = ((1024, 4), (2048, 8), (2048, 4), (4096, 16), (4096, 8), (8192, 16))
    runs = {
        str(c): partial(crossentropy.cross_entropy, logits, target, in_place=True, config=crossentropy.RowConfig(*c))
        for c in configs
    }
    _rank("crossentropy (3 passes)", copy, 6.0 * logits.numel(), runs, keep=9)


def tune_columns(copy: float) -> None:
    """The tiles of the statistics, then of the gradient, each with the other's as they are in the table."""
    target = torch.randint(0, 128256, (8192,), device="cuda")
    tiles = [(r, words, n, w) for r, w in ((512, 2), (1024, 4), (2048, 8)) for words in (2, 4, 8) for n in (4, 8, 32)]
    for rows in (2048, 8192):
        logits = torch.randn(128256, rows, device="cuda", dtype=torch.bfloat16)
        for name in ("STATISTICS", "GRADIENT"):
            call = partial(crossentropy_columns.cross_entropy_columns, logits, target[:rows])
            runs = {str(t): _with(crossentropy_columns, {name: crossentropy_columns.Tiles(*t)}, call) for t in tiles}
            _rank(f"columns {rows} {name.lower()}", copy, 6.0 * logits.numel(), runs, keep=4)


SWEEPS: dict[str, Callable[[float], None]] = {
    "norm-forward": tune_norm_forward,
    "add-norm-forward": tune_add_norm_forward,
    "norm-backward": tune_norm_backward,
    "pointwise": tune_pointwise,
    "rotary": tune_rotary,
    "adamw": tune_adamw,
    "crossentropy": tune_crossentropy,
    "columns": tune_columns,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SWEEPS]
    if unknown:
        print(f"unknown sweep {', '.join(unknown)}; accepted: {', '.join(SWEEPS)}", file=sys.stderr)
        return 2
    if not (torch.cuda.is_available() and HAS_TRITON):
        print("tools.tune needs a CUDA device and triton", file=sys.stderr)
        return 2
    copy = copy_tb_s()
    print(f"{torch.cuda.get_device_name()}: copy {copy:.2f} TB/s")
    for name in names or list(SWEEPS):
        SWEEPS[name](copy)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
