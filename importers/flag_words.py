"""Which words a Megatron flag takes, where only these are meant: another one is a problem under the flag that was
written. Facts read from Megatron-LM, `megatron/training/arguments.py`, and Megatron-DeepSpeed, `megatron/arguments.py`.

Flags whose other words are real choices that are not forecast (`--optimizer`, `--position-embedding-type`) are not
here: they are refused where they are translated.
"""

WORDS: dict[str, tuple[str, ...]] = {
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "--transformer-impl": ("local", "transformer_engine", "inference_optimized"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "--lr-decay-style": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "--remote-device": ("none", "cpu", "nvme"),
    "--fp8-format": ("e4m3", "hybrid"),
}
