"""Which numbers a Megatron flag takes. Zero is not "not given": a count of 0 is a problem under the flag that was
written, and so is a rate or a time below nothing. Bounds are those of Megatron-LM's own checks, or of the run that the
flag is translated into where Megatron has none.
"""

from typing import TypedDict


class Range(TypedDict, total=False):
    """Bounds of a number: least ≤ n, above < n, n ≤ most, n < below."""

    least: int
    above: int
    most: int
    below: int


def _of(flags: str, bounds: Range) -> dict[str, Range]:
    return {f"--{flag}": bounds for flag in flags.split()}


RANGES: dict[str, Range] = (
    _of(
        """num-layers encoder-num-layers decoder-num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels
        num-query-groups num-key-value-heads seq-length encoder-seq-length max-position-embeddings vocab-size
        padded-vocab-size pad-vocab-size-to make-vocab-size-divisible-by tensor-model-parallel-size
        pipeline-model-parallel-size context-parallel-size ds-sequence-parallel-size expert-model-parallel-size
        moe-expert-parallel-size num-distributed-optimizer-instances num-layers-per-virtual-pipeline-stage
        num-virtual-stages-per-pipeline-rank microbatch-group-size-per-virtual-pipeline-stage micro-batch-size
        global-batch-size train-iters train-samples train-tokens lr-decay-iters lr-decay-samples ddp-bucket-size""",
        {"least": 1},
    )
    | _of(
        """num-experts mtp-num-layers cpu-offloading-num-layers recompute-num-layers decoder-first-pipeline-num-layers
        decoder-last-pipeline-num-layers zero-stage seed save-interval eval-interval lr min-lr weight-decay clip-grad
        lr-warmup-iters lr-warmup-samples loss-scale""",
        {"least": 0},
    )
    | _of(
        """rotary-base rope-scaling-factor rotary-seq-len-interpolation-factor norm-epsilon layernorm-epsilon adam-eps
        init-method-std""",
        {"above": 0},
    )
    | _of("hidden-dropout attention-dropout adam-beta1 adam-beta2", {"least": 0, "below": 1})
    | _of("optimizer-offload-fraction lr-warmup-fraction", {"least": 0, "most": 1})
)
