"""Our own trainer: products add their weight gradients, collectives run beside them, transfers have four streams."""

from __future__ import annotations

from plan.implementations.base import Engine, Implementation, bucket_bytes, wide_gradients, zero_shards
from plan.implementations.rewrites import HEAD_BY_COLUMNS
from plan.parallel import Plan


def _engine(plan: Plan) -> Engine:
    return Engine(
        rewrites=(HEAD_BY_COLUMNS,) if plan.kernels == "triton" else (),
        first_bucket_bytes=bucket_bytes(plan),
        later_bucket_bytes=bucket_bytes(plan),
        sharded_optimizer=zero_shards(plan),
        overlaps_gradients=plan.communication.overlap,
        balances_stages=True,
        splits_backward=True,
    )


def _unfused(zero_stage: int, attention_dropout: float) -> bool:
    # A fused kernel's own generator depends on the layout: dropout inside attention needs the scores.
    return attention_dropout > 0


WINDTUNNEL = Implementation(
    name="windtunnel", engine=_engine, unfused_attention=_unfused, gradient_dtype=wide_gradients
)
