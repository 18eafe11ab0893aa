# ruff: noqa: B023  (a sweep is timed before its loop moves on)
"""Sweeps the launch configurations behind the tables of each operator's file; run on the device after a kernel changed.

    python -m kernels.tune [norm-forward norm-backward swiglu rotary adamw crossentropy ...]

Prints, for each operator and width, the configurations from fastest to slowest as a share of the copy bandwidth measured in the same run.
The winner is written into the table by hand: a launch configuration is part of the source, so that equal inputs run equal code anywhere.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from kernels import activations, adamw, crossentropy, norms, rotary
from kernels.timing import copy_tb_s, kernel_ms

ELEMENTS = 2**27
"""Elements of the large tensors: 256 MiB in bf16, four times the L2."""


def _rank(name: str, copy: float, bytes_: float, runs: dict[str, Callable[[], object]], keep: int = 6) -> None:
    results = []
    for label, call in runs.items():
        try:
            results.append((kernel_ms(call, budget_ms=15.0).p50_ms, label))
        except Exception as error:  # a configuration may not fit the machine
            print(f"{name} {label}: {type(error).__name__} {str(error)[:80]}")
    results.sort()
    for ms, label in results[:keep]:
        print(f"{name:34s} {label:44s} {ms * 1e3:9.1f} us {bytes_ / ms / 1e9 / copy:6.1%}", flush=True)


def _rows(width: int) -> torch.Tensor:
    return torch.randn(ELEMENTS // width, width, device="cuda", dtype=torch.bfloat16)


def tune_norm_forward(copy: float) -> None:
    for width in (2048, 4096, 8192, 16384):
        x, w = _rows(width), torch.randn(width, device="cuda", dtype=torch.bfloat16)
        runs = {}
        for rows, warps in itertools.product((1, 2, 4), (2, 4, 8, 16, 32)):
            if not 4 <= rows * width // (32 * warps) <= 64:
                continue
            config = norms.ForwardConfig(rows, warps)
            runs[str(config)] = lambda c=config: norms.norm_forward("rms", x, w, eps=1e-5, config=c)
        _rank(f"norm-forward {width}", copy, 4 * ELEMENTS, runs)


def tune_norm_backward(copy: float) -> None:
    for width, with_stream in itertools.product((2048, 4096, 8192, 16384), (False, True)):
        x, dy, w = _rows(width), _rows(width), torch.randn(width, device="cuda", dtype=torch.bfloat16)
        added = _rows(width) if with_stream else None
        rstd = torch.rand(x.shape[0], device="cuda")
        runs: dict[str, Callable[[], object]] = {}
        for warps, k, stages, reload in itertools.product((4, 8, 16, 32), (1, 2, 3, 4, 6, 8), (1, 2, 3), (False, True)):
            lanes, threads = width // (32 * warps), warps * 32 * k
            if not 8 <= lanes <= 64 or not 256 <= threads <= 1024 or reload != (width > 8192) or (lanes == 64 and stages > 1):
                continue
            if 2 * width * (3 if with_stream else 2) * (stages - 1) * k > 200_000:
                continue
            config = norms.BackwardConfig(1, warps, k, stages, reload)
            runs[str(tuple(config))] = lambda c=config: norms.norm_backward("rms", dy, x, w, rstd, dstream=added, config=c)
        _rank(f"norm-backward {width} dstream={with_stream}", copy, (8 if with_stream else 6) * ELEMENTS, runs)


def _with(module: Any, settings: dict[str, Any], call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        for key, value in settings.items():
            setattr(module, key, value)
        return call()

    return run


def tune_swiglu(copy: float) -> None:
    gate_up = torch.randn(ELEMENTS // 8192, 2, 8192, device="cuda", dtype=torch.bfloat16)
    gate, up, dh = gate_up[:, 0], gate_up[:, 1], _rows(8192)
    for name, call, passes in (
        ("swiglu-forward", lambda: activations.swiglu_forward(gate, up), 3),
        ("swiglu-backward", lambda: activations.swiglu_backward(dh, gate, up), 5),
        ("gelu-forward", lambda: activations.gelu_forward(dh), 2),
        ("gelu-backward", lambda: activations.gelu_backward(dh, gate, dh[0]), 3),
    ):
        runs = {f"{b} {w}": _with(activations, {"BLOCK": b, "WARPS": w}, call) for b in (512, 1024, 2048, 4096) for w in (2, 4, 8)}
        _rank(name, copy, passes * 2 * ELEMENTS, runs, keep=4)


def tune_rotary(copy: float) -> None:
    qkv = torch.randn(4, 4096, 48, 128, device="cuda", dtype=torch.bfloat16)
    q, k = qkv[:, :, :32], qkv[:, :, 32:40]
    cos, sin = rotary.rotary_table(4096, 128, device="cuda")
    runs = {
        f"{h} {w}": _with(rotary, {"HEADS_PER_TILE": h, "WARPS": w}, lambda: rotary.rotary_forward(q, k, cos, sin))
        for h in (4, 8, 16, 32)
        for w in (1, 2, 4, 8)
    }
    _rank("rotary", copy, 4.0 * (q.numel() + k.numel()), runs)


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
    runs = {}
    for block, warps in itertools.product((2048, 4096, 8192, 16384), (4, 8, 16, 32)):
        config = crossentropy.RowConfig(block, warps)
        runs[str(tuple(config))] = lambda c=config: crossentropy.cross_entropy(logits, target, in_place=True, config=c)
    _rank("crossentropy (3 passes)", copy, 6.0 * logits.numel(), runs)


SWEEPS: dict[str, Callable[[float], None]] = {
    "norm-forward": tune_norm_forward,
    "norm-backward": tune_norm_backward,
    "swiglu": tune_swiglu,
    "rotary": tune_rotary,
    "adamw": tune_adamw,
    "crossentropy": tune_crossentropy,
}


def main(names: list[str]) -> None:
    copy = copy_tb_s()
    print(f"{torch.cuda.get_device_name()}: copy {copy:.2f} TB/s")
    for name in names or list(SWEEPS):
        SWEEPS[name](copy)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
