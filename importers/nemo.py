"""NeMo and Megatron-Bridge configurations in YAML, as the Megatron flags that they stand for.

    translate(yaml_mapping, request, ledger)  ->  {"model": ..., "cluster": ..., "plan": ...}

Both run Megatron Core, so each key is one flag (`FLAGS`), and messages name the key. Facts read from NVIDIA/NeMo,
`examples/nlp/language_modeling/conf/megatron_gpt_config.yaml` and `collections/nlp/models/language_modeling` (1.x), and
NVIDIA-NeMo/Megatron-Bridge, `src/megatron/bridge/training/config.py` and the YAMLs under `examples/` (2025).
"""

import re
from collections.abc import Mapping
from typing import Any

from importers import megatron
from importers.arguments import Arguments
from importers.shell.expand import Expander
from importers.table import MATTERS, NEUTRAL, nested, refuse, unknown
from importers.world import Request, Statement, agree, cluster_section
from plan.ledger import Ledger

ROWS = """
--num-layers | model.num_layers
--hidden-size | model.hidden_size
--ffn-hidden-size | model.ffn_hidden_size
--num-attention-heads | model.num_attention_heads
--num-query-groups | model.num_query_groups
--kv-channels | model.kv_channels
--seq-length | model.encoder_seq_length model.seq_length dataset.sequence_length dataset.seq_length
--max-position-embeddings | model.max_position_embeddings
--position-embedding-type | model.position_embedding_type
--rotary-percent | model.rotary_percentage model.rotary_percent
--rotary-base | model.rotary_base
--rotary-seq-len-interpolation-factor | model.seq_len_interpolation_factor
--make-vocab-size-divisible-by | model.make_vocab_size_divisible_by
--vocab-size | model.vocab_size tokenizer.vocab_size model.override_vocab_size
--tokenizer-type | model.tokenizer.type tokenizer.tokenizer_type
--tokenizer-model | model.tokenizer.model tokenizer.tokenizer_model
--hidden-dropout | model.hidden_dropout
--attention-dropout | model.attention_dropout
--init-method-std | model.init_method_std
--norm-epsilon | model.layernorm_epsilon
--tensor-model-parallel-size | model.tensor_model_parallel_size
--pipeline-model-parallel-size | model.pipeline_model_parallel_size
--num-virtual-stages-per-pipeline-rank | model.virtual_pipeline_model_parallel_size
--context-parallel-size | model.context_parallel_size
--expert-model-parallel-size | model.expert_model_parallel_size
--num-experts | model.num_moe_experts
--micro-batch-size | model.micro_batch_size train.micro_batch_size
--global-batch-size | model.global_batch_size train.global_batch_size
--rampup-batch-size | model.rampup_batch_size train.rampup_batch_size
--recompute-granularity | model.activations_checkpoint_granularity model.recompute_granularity
--recompute-method | model.activations_checkpoint_method model.recompute_method
--recompute-num-layers | model.activations_checkpoint_num_layers model.recompute_num_layers
--recompute-modules | model.recompute_modules
--attention-backend | model.attention_backend
--window-size | model.window_size
--train-iters | trainer.max_steps train.train_iters
--clip-grad | trainer.gradient_clip_val optimizer.clip_grad
--eval-interval | trainer.val_check_interval train.eval_interval
--save-interval | checkpoint.save_interval
--seed | model.seed rng.seed
--lr | model.optim.lr optimizer.lr
--min-lr | model.optim.sched.min_lr optimizer.min_lr
--weight-decay | model.optim.weight_decay optimizer.weight_decay
--adam-beta1 | optimizer.adam_beta1
--adam-beta2 | optimizer.adam_beta2
--adam-eps | optimizer.adam_eps
--lr-warmup-iters | model.optim.sched.warmup_steps scheduler.lr_warmup_iters
--lr-decay-iters | scheduler.lr_decay_iters
--lr-decay-style | scheduler.lr_decay_style
--data-parallel-sharding-strategy | ddp.data_parallel_sharding_strategy
--num-distributed-optimizer-instances | ddp.num_distributed_optimizer_instances
"""
SWITCHES = """
--sequence-parallel | model.sequence_parallel
--use-distributed-optimizer | ddp.use_distributed_optimizer optimizer.use_distributed_optimizer
--overlap-grad-reduce | ddp.overlap_grad_reduce model.optim.overlap_grad_sync
--overlap-param-gather | ddp.overlap_param_gather model.optim.overlap_param_sync
--use-megatron-fsdp | ddp.use_megatron_fsdp
--swiglu | model.gated_linear_unit
--qk-layernorm | model.qk_layernorm
--use-flash-attn | model.use_flash_attention
--add-qkv-bias | model.add_qkv_bias model.qkv_bias
--optimizer-cpu-offload | optimizer.optimizer_cpu_offload
--distribute-saved-activations | model.distribute_saved_activations
"""
OFF = """
--disable-bias-linear | model.bias model.add_bias_linear
--untie-embeddings-and-output-weights | model.share_embeddings_and_output_weights
"""
"""Flags that a value of false stands for."""
NAMED = {
    "model.activation": {"gelu": "", "fast-swiglu": "--swiglu", "swiglu": "--swiglu", "squared-relu": "--squared-relu",
                         "geglu": "--quick-geglu", "fast-geglu": "--quick-geglu"},
    "model.normalization": {"layernorm": "--normalization LayerNorm", "layernorm1p": "--normalization LayerNorm",
                            "rmsnorm": "--normalization RMSNorm"},
    "mixed_precision": {"bf16_mixed": "--bf16", "16_mixed": "--fp16", "fp16_mixed": "--fp16", "fp32": ""},
    "trainer.precision": {"bf16": "--bf16", "bf16-mixed": "--bf16", "16": "--fp16", "16-mixed": "--fp16", "32": ""},
    "model.optim.name": {"fused_adam": "", "adamw": "", "adam": "", "distributed_fused_adam":
                         "--use-distributed-optimizer", "mcore_distributed_optim": "--use-distributed-optimizer"},
    "model.optim.sched.name": {"CosineAnnealing": "--lr-decay-style cosine",
                               "WarmupAnnealing": "--lr-decay-style linear"},
    "model.transformer_engine": {"true": "--transformer-impl transformer_engine", "false": "--transformer-impl local"},
    "ddp.grad_reduce_in_fp32": {"true": "--accumulate-allreduce-grads-in-fp32", "false": "--grad-reduce-in-bf16"},
    "model.fp8": {"true": "--fp8-format hybrid", "hybrid": "--fp8-format hybrid", "e4m3": "--fp8-format e4m3",
                  "false": ""},
}  # fmt: skip
"""Keys whose words stand for a flag each."""
KEYS: dict[str, list[str]] = {
    row.partition(" | ")[0]: row.partition(" | ")[2].split()
    for row in (ROWS + SWITCHES + OFF).strip().splitlines()
    if row
} | {
    "--bf16": ["trainer.precision", "mixed_precision"],
    "--fp16": ["trainer.precision", "mixed_precision"],
    "--transformer-impl": ["model.transformer_engine"],
    "--use-mcore-models": ["model.mcore_gpt"],
}
SIZES = {"trainer.devices": "gpus_per_node", "trainer.num_nodes": "nodes"}
IDLE = re.compile(
    r"^(name|run|defaults|hydra|restore_from_path|exp_manager|cluster_type|logger|profiling|profile|checkpoint|rng|dist|straggler"
    r"|tokenizer|dataset|scheduler|trainer|validation|tensor_inspect|rerun_state_machine|nvrx_straggler"
    r"|model\.(data|tokenizer|nsys_profile|optim|fp8_\w+|native_amp_\w+|hysteresis|_target_|gradient_as_bucket_view"
    r"|apex_\w+|resume_from_checkpoint|megatron_legacy|mcore_gpt|pre_process|post_process|persist_layer_norm"
    r"|\w+_fusion|onnx_safe|apply_query_key_layer_scaling|use_cpu_initialization|sync_batch_comm|openai_gelu|grad_\w+|headscale|use_emha"
    r"|transformer_block_type|attention_type|do_layer_norm_weight_decay|normalize_attention_scores))\b"
)


def is_nemo(config: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like a NeMo or Megatron-Bridge configuration."""
    config = _sections(config)
    model = config.get("model")
    if not isinstance(model, Mapping) or {"plan", "cluster"} & config.keys():
        return False
    train = config.get("train")
    bridge = isinstance(train, Mapping) and {"micro_batch_size", "train_iters"} & train.keys()
    return bool("tensor_model_parallel_size" in model or "encoder_seq_length" in model or bridge)


def translate(config: Mapping[str, Any], request: Request, ledger: Ledger) -> dict[str, Any]:
    """The run of a configuration."""
    config = _sections(config)
    given = resolved(nested(config), ledger)
    arguments = Arguments(Expander(), ledger)
    flags = arguments.given
    rest = dict(given)
    for rows, wanted in ((ROWS, None), (SWITCHES, True), (OFF, False)):
        for row in rows.strip().splitlines():
            flag, _, keys = row.partition(" | ")
            for key in (key for key in keys.split() if rest.pop(key, None) is not None or key in given):
                value = given[key]
                if value is None or (wanted is not None and value is not wanted) or flag in flags:
                    continue
                arguments.written[flag] = key
                flags[flag] = "" if wanted is not None else _text(value)
    for key, choices in NAMED.items():
        if (value := rest.pop(key, None)) is None:
            continue
        alike = next((each for each in choices if each.lower() == _text(value).lower()), _text(value))
        word = ledger.choice(alike, key, list(choices))
        for flag in choices.get(word or "", "").split("--")[1:]:
            name, _, inner = f"--{flag.strip()}".partition(" ")
            arguments.written[name] = key
            flags[name] = inner
    if "trainer" not in config and "mixed_precision" not in given:
        flags["--bf16"] = ""
        ledger.assume(
            "precision", "bf16, as Megatron-Bridge's recipes set it", "mixed_precision", "step time and memory"
        )
    if "--num-query-groups" in flags:
        flags["--group-query-attention"] = ""
    if isinstance(betas := rest.pop("model.optim.betas", None), list) and len(betas) == 2:
        flags["--adam-beta1"], flags["--adam-beta2"] = map(_text, betas)
    if "--transformer-impl" not in flags and ("trainer" not in config or given.get("model.mcore_gpt")):
        flags["--use-mcore-models"] = ""  # NeMo before Megatron Core had layers of its own
    if given.get("model.megatron_amp_O2") is False:
        ledger.warn(
            "model.megatron_amp_O2 false keeps parameters in fp32 beside those of the layers: not in the forecast"
        )
    rest.pop("model.megatron_amp_O2", None)
    arguments.lay({target: str(value) for target, value in request.asked.items()})
    found = [Statement(SIZES[key], size, key) for key in SIZES if (size := _size(rest.pop(key, None))) is not None]  # type: ignore[arg-type]
    cluster, world = cluster_section(agree(found, ledger), request, {}, ledger)
    run = megatron.of_arguments(arguments, request, cluster, world, ledger)
    ledger.reword(lambda said: re.sub(r"--[a-z][a-z0-9-]+", lambda match: key_of(match[0], config), said))
    left = [key for key in rest if rest[key] not in NEUTRAL]
    ledger.no_effect([key for key in left if IDLE.match(key)], "NeMo keys")
    strange = [key for key in left if not IDLE.match(key)]
    matter = {key: f"{key} {_text(rest[key])}" for key in strange if key.startswith("model.") and MATTERS.search(key)}
    if not request.accept_unknown:
        strange = [key for key in strange if key not in refuse("NeMo key", matter, arguments)]
    unknown("NeMo key", strange, [key for keys in KEYS.values() for key in keys], ledger)
    return run


def _sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron-Bridge's sections under their names of today: `model`, once `model_config`."""
    return {str(name).removesuffix("_config") if "model_config" in config else name: config[name] for name in config}


def key_of(flag: str, config: Mapping[str, Any]) -> str:
    """The key of a flag that stands in a section of this configuration, else the first."""
    keys = KEYS.get(flag, [flag])
    return next((key for key in keys[:: 1 if "trainer" in config else -1] if key.partition(".")[0] in config), keys[0])


def resolved(given: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Dotted keys with `${other.key}` filled in; what cannot be is left out, with a sentence."""
    found = dict(given)
    for key, value in given.items():
        for _ in range(10):
            if not isinstance(value, str) or not (match := re.fullmatch(r"\$\{(\.?[\w.]{1,200})\}", value)):
                break
            name = key.rpartition(".")[0] + match[1] if match[1][0] == "." else match[1]  # `${.beside}`
            value = given.get(name, given.get(f"variables.{name}"))
        if isinstance(value, str) and "${" in value and not IDLE.match(key):
            ledger.warn(f"{key} is {value}, which cannot be known here: it is taken as not given")
            value = None
        found[key] = value
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
