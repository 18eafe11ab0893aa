"""The keys of a DeepSpeed configuration: which are known, which are old names, which change nothing in a forecast.

Facts read from deepspeedai/DeepSpeed (0.19, mid-2026) and the documentation of earlier releases.
"""

TOP = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping prescale_gradients
    gradient_predivide_factor communication_data_type gradient_allreduce_op data_types optimizer scheduler fp16 bf16
    torch_autocast amp zero_optimization activation_checkpointing pipeline steps_per_print wall_clock_breakdown
    memory_breakdown dump_state comms_logger flops_profiler tensorboard wandb csv_monitor comet elasticity autotuning
    aio checkpoint zero_allow_untested_optimizer zero_force_ds_cpu_optimizer sparse_gradients sparse_attention
    data_efficiency curriculum_learning progressive_layer_drop compression_training eigenvalue hybrid_engine
    use_data_before_expert_parallelism seq_parallel_communication_data_type disable_allgather nebula timers compile
    tensor_parallel graph_harvesting weight_quantization load_from_fp32_weights
    fp32_allreduce dataloader_drop_last sequence_parallel_size""".split()
)
ZERO = frozenset(
    """stage contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions reduce_bucket_size
    allgather_bucket_size overlap_comm stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance sub_group_size
    stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params
    stage3_allgather_sequential leaf_module offload_optimizer offload_param round_robin_gradients
    ignore_unused_parameters load_from_fp32_weights elastic_checkpoint zero_hpz_partition_size zero_quantized_weights
    zero_quantized_gradients zero_quantized_nontrainable_weights zeropp_loco_param mics_shard_size
    mics_hierarchical_params_gather memory_efficient_linear
    override_module_apply log_trace_cache_warnings pipeline_loading_checkpoint legacy_stage1
    coalesce_grad_reduction""".split()
)
OFFLOAD_OPTIMIZER = frozenset(
    "device nvme_path pin_memory buffer_count pipeline_read pipeline_write pipeline fast_init ratio super_offload"
    " cpuadam_cores_perc".split()
)
OFFLOAD_PARAM = frozenset("device nvme_path pin_memory buffer_count buffer_size max_in_cpu".split())
FP16 = frozenset(
    """enabled loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale
    auto_cast
    fp16_master_weights_and_grads fp16 type""".split()
)
BF16 = frozenset(
    "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states".split()
)
ACTIVATION = frozenset(
    """partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints
    synchronize_checkpoint_boundary
    profile""".split()
)
SECTIONS: dict[str, frozenset[str]] = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER,
    "zero_optimization.offload_param": OFFLOAD_PARAM,
    "fp16": FP16,
    "bf16": BF16,
    "activation_checkpointing": ACTIVATION,
}
"""Sections whose keys are checked; the others (logging, tuning, data) are taken as they are."""

RENAMED: dict[str, tuple[str, object]] = {
    "bfloat16": ("bf16", None),
    "zero_optimization.cpu_offload": ("zero_optimization.offload_optimizer", {"device": "cpu"}),
    "zero_optimization.cpu_offload_params": ("zero_optimization.offload_param", {"device": "cpu"}),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        None,
    ),
    **{
        f"zero_optimization.{name}": (f"zero_optimization.stage3_{name}", None)
        for name in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "gather_16bit_weights_on_model_save",
        )
    },
}
"""Old name → new name, and the value that `true` stands for."""

LEAST = {
    **dict.fromkeys(
        """zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_param_persistence_threshold
        zero_optimization.stage3_model_persistence_threshold zero_optimization.stage3_max_live_parameters
        zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_module_granularity_threshold
        zero_optimization.zero_hpz_partition_size zero_optimization.offload_optimizer.buffer_count
        zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size
        zero_optimization.offload_param.max_in_cpu fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis
        fp16.loss_scale fp16.min_loss_scale gradient_clipping scheduler.params.warmup_num_steps
        scheduler.params.warmup_max_lr optimizer.params.lr optimizer.params.weight_decay
        zero_optimization.sub_group_size""".split(),
        0,
    ),
    **dict.fromkeys(
        """zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size
        scheduler.params.total_num_steps""".split(),
        1,
    ),
}
"""The least value of every key that holds a size, a number of steps or a rate (DeepSpeed's own bounds, but a bucket
must hold something)."""

OBJECTS = frozenset(
    """zero_optimization zero_optimization.offload_optimizer zero_optimization.offload_param fp16 bf16 optimizer
    optimizer.params scheduler scheduler.params activation_checkpointing data_types""".split()
)
"""Keys whose value must be an object."""

FIRST = {
    "zero_optimization": "stage",
    "zero_optimization.offload_optimizer": "device",
    "zero_optimization.offload_param": "device",
    "optimizer": "type",
    "optimizer.params": "lr",
    "scheduler": "type",
    "scheduler.params": "warmup_num_steps",
    "activation_checkpointing": "partition_activations",
    "data_types": "grad_accum_dtype",
}
"""A key that an object is known by, for messages (`enabled` for the others)."""

DEVICES = ("none", "cpu", "nvme")
ACCUMULATION = ("fp32", "fp16", "bf16")
"""The words of `offload_*.device` and of `data_types.grad_accum_dtype`."""

OPENED = OBJECTS
"""Sections whose keys are spoken of one by one."""

READ = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping zero_optimization
    zero_optimization.stage zero_optimization.reduce_bucket_size zero_optimization.overlap_comm
    zero_optimization.use_multi_rank_bucket_allreduce
    zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_param_persistence_threshold
    zero_optimization.stage3_max_live_parameters zero_optimization.zero_hpz_partition_size
    zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients
    zero_optimization.mics_shard_size zero_optimization.offload_optimizer.device
    zero_optimization.offload_optimizer.ratio zero_optimization.offload_param.device fp16.enabled fp16.loss_scale
    bf16.enabled optimizer.type scheduler.type optimizer.params.lr optimizer.params.betas optimizer.params.eps
    optimizer.params.weight_decay scheduler.params.warmup_num_steps scheduler.params.total_num_steps
    scheduler.params.warmup_max_lr activation_checkpointing.partition_activations
    activation_checkpointing.cpu_checkpointing activation_checkpointing.contiguous_memory_optimization
    activation_checkpointing.number_checkpoints
    data_types.grad_accum_dtype""".split()
)
"""Dotted keys that are translated; known keys that are neither here nor below have no effect on the forecast."""

UNMODELLED = frozenset(
    """sparse_gradients data_efficiency curriculum_learning compile graph_harvesting communication_data_type
    gradient_allreduce_op seq_parallel_communication_data_type fp32_allreduce pipeline
    zero_optimization.contiguous_gradients zero_optimization.reduce_scatter
    zero_optimization.allgather_partitions
    zero_optimization.allgather_bucket_size zero_optimization.stage3_model_persistence_threshold
    zero_optimization.stage3_max_reuse_distance zero_optimization.sub_group_size
    zero_optimization.stage3_module_granularity_threshold zero_optimization.stage3_use_all_reduce_for_fetch_params
    zero_optimization.stage3_allgather_sequential zero_optimization.leaf_module
    zero_optimization.mics_hierarchical_params_gather zero_optimization.zero_quantized_nontrainable_weights
    zero_optimization.zeropp_loco_param zero_optimization.coalesce_grad_reduction
    zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.buffer_count
    zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write
    zero_optimization.offload_optimizer.pipeline zero_optimization.offload_optimizer.super_offload
    zero_optimization.offload_param.pin_memory zero_optimization.offload_param.buffer_count
    zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu
    fp16.fp16_master_weights_and_grads bf16.immediate_grad_update bf16.bf16_master_weights_and_grads
    bf16.bf16_optimizer_states""".split()
)
"""Dotted keys whose effect on the step is left out of the forecast: one warning lists them."""

NOT_FORECAST = {
    "sparse_attention": "dense attention",
    "progressive_layer_drop": "all layers in every step",
    "compression_training": "an uncompressed model",
    "weight_quantization": "an unquantized model",
    "amp": "fp16 or bf16",
    "torch_autocast": "bf16",
    "hybrid_engine": "training only",
    "tensor_parallel": "Megatron's --tensor-model-parallel-size",
    "sequence_parallel_size": "sequence_parallel_size 1",
    "elasticity": "explicit train_batch_size and train_micro_batch_size_per_gpu",
}
ZERO_NOT_FORECAST = {
    "zero_hpz_partition_size": (1,),
    "zero_quantized_weights": (False,),
    "zero_quantized_gradients": (False,),
    "mics_shard_size": (-1,),
}
"""ZeRO++ and MiCS options, with the values that switch them off."""
