"""The keys of a DeepSpeed configuration (`importers.table`), old names, and what a trainer fills in for "auto".

Facts read from deepspeedai/DeepSpeed (0.19, mid-2026: `runtime/config.py`, `runtime/zero/config.py`) and the
documentation of earlier releases; "auto" from huggingface/transformers, `src/transformers/integrations/deepspeed.py`
(`HfTrainerDeepSpeedConfig`) and `training_args.py`, and huggingface/accelerate, `accelerator.py`
(`_prepare_deepspeed`).
"""

from collections.abc import Callable
from typing import Any

from importers.table import table

NOT_MODELLED = "the effect on the step is not forecast"
_ZERO = "zero_optimization"
_OPTIMIZER, _PARAM = f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param"
KEYS = table(
    read=f"""
    whole 1 | train_batch_size=plan.global_batch_size train_micro_batch_size_per_gpu=plan.micro_batch_size
        gradient_accumulation_steps scheduler.params.total_num_steps {_ZERO}.reduce_bucket_size
        {_ZERO}.allgather_bucket_size
    whole 0 | {_ZERO}.stage3_prefetch_bucket_size {_ZERO}.stage3_param_persistence_threshold
        {_ZERO}.stage3_max_live_parameters scheduler.params.warmup_num_steps {_ZERO}.sub_group_size
    whole 0 ..3 | {_ZERO}.stage=plan.zero_stage
    number 0 | gradient_clipping=optimizer.clip_norm fp16.loss_scale optimizer.params.lr=optimizer.lr
        optimizer.params.weight_decay=optimizer.weight_decay scheduler.params.warmup_max_lr
        fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.min_loss_scale
    number >0 | optimizer.params.eps=optimizer.eps
    number 0 ..1 | {_OPTIMIZER}.ratio
    switch | {_ZERO}.overlap_comm {_ZERO}.use_multi_rank_bucket_allreduce fp16.enabled bf16.enabled
        activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing
        activation_checkpointing.contiguous_memory_optimization
    word none cpu nvme | {_OPTIMIZER}.device {_PARAM}.device
    word fp32 fp16 bf16 | data_types.grad_accum_dtype
    any | optimizer.type optimizer.params.betas scheduler.type activation_checkpointing.number_checkpoints
        {_ZERO}.zero_hpz_partition_size {_ZERO}.zero_quantized_weights {_ZERO}.zero_quantized_gradients
        {_ZERO}.mics_shard_size sparse_attention progressive_layer_drop compression_training weight_quantization amp
        torch_autocast hybrid_engine tensor_parallel sequence_parallel_size elasticity
    object | {_ZERO} {_OPTIMIZER} {_PARAM} fp16 bf16 activation_checkpointing
    section | optimizer optimizer.params scheduler scheduler.params data_types
    """,
    idle=f"""
    any | activation_checkpointing.profile activation_checkpointing.synchronize_checkpoint_boundary aio autotuning
        bf16.check_grad_overflow checkpoint comet comms_logger csv_monitor dataloader_drop_last disable_allgather
        dump_state eigenvalue flops_profiler fp16.auto_cast fp16.consecutive_hysteresis fp16.fp16 fp16.type
        gradient_predivide_factor load_from_fp32_weights memory_breakdown nebula prescale_gradients steps_per_print
        tensorboard timers use_data_before_expert_parallelism wall_clock_breakdown wandb
        zero_allow_untested_optimizer zero_force_ds_cpu_optimizer {_ZERO}.elastic_checkpoint
        {_ZERO}.ignore_unused_parameters {_ZERO}.legacy_stage1 {_ZERO}.load_from_fp32_weights
        {_ZERO}.log_trace_cache_warnings {_ZERO}.memory_efficient_linear {_OPTIMIZER}.cpuadam_cores_perc
        {_OPTIMIZER}.fast_init {_OPTIMIZER}.nvme_path {_PARAM}.nvme_path {_ZERO}.override_module_apply
        {_ZERO}.pipeline_loading_checkpoint {_ZERO}.round_robin_gradients
        {_ZERO}.stage3_gather_16bit_weights_on_model_save
    """,
    left_out={
        NOT_MODELLED: f"""
    whole 0 | {_PARAM}.max_in_cpu {_ZERO}.stage3_module_granularity_threshold {_ZERO}.stage3_max_reuse_distance
        {_ZERO}.stage3_model_persistence_threshold {_OPTIMIZER}.buffer_count {_PARAM}.buffer_size {_PARAM}.buffer_count
    any | bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states bf16.immediate_grad_update
        communication_data_type compile curriculum_learning data_efficiency fp16.fp16_master_weights_and_grads
        fp32_allreduce gradient_allreduce_op graph_harvesting pipeline seq_parallel_communication_data_type
        sparse_gradients {_ZERO}.allgather_partitions {_ZERO}.coalesce_grad_reduction {_ZERO}.contiguous_gradients
        {_ZERO}.leaf_module {_ZERO}.mics_hierarchical_params_gather {_OPTIMIZER}.pin_memory {_OPTIMIZER}.pipeline
        {_OPTIMIZER}.pipeline_read {_OPTIMIZER}.pipeline_write {_OPTIMIZER}.super_offload {_PARAM}.pin_memory
        {_ZERO}.reduce_scatter {_ZERO}.stage3_allgather_sequential {_ZERO}.stage3_use_all_reduce_for_fetch_params
        {_ZERO}.zero_quantized_nontrainable_weights {_ZERO}.zeropp_loco_param
        """
    },
)
TOP = frozenset(name for name in KEYS if "." not in name)
OBJECTS = frozenset(name for name, key in KEYS.items() if key.kind in ("object", "section"))
"""Keys whose value must be an object; the keys of a section are not all known."""

RENAMED: dict[str, tuple[str, object]] = {
    "bfloat16": ("bf16", None),
    f"{_ZERO}.cpu_offload": (_OPTIMIZER, {"device": "cpu"}),
    f"{_ZERO}.cpu_offload_params": (_PARAM, {"device": "cpu"}),
    f"{_ZERO}.stage3_gather_fp16_weights_on_model_save": (f"{_ZERO}.stage3_gather_16bit_weights_on_model_save", None),
    **{
        f"{_ZERO}.{name}": (f"{_ZERO}.stage3_{name}", None)
        for name in """prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters
        max_reuse_distance gather_16bit_weights_on_model_save""".split()
    },
}
"""Old name → new name, and the value that `true` stands for."""

EXAMPLES = {
    _ZERO: "stage",
    _OPTIMIZER: "device",
    _PARAM: "device",
    "optimizer": "type",
    "optimizer.params": "lr",
    "scheduler": "type",
    "scheduler.params": "warmup_num_steps",
    "activation_checkpointing": "partition_activations",
    "data_types": "grad_accum_dtype",
}
"""A key that an object is known by, for messages (`enabled` for the others)."""

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
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_gradients": False,
    "mics_shard_size": -1,
}
"""ZeRO++ and MiCS options, with the value that switches each off."""

AUTO_OF_THE_TRAINER: dict[str, Any] = {
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer.params.lr": 5e-5,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_num_steps": 0,
    "scheduler.params.warmup_max_lr": 5e-5,
}
"""What Hugging Face's Trainer fills in where its own arguments say nothing."""
TRAINER_MICRO_BATCH = 8
"""`per_device_train_batch_size` where nobody gives it."""
AUTO_OF_THE_MODEL: dict[str, Callable[[int], int]] = {
    f"{_ZERO}.reduce_bucket_size": lambda hidden: hidden * hidden,
    f"{_ZERO}.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    f"{_ZERO}.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Sizes that follow the model's hidden size."""
