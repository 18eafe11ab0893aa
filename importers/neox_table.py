"""The keys of a GPT-NeoX configuration (`importers.table`), beside DeepSpeed's (`importers.deepspeed_table`).

Facts read from EleutherAI/gpt-neox, `megatron/neox_arguments/neox_args.py` and `arguments.py` (2025).
"""

from importers import deepspeed_table
from importers.table import table

FUSIONS = tuple(
    "scaled_upper_triang_masked_softmax_fusion bias_gelu_fusion rope_fusion layernorm_fusion rmsnorm_fusion".split()
)
"""Switches of fused kernels, off by default; the forecast has them on."""
TRANSFORMER_ENGINE = ("te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha", "te_fp8_mha")
"""Switches of Transformer Engine's layers; te_fp8_mha runs them in fp8 (`megatron/model/transformer.py`)."""
GATED = ("geglu", "reglu", "bilinear", "swiglu", "glu")
KEYS = table(
    read=f"""
    whole 1 | model_parallel_size=plan.tensor_parallel num_layers=model.layers hidden_size=model.hidden
        num_attention_heads=model.heads num_kv_heads=model.kv_heads seq_length=model.seq_length
        max_position_embeddings=model.max_positions vocab_size=model.vocab intermediate_size=model.ffn
        make_vocab_size_divisible_by=model.vocab_multiple mlp_multiple_of checkpoint_num_layers sliding_window_width
        train_iters=train.steps lr_decay_iters=optimizer.schedule.decay_steps eval_interval=train.eval_every
    whole 0 | pipe_parallel_size=plan.pipeline_parallel num_experts moe_num_experts seed=train.seed
    number 0 <1 | hidden_dropout=model.dropout attention_dropout=model.attention_dropout
    number 0 ..1 | rotary_pct warmup
    number 0 | min_lr=optimizer.schedule.min_lr weight_decay=optimizer.weight_decay
    number >0 | rotary_emb_base layernorm_epsilon rms_norm_epsilon init_method_std=model.init_std expansion_factor
    switch | sequence_parallel~plan.sequence_parallel no_weight_tying gpt_j_residual gpt_j_tied use_bias_in_attn_linear
        use_bias_in_mlp checkpoint_activations partition_activations~plan.partition_activations synchronize_each_layer
        use_qk_layernorm {" ".join(FUSIONS)}
        {" ".join(TRANSFORMER_ENGINE)}
    word learned rotary alibi sinusoidal rpe none | pos_emb
    word layernorm rmsnorm te_layernorm te_rmsnorm scalenorm non_parametric_layernorm | norm
    word gelu relu softsign swish mish silu {" ".join(GATED)} | activation
    word regular llama | mlp_type
    word constant linear cosine exponential | lr_decay_style
    word fp16 bfloat16 fp32 | precision
    any | attention_config save_interval checkpoint_factor
    any | te_fp8_format te_fp8_wgrad te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin
    """,
    idle="""
    any | data_path train_data_paths valid_data_paths test_data_paths data_impl split vocab_file merge_file save load
        tokenizer_type log_interval eval_iters num_workers distributed_backend tensorboard_dir log_dir use_wandb
        wandb_project wandb_team wandb_group wandb_host keep_last_n_checkpoints steps_per_print wall_clock_breakdown
        launcher deepspeed_mpi deepspeed_slurm hostfile include exclude num_gpus num_nodes
        checkpoint_validation_with_forward_pass finetune attention_softmax_in_fp32 extra_save_iters s3_path
        log_grad_norm use_bias_in_norms init_method output_layer_init_method output_layer_parallelism sparsity_config
    """,
)
"""`use_bias_in_norms` is read by no norm; `sparsity_config` by no attention that is forecast."""
TE_FP8 = tuple(name for name in KEYS if name.startswith("te_fp8_") and name not in TRANSFORMER_ENGINE)
OF_DEEPSPEED = (deepspeed_table.TOP | deepspeed_table.RENAMED.keys()) - KEYS.keys()

NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}
ATTENTION = (
    "global", "flash", "local", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", "gmlp", "amlp", "rwkv",
    "mamba",
)  # fmt: skip
PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
