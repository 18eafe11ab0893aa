"""GPT-NeoX configurations: YAML whose keys are DeepSpeed's plus the model's, with '-' or '_' between words.

translate(yaml_mapping, Setting(...), ledger)  ->  {"model": ..., "plan": ..., "optimizer": ...}
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plan.importers import deepspeed, deepspeed_keys
from plan.importers.ledger import Ledger
from plan.nearest import shown

READ = frozenset(
    """pipe_parallel_size model_parallel_size num_layers hidden_size num_attention_heads num_kv_heads seq_length
    max_position_embeddings pos_emb rotary_pct rotary_emb_base no_weight_tying gpt_j_residual gpt_j_tied norm
    layernorm_epsilon rms_norm_epsilon activation intermediate_size use_bias_in_norms use_bias_in_attn_linear
    use_bias_in_mlp hidden_dropout attention_dropout make_vocab_size_divisible_by vocab_size checkpoint_activations
    checkpoint_num_layers partition_activations train_iters lr_decay_iters lr_decay_style warmup min_lr
    checkpoint_factor save_interval precision weight_decay synchronize_each_layer attention_config sparsity_config
    init_method output_layer_init_method sequence_parallel tokenizer_type
    num_experts mlp_type seed eval_interval""".split()
)
NO_EFFECT = frozenset(
    """data_path train_data_paths valid_data_paths test_data_paths data_impl split vocab_file merge_file save load
    log_interval eval_iters num_workers distributed_backend tensorboard_dir log_dir use_wandb wandb_project wandb_team
    wandb_group wandb_host keep_last_n_checkpoints steps_per_print wall_clock_breakdown launcher deepspeed_mpi hostfile
    include exclude num_gpus num_nodes scaled_upper_triang_masked_softmax_fusion bias_gelu_fusion rope_fusion
    checkpoint_validation_with_forward_pass finetune
    attention_softmax_in_fp32 extra_save_iters s3_path log_grad_norm""".split()
)
DEFAULT_VOCABULARY = 50257
POSITIONS = ("learned", "rotary", "alibi")


def is_neox(config: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like a GPT-NeoX configuration."""
    names = {str(key).replace("-", "_") for key in config}
    return "num_layers" in names and bool(
        {"pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu"} & names
    )


def translate(
    config: Mapping[str, Any], setting: deepspeed.Setting, world: int | None, ledger: Ledger
) -> dict[str, Any]:
    """The run of a configuration; `world` is the number of GPUs, if known."""
    keys = _one_spelling(config, ledger)
    degrees = (
        ledger.integer(keys.get("model_parallel_size", 1), "model_parallel_size", least=1),
        ledger.integer(keys.get("pipe_parallel_size", 1), "pipe_parallel_size", least=0),  # 0: without the engine
    )
    tensor, pipeline = (degree or 1 for degree in degrees)
    share = None if None in degrees else tensor * pipeline
    ranks = world // share if world and share and world % share == 0 else None
    if ranks:
        ledger.note(f"data_parallel {ranks} = {world} GPUs / (TP{tensor} × PP{pipeline})")
    setting = replace(setting, ranks=ranks, wrong=share is None, tensor_parallel=tensor, pipeline_parallel=pipeline)
    json_part = {
        key: value for key, value in keys.items() if key in deepspeed_keys.TOP or key in deepspeed_keys.RENAMED
    }
    run = deepspeed.translate(json_part, setting, ledger)
    plan = run["plan"] | {"tensor_parallel": tensor, "pipeline_parallel": pipeline}
    if keys.get("checkpoint_activations"):
        plan["recompute"] = "full"
    if keys.get("partition_activations") and tensor > 1 and plan.get("recompute") == "full":
        plan["partition_activations"] = True
    if plan["zero_stage"] <= 1:
        plan.pop("gradient_dtype", None)  # the engine's own: fp32 beside bf16, fp16 beside fp16
        ledger.note("GPT-NeoX is DeepSpeed's engine around Megatron's layers: implementation deepspeed")
    run |= {"plan": plan, "model": _model(keys, ledger)}
    _training(keys, run, ledger)
    _account(keys, ledger)
    return run


def _one_spelling(config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in config.items():
        name = str(key).replace("-", "_")
        if name in keys and keys[name] != value:
            ledger.problem(f"the key {name} stands twice, with {shown(keys[name])} and {shown(value)}; keep one")
        keys[name] = value
    return keys


def _not_forecast(keys: Mapping[str, Any], positions: str, activation: str, ledger: Ledger) -> None:
    """What GPT-NeoX can do to a layer and the forecast cannot yet."""
    if positions not in POSITIONS:
        ledger.not_yet(f"pos_emb {positions}", "rotary, learned or alibi")
    part = ledger.number(keys.get("rotary_pct", 1.0), "rotary_pct")
    if positions == "rotary" and part != 1.0:
        ledger.not_yet(f"rotary embeddings on {part} of the head (rotary_pct)", "rotary_pct 1")
    if keys.get("gpt_j_residual"):
        ledger.not_yet("attention and MLP in parallel (gpt_j_residual)", "gpt_j_residual false")
    experts = ledger.integer(keys["num_experts"], "num_experts", least=0) if "num_experts" in keys else 1
    if (experts or 1) > 1:
        ledger.not_yet(f"mixture of experts (num_experts {keys['num_experts']})", "num_experts 1")
    if activation not in ("gelu", "swiglu"):
        ledger.not_yet(f"activation {activation}", "gelu or swiglu")


def _model(keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    def whole(key: str, default: int | None = None, least: int = 1) -> int | None:
        return ledger.integer(keys[key], key, least) if key in keys else default

    needed = {key: whole(key) for key in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")}
    for key, value in needed.items():
        if value is None and key not in keys:
            ledger.problem(f"the GPT-NeoX configuration has no {key}")
    positions = str(keys.get("pos_emb", "rotary" if "rotary_pct" in keys else "learned"))
    activation = str(keys.get("activation", "gelu"))
    _not_forecast(keys, positions, activation, ledger)
    vocabulary = whole("vocab_size")
    if "vocab_size" not in keys:
        vocabulary = DEFAULT_VOCABULARY
        ledger.warn(f"vocab_size is not given: {vocabulary} (GPT-2's) is assumed; set model.vocab")
    model: dict[str, Any] = {
        "layers": needed["num_layers"],
        "hidden": needed["hidden_size"],
        "heads": needed["num_attention_heads"],
        "seq_length": needed["seq_length"],
        "vocab": vocabulary,
        "vocab_multiple": whole("make_vocab_size_divisible_by", 128),
        "positions": positions if positions in POSITIONS else "rotary",
        "activation": "swiglu" if activation == "swiglu" else "gelu",
        "norm": "rmsnorm" if str(keys.get("norm", "layernorm")) == "rmsnorm" else "layernorm",
        "tied_embeddings": not keys.get("no_weight_tying", False),
        "dropout": ledger.number(keys.get("hidden_dropout", 0.0), "hidden_dropout", least=0, below=1),
        "attention_dropout": ledger.number(keys.get("attention_dropout", 0.0), "attention_dropout", least=0, below=1),
    }
    extra = {"kv_heads": whole("num_kv_heads"), "ffn": whole("intermediate_size")}
    if positions == "rotary":
        model["rope"] = {"theta": ledger.number(keys.get("rotary_emb_base", 10000), "rotary_emb_base", above=0)}
    return model | {key: value for key, value in extra.items() if value is not None}


def _training(keys: Mapping[str, Any], run: dict[str, Any], ledger: Ledger) -> None:
    steps = ledger.integer(keys["train_iters"], "train_iters", least=1) if "train_iters" in keys else None
    if steps:
        run["train"] = {"steps": steps}
        run.setdefault("optimizer", {})["schedule"] = {
            "kind": str(keys.get("lr_decay_style", "cosine")),
            "decay_steps": ledger.integer(keys.get("lr_decay_iters", steps), "lr_decay_iters", least=1),
            "warmup_steps": int((ledger.number(keys.get("warmup", 0.01), "warmup", least=0, most=1) or 0) * steps),
            "min_lr": ledger.number(keys.get("min_lr", 0.0), "min_lr", least=0),
        }
    every = keys.get("save_interval", keys.get("checkpoint_factor"))
    if "checkpoint_factor" in keys:
        ledger.note("checkpoint_factor is the old name of save_interval")
    if every is not None and not isinstance(every, Mapping):
        run["checkpoint"] = {
            "every": ledger.integer(every, "save_interval" if "save_interval" in keys else "checkpoint_factor", least=0)
        }


def _account(keys: Mapping[str, Any], ledger: Ledger) -> None:
    known = READ | NO_EFFECT | deepspeed_keys.TOP | frozenset(deepspeed_keys.RENAMED)
    ledger.no_effect([key for key in keys if key in NO_EFFECT], "GPT-NeoX keys")
    for key in keys:
        if key not in known:
            ledger.unknown(key, known, "GPT-NeoX key")
