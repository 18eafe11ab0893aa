"""Files that are right, one of each format that a command reads, with many of its keys: what `fuzz` mutates."""

from typing import Any

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq_length": 32, "vocab_multiple": 16}
RUN: dict[str, Any] = {
    "model": MODEL | {"kv_heads": 2, "norm": "rmsnorm", "positions": "rotary", "activation": "swiglu",
                      "rope": {"theta": 5e5, "scaling": {"kind": "llama3", "factor": 8}}},
    "cluster": {"preset": "cpu"},
    "plan": {"precision": "fp32", "tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 0,
             "micro_batch_size": 1, "global_batch_size": 2, "recompute": {"layers": 1}, "pipeline_layout": "auto",
             "communication": {"bucket_mb": "25 MB"}, "offload": {"fraction": 1.0}, "zero": {"prefetch": "auto"}},
    "optimizer": {"lr": 6e-4, "betas": [0.9, 0.95], "schedule": {"kind": "linear", "warmup_steps": 1}},
    "train": {"steps": 4, "seed": 1}, "budget": {"tokens": 1e6, "price_per_gpu_hour": 2.0}, "checkpoint": {"every": 0},
}  # fmt: skip
GPU: dict[str, Any] = {
    "model": MODEL | {"layers": 4},
    "cluster": {"gpu": "h100", "gpus": 4, "gpus_per_node": 2, "profile": "h100", "gpu_memory_gib": 79.0,
                "peak_tflops": {"bf16": 989.4}, "nvlink": {"bandwidth_gb_s": 450, "latency_us": 2},
                "nics": {"count": 8, "bandwidth_gb_s": "400 Gb/s", "latency_us": 5}, "pcie_gb_s": 50,
                "host": {"cores": 112, "memory_gib": 2048}, "fabric": {"kind": "rail", "oversubscription": 1.0},
                "price_per_gpu_hour": 3.0},
    "plan": {"pipeline_parallel": 2, "virtual_pipeline": 2, "global_batch_size": 8, "kernels": "triton"},
}  # fmt: skip
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "steps_per_print": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "bf16": {"enabled": True}, "gradient_clipping": 1.0,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True,
                          "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5,
                          "offload_optimizer": {"device": "cpu", "pin_memory": True}},
}  # fmt: skip
HUGGINGFACE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 512, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "rope_theta": 5e5, "tie_word_embeddings": False, "attention_bias": False,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "head_dim": 32, "attention_dropout": 0.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64},
}  # fmt: skip
NEOX: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64, "max_position_embeddings": 64,
    "pipe_parallel_size": 1, "model_parallel_size": 2, "pos_emb": "rotary", "rotary_pct": 1.0, "norm": "layernorm",
    "attention_config": [[["flash"], 2]], "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1, "fp16": {"enabled": True, "loss_scale": 0}, "train_iters": 100,
    "lr_decay_iters": 100, "warmup": 0.01, "hidden_dropout": 0, "attention_dropout": 0, "checkpoint_activations": True,
    "make_vocab_size_divisible_by": 128, "save_interval": 10,
}  # fmt: skip
TITAN = """[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 256
max_norm = 1.0
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
[checkpoint]
enable = true
interval = 500
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
