"""The keys of a GPT-NeoX configuration: which are translated, the words they take, which change nothing here.

Facts read from EleutherAI/gpt-neox, `megatron/neox_arguments/neox_args.py` and `arguments.py` (2025). DeepSpeed's keys
stand beside these (`importers.deepspeed_keys`).
"""

from importers import deepspeed_keys

READ = frozenset(
    """pipe_parallel_size model_parallel_size sequence_parallel num_layers hidden_size num_attention_heads num_kv_heads
    seq_length max_position_embeddings pos_emb rotary_pct rotary_emb_base no_weight_tying gpt_j_residual gpt_j_tied norm
    layernorm_epsilon rms_norm_epsilon activation mlp_type mlp_multiple_of intermediate_size expansion_factor
    use_bias_in_attn_linear use_bias_in_mlp hidden_dropout attention_dropout make_vocab_size_divisible_by vocab_size
    attention_config sliding_window_width num_experts moe_num_experts checkpoint_activations checkpoint_num_layers
    partition_activations synchronize_each_layer precision train_iters lr_decay_iters lr_decay_style warmup min_lr
    weight_decay save_interval checkpoint_factor seed eval_interval init_method_std use_qk_layernorm""".split()
)
FUSIONS = (
    "scaled_upper_triang_masked_softmax_fusion",
    "bias_gelu_fusion",
    "rope_fusion",
    "layernorm_fusion",
    "rmsnorm_fusion",
)
"""Switches of fused kernels, off by default; the forecast has them on."""
TRANSFORMER_ENGINE = ("te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha", "te_fp8_mha")
"""Switches of Transformer Engine's layers; te_fp8_mha runs them in fp8 (`megatron/model/transformer.py`)."""
TE_FP8 = frozenset(
    """te_fp8_format te_fp8_wgrad te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin""".split()
)
NO_EFFECT = frozenset(
    """data_path train_data_paths valid_data_paths test_data_paths data_impl split vocab_file merge_file tokenizer_type
    save load log_interval eval_iters num_workers distributed_backend tensorboard_dir log_dir use_wandb wandb_project
    wandb_team wandb_group wandb_host keep_last_n_checkpoints steps_per_print wall_clock_breakdown launcher
    deepspeed_mpi deepspeed_slurm hostfile include exclude num_gpus num_nodes checkpoint_validation_with_forward_pass
    finetune attention_softmax_in_fp32 extra_save_iters s3_path log_grad_norm use_bias_in_norms init_method
    output_layer_init_method output_layer_parallelism sparsity_config""".split()
)
"""`use_bias_in_norms` is read by no norm; `sparsity_config` by no attention that is forecast."""
READ |= {*FUSIONS, *TRANSFORMER_ENGINE, *TE_FP8}
KNOWN = READ | NO_EFFECT | deepspeed_keys.TOP | frozenset(deepspeed_keys.RENAMED)

POSITIONS = ("learned", "rotary", "alibi", "sinusoidal", "rpe", "none")
NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}
OTHER_NORMS = ("scalenorm", "non_parametric_layernorm")
GATED = ("geglu", "reglu", "bilinear", "swiglu", "glu")
ACTIVATIONS = ("gelu", "relu", "softsign", "swish", "mish", "silu", *GATED)
ATTENTION = (
    "global", "flash", "local", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", "gmlp", "amlp", "rwkv",
    "mamba",
)  # fmt: skip
PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
DECAYS = ("constant", "linear", "cosine", "exponential")
MLPS = ("regular", "llama")
