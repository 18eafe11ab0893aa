"""The keys of torchtitan's TOML: old names and their new ones, which are translated, which change nothing in a
forecast, and the range of those that are numbers.

Facts read from pytorch/torchtitan: its job configuration of three generations and the checks in
`distributed/parallel_dims.py`.
"""

from importers.flag_ranges import Range

RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.compile": "compile.enable",
    "training.fp8_linear": "float8.enable_float8_linear",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatches": "parallelism.num_pp_microbatches",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "optimizer.name_or_class": "optimizer.name",
    "training.num_tokens_per_dp_rank": "training.num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_dp_rank": "training.num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_step": "training.num_tokens_per_train_step",
    "training.num_tokens_per_step": "training.num_tokens_per_train_step",
    "training.max_context_length": "training.seq_len",
}
READ = frozenset(
    """training.local_batch_size training.global_batch_size training.seq_len training.steps training.max_norm
    training.mixed_precision_param training.mixed_precision_reduce training.dtype training.enable_cpu_offload
    training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step
    parallelism.data_parallel_replicate_degree parallelism.data_parallel_shard_degree
    parallelism.fsdp_reshard_after_forward parallelism.tensor_parallel_degree parallelism.enable_async_tensor_parallel
    parallelism.pipeline_parallel_degree parallelism.pipeline_parallel_schedule
    parallelism.pipeline_parallel_microbatch_size parallelism.num_pp_microbatches parallelism.context_parallel_degree
    parallelism.expert_parallel_degree activation_checkpoint.mode activation_checkpoint.selective_ac_option
    float8.enable_float8_linear model.name model.flavor model.converters optimizer.name optimizer.lr optimizer.eps
    optimizer.beta1 optimizer.beta2 optimizer.weight_decay lr_scheduler.warmup_steps lr_scheduler.decay_type
    lr_scheduler.min_lr_factor checkpoint.interval checkpoint.enable debug.seed training.seed
    compile.enable""".split()
)
NO_EFFECT = frozenset(
    """job profiling metrics comm debug checkpoint validation fault_tolerance experimental.custom_import
    model.hf_assets_path model.tokenizer_path model.norm_type training.dataset training.dataset_path training.gc_freq
    training.deterministic compile optimizer.implementation optimizer.fused optimizer.early_step_in_backward
    lr_scheduler.decay_ratio lr_scheduler.lr_min memory_estimation parallelism.disable_loss_parallel
    parallelism.context_parallel_rotate_method parallelism.pipeline_parallel_split_points
    activation_checkpoint.early_stop parallelism.pipeline_parallel_first_stage_less_layers
    experimental.pipeline_parallel_split_points
    parallelism.pipeline_parallel_last_stage_less_layers float8 quantize.linear.float8 symm_mem_recipe""".split()
)
FLAVORS = {
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3-405b",
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
}
COUNTS = frozenset(
    """training.local_batch_size training.seq_len training.steps parallelism.tensor_parallel_degree
    parallelism.pipeline_parallel_degree parallelism.context_parallel_degree parallelism.expert_parallel_degree
    parallelism.data_parallel_replicate_degree parallelism.pipeline_parallel_microbatch_size
    parallelism.num_pp_microbatches checkpoint.interval""".split()
)
OPEN = frozenset(
    """training.global_batch_size parallelism.data_parallel_shard_degree
    training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step""".split()
)
"""Counts of at least 1, and those that -1 leaves to torchtitan."""
SWITCHES = frozenset(
    """training.enable_cpu_offload parallelism.enable_async_tensor_parallel float8.enable_float8_linear
    checkpoint.enable compile.enable""".split()
)
WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("training.mixed_precision_param", "training.mixed_precision_reduce", "training.dtype"),
        ("bfloat16", "float32", "float16"),
    ),
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "lr_scheduler.decay_type": ("linear", "sqrt", "cosine"),
    "activation_checkpoint.mode": ("none", "full", "selective", "memory_budget"),
}
"""Keys that are true or false, and those that take one of a few words."""
RATES: dict[str, Range] = {
    **dict.fromkeys(
        """lr_scheduler.warmup_steps optimizer.lr optimizer.weight_decay training.max_norm debug.seed
        training.seed""".split(),
        Range(least=0),
    ),
    "lr_scheduler.min_lr_factor": Range(least=0, most=1),
    "optimizer.eps": Range(above=0),
    "optimizer.beta1": Range(least=0, below=1),
    "optimizer.beta2": Range(least=0, below=1),
}
