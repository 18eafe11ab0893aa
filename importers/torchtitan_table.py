"""The keys of torchtitan's TOML (`importers.table`), the old names of three generations, and its flavors of models.

Facts read from pytorch/torchtitan: its job configuration (`torchtitan/config/job_config.py`; `config_manager.py` of
2024) and the checks in `distributed/parallel_dims.py`; flavors from `torchtitan/models/*/__init__.py`.
"""

from typing import Any

from importers.table import table

KEYS = table(
    read="""
    whole 1 | training.local_batch_size training.seq_len=model.seq_length training.steps=train.steps
        parallelism.tensor_parallel_degree=plan.tensor_parallel parallelism.expert_parallel_degree
        parallelism.pipeline_parallel_degree=plan.pipeline_parallel parallelism.data_parallel_replicate_degree
        parallelism.context_parallel_degree=plan.context_parallel parallelism.pipeline_parallel_microbatch_size
        parallelism.num_pp_microbatches checkpoint.interval
    open 1 | training.global_batch_size=plan.global_batch_size parallelism.data_parallel_shard_degree
        training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step
    switch | training.enable_cpu_offload parallelism.enable_async_tensor_parallel float8.enable_float8_linear
        checkpoint.enable compile.enable
    word bfloat16 float32 float16 | training.mixed_precision_param training.mixed_precision_reduce training.dtype
    word default always never | parallelism.fsdp_reshard_after_forward
    word linear sqrt cosine | lr_scheduler.decay_type
    word none full selective memory_budget | activation_checkpoint.mode
    whole 0 | lr_scheduler.warmup_steps debug.seed training.seed
    number 0 | optimizer.lr=optimizer.lr optimizer.weight_decay=optimizer.weight_decay
        training.max_norm=optimizer.clip_norm
    number 0 ..1 | lr_scheduler.min_lr_factor
    number >0 | optimizer.eps=optimizer.eps
    number 0 <1 | optimizer.beta1 optimizer.beta2
    any | parallelism.pipeline_parallel_schedule activation_checkpoint.selective_ac_option model.name model.flavor
        model.converters optimizer.name
    """,
    idle="""
    any | job profiling metrics comm debug checkpoint validation fault_tolerance experimental.custom_import
        model.hf_assets_path model.tokenizer_path model.norm_type training.dataset training.dataset_path
        training.gc_freq training.deterministic compile optimizer.implementation optimizer.fused
        optimizer.early_step_in_backward lr_scheduler.decay_ratio lr_scheduler.lr_min memory_estimation
        parallelism.disable_loss_parallel parallelism.context_parallel_rotate_method
        parallelism.module_fqns_per_model_part parallelism.pipeline_parallel_layers_per_stage
        parallelism.pipeline_parallel_schedule_csv parallelism.enable_compiled_autograd
        parallelism.expert_tensor_parallel_degree parallelism.context_parallel_load_balancer
        activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns activation_checkpoint.preserve_rng_state
        activation_checkpoint.determinism_check activation_checkpoint.debug
        parallelism.pipeline_parallel_split_points activation_checkpoint.early_stop
        parallelism.pipeline_parallel_first_stage_less_layers experimental.pipeline_parallel_split_points
        parallelism.pipeline_parallel_last_stage_less_layers float8 quantize.linear.float8 symm_mem_recipe
    """,
)
_SHARED = "data_parallel_shard data_parallel_replicate tensor_parallel pipeline_parallel context_parallel".split()
RENAMED = {
    **{f"training.{name}_degree": f"parallelism.{name}_degree" for name in _SHARED},
    **{
        f"experimental.{name}_parallel_degree": f"parallelism.{name}_parallel_degree"
        for name in ("pipeline", "context")
    },
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.compile": "compile.enable",
    "training.fp8_linear": "float8.enable_float8_linear",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatches": "parallelism.num_pp_microbatches",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "optimizer.name_or_class": "optimizer.name",
    "training.num_tokens_per_dp_rank": "training.num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_dp_rank": "training.num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_step": "training.num_tokens_per_train_step",
    "training.num_tokens_per_step": "training.num_tokens_per_train_step",
    "training.max_context_length": "training.seq_len",
}
LLAMA: dict[str, Any] = {"activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "bias": False}
LLAMA |= {"norm_eps": 1e-5, "tied_embeddings": False, "vocab_multiple": 1}
FLAVORS: dict[tuple[str, str], str | dict[str, Any]] = {
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3-405b",
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("llama3", "debugmodel"): LLAMA
    | {"name": "llama3-debugmodel", "layers": 6, "hidden": 256, "heads": 16, "ffn": 768, "vocab": 2048}
    | {"rope": {"theta": 500000}},
}
