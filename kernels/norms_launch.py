"""What a norm's launch derives from its shapes: which kernel, its grid and its constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kernels.launch import by_width, cdiv, next_power_of_2, processors
from kernels.norms_config import (
    BACKWARD_TABLE,
    FORWARD_TABLE,
    LAYER_FORWARD_TABLE,
    PERSISTENT_WIDTH,
    SHARED_BYTES,
    WIDE_BLOCK,
    BackwardConfig,
    ForwardConfig,
)
from kernels.norms_kernels import norm_backward_kernel, norm_forward_kernel
from kernels.norms_wide import norm_wide_backward_kernel, norm_wide_forward_kernel


class Form(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    constants: dict[str, Any]


class BackwardForm(NamedTuple):
    main: Form
    wide: bool  # rows are looped over, and weight gradients formed by columns
    columns: dict[str, Any] | None  # of the kernel that forms the weight gradients of rows too wide for registers
    partials: int  # rows of partial weight gradients


def forward_form(
    rms: bool,
    rows: int,
    width: int,
    has_residual: bool,
    has_bias: bool,
    has_dropout: bool,
    llama: bool,
    device: torch.device,
    config: ForwardConfig | None,
) -> Form:
    """The launch of a forward over (rows, width); rows > 0."""
    store = has_residual or has_dropout
    flags: dict[str, Any] = {
        "RMS": rms, "HAS_RESIDUAL": has_residual, "HAS_BIAS": has_bias, "HAS_DROPOUT": has_dropout,
        "STORE_STREAM": store, "ROUND": llama,
    }  # fmt: skip
    table = FORWARD_TABLE if rms else LAYER_FORWARD_TABLE
    config = config or by_width(table, width)
    tiles = cdiv(rows, config.rows)
    if config.loop:
        exact = width % config.loop == 0 and rows % config.rows == 0
        flags |= {"EXACT": exact, "COLUMNS": width if exact else 0, "ROWS": config.rows}
        constants = dict(**flags, BLOCK=config.loop, num_warps=config.warps)
        return Form(norm_wide_forward_kernel, (tiles,), constants)
    programs = min(tiles, processors(device) * config.per_processor) if config.per_processor else tiles
    shape = {"RELOAD": config.reload, "ROWS": config.rows, "BLOCK": next_power_of_2(width), "STAGES": config.stages}
    return Form(norm_forward_kernel, (programs,), dict(**flags, **shape, num_warps=config.warps))


def backward_form(
    rms: bool,
    rows: int,
    width: int,
    has_dstream: bool,
    has_bias: bool,
    has_dropout: bool,
    llama: bool,
    need_weight: bool,
    split: bool,
    item_bytes: tuple[int, int, int],
    device: torch.device,
    config: BackwardConfig | None,
) -> BackwardForm:
    """The launch of a backward over (rows, width); item_bytes: an element of dy, stream and weight."""
    shared = {"RMS": rms, "HAS_DSTREAM": has_dstream, "SPLIT": split, "HAS_DROPOUT": has_dropout}
    gradients = {"WEIGHT_GRADIENT": need_weight, "HAS_BIAS": has_bias, "ROUND": llama}
    if width > (PERSISTENT_WIDTH // 2 if has_bias else PERSISTENT_WIDTH):
        main = dict(**shared, BLOCK=WIDE_BLOCK, num_warps=8)
        columns = dict(RMS=rms, **gradients, ROWS=16, BLOCK=256, num_warps=4)
        launch = Form(norm_wide_backward_kernel, (max(1, rows),), main)
        return BackwardForm(launch, True, columns if need_weight or has_bias else None, max(1, min(16, cdiv(rows, 64))))
    config = config or by_width(BACKWARD_TABLE, width)
    block = next_power_of_2(width)
    partials = max(1, min(processors(device) * config.per_processor, cdiv(rows, config.rows)))
    shape = {
        "EXACT": block == width, "RELOAD": config.reload, "ROWS": config.rows, "BLOCK": block,
        "STAGES": _stages(config, block, has_dstream, item_bytes),
    }  # fmt: skip
    main = dict(**shared, **gradients, **shape, num_warps=config.warps)
    return BackwardForm(Form(norm_backward_kernel, (partials,), main), False, None, partials)


def _stages(config: BackwardConfig, block: int, has_dstream: bool, item_bytes: tuple[int, int, int]) -> int:
    """Rows in flight, as far as shared memory holds them."""
    dy, stream, weight = item_bytes
    row_bytes = block * (dy + stream * (2 if has_dstream else 1) + weight * config.reload)
    in_flight = (config.stages - 1) * config.per_processor * config.rows * row_bytes
    return config.stages if in_flight <= SHARED_BYTES else 1
