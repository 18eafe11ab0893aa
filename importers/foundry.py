"""llm-foundry configurations in YAML: an MPT model under Composer's FSDP.

    translate(yaml_mapping, request, ledger)  ->  {"model": ..., "cluster": ..., "plan": ...}

Facts read from mosaicml/llm-foundry, `llmfoundry/models/mpt/configuration_mpt.py`, `llmfoundry/utils/config_utils.py`
(`update_batch_size_info`), `scripts/train/yamls/pretrain`, and mosaicml/composer, `composer/distributed` (sharding,
and what `mixed_precision` PURE and DEFAULT reduce in).
"""

import re
from collections.abc import Mapping
from typing import Any

from importers import megatron
from importers.nemo import resolved
from importers.partitioned import fsdp
from importers.table import Values, nested, table
from importers.world import Request, agree, cluster_section
from plan.ledger import Ledger

KEYS = table(
    read="""
    whole 1 | model.d_model=model.hidden model.n_heads=model.heads model.n_layers=model.layers
        model.vocab_size=model.vocab max_seq_len=model.seq_length global_train_batch_size=plan.global_batch_size
        model.attn_config.kv_n_heads=model.kv_heads model.ffn_config.ffn_hidden_size model.max_seq_len
    any | device_train_microbatch_size=plan.micro_batch_size
    number >0 | model.expansion_ratio model.attn_config.rope_theta optimizer.eps=optimizer.eps model.norm_eps
    number 0 | optimizer.lr=optimizer.lr optimizer.weight_decay=optimizer.weight_decay
        algorithms.gradient_clipping.clipping_threshold=optimizer.clip_norm
    number 0 ..1 | scheduler.alpha_f
    number 0 <1 | model.emb_pdrop model.resid_pdrop=model.dropout
        model.attn_config.attn_pdrop=model.attention_dropout
    whole 0 | seed=train.seed
    switch | model.no_bias model.attn_config.alibi model.attn_config.rope model.attn_config.qk_ln
        model.attn_config.attn_uses_sequence_id model.learned_pos_emb model.tie_word_embeddings
        fsdp_config.activation_checkpointing fsdp_config.activation_cpu_offload
    word torch flash triton | model.attn_config.attn_impl
    word multihead_attention multiquery_attention grouped_query_attention | model.attn_config.attn_type
    word mptmlp mptglu | model.ffn_config.ffn_type
    word amp_bf16 amp_fp16 fp32 amp_fp8 | precision
    word FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD | fsdp_config.sharding_strategy
    word PURE DEFAULT FULL | fsdp_config.mixed_precision
    any | fsdp_config.device_mesh model.name model.norm_type max_duration scheduler.name scheduler.t_warmup
        optimizer.name optimizer.betas model.attn_config.sliding_window_size model.ffn_config.ffn_act_fn
        model.pretrained_model_name_or_path
    """,
    idle="""
    any | variables run_name tokenizer train_loader eval_loader eval_interval eval_first eval_subset_num_batches
        device_eval_batch_size callbacks loggers progress_bar log_to_console console_log_interval save_interval
        save_folder save_num_checkpoints_to_keep load_path dist_timeout python_log_level autoresume data_local
        data_remote global_seed icl_tasks model.init_device model.init_config model.fc_type model.verbose
        model.attn_config.clip_qkv fsdp_config.limit_all_gathers fsdp_config.activation_checkpointing_reentrant
        fsdp_config.verbose fsdp_config.forward_prefetch fsdp_config.backward_prefetch fsdp_config.state_dict_type
        algorithms code_paths max_split_size_mb expandable_segments model.use_cache model.logit_scale
    """,
)
NORMS = {"low_precision_layernorm": "layernorm", "layernorm": "layernorm", "low_precision_rmsnorm": "rmsnorm",
         "rmsnorm": "rmsnorm", "triton_rmsnorm": "rmsnorm"}  # fmt: skip


class Foundry(Values):
    """The dotted keys of a configuration."""

    kind = "llm-foundry key"
    sections = r"(model|fsdp_config)\."


def is_foundry(config: Mapping[str, Any]) -> bool:
    """Whether a mapping looks like an llm-foundry configuration."""
    return bool({"fsdp_config", "max_duration", "global_train_batch_size"} & config.keys())


def translate(config: Mapping[str, Any], request: Request, ledger: Ledger) -> dict[str, Any]:
    """The run of a configuration."""
    given = resolved(nested(config), ledger)
    values = Foundry(KEYS, given, ledger, request.asked)
    values.check()
    cluster, world = cluster_section(agree([], ledger), request, {}, ledger)
    plan = _plan(values)
    model = _model(values, request)
    plan |= _batch(values, request.ranks(world))
    kernel = values.text("model.attn_config.attn_impl", "flash")
    plan["attention"] = request.asked.get("plan.attention", "unfused" if kernel == "torch" else "flash")
    if plan["attention"] == "flash" and model.get("attention_dropout"):
        ledger.warn("attn_pdrop happens inside the flash kernel, where it is not forecast; it is set to 0")
        model["attention_dropout"] = 0.0
    run = {"model": model, **({"cluster": cluster} if cluster else {}), "plan": plan} | _training(values)
    values.account(request.accept_unknown)
    return run


def _model(values: Values, request: Request) -> dict[str, Any]:
    ledger, attention, ffn = values.ledger, "model.attn_config", "model.ffn_config"
    length = values.whole("max_seq_len", values.whole("model.max_seq_len"))
    if request.model is not None:
        return megatron.model_of(request.model, ledger) | ({"seq_length": length} if length else {})
    hidden, heads = values.whole("model.d_model"), values.whole("model.n_heads")
    if None in (hidden, heads, values.whole("model.n_layers")):
        name = values.text("model.pretrained_model_name_or_path") or values.text("model.name") or "none"
        ledger.problem(
            f"the configuration has no model of its own (model: {name}); add --model PRESET or a config.json"
        )
        return {}
    glu = values.text(f"{ffn}.ffn_type", "mptmlp") == "mptglu"
    width = values.whole(f"{ffn}.ffn_hidden_size") or int(
        (hidden or 0) * (values.number("model.expansion_ratio", 4) or 4)
    )
    kinds = {"multihead_attention": heads, "multiquery_attention": 1, "grouped_query_attention": None}
    rope, alibi = values.on(f"{attention}.rope"), values.on(f"{attention}.alibi")
    norm = values.text("model.norm_type", "low_precision_layernorm") or ""
    if norm not in NORMS:
        ledger.not_yet(f"norm_type {norm}", "layernorm or rmsnorm")
    if values.on(f"{attention}.qk_ln"):
        ledger.not_yet("norms of queries and keys (attn_config.qk_ln)", "qk_ln false")
    if values.has(window := f"{attention}.sliding_window_size") and values.given[window] != -1:
        ledger.not_yet(f"sliding-window attention ({window} {values.given[window]})", "no window")
    activation = values.given.get(f"{ffn}.ffn_act_fn")
    if (
        values.has(f"{ffn}.ffn_act_fn")
        and isinstance(activation, Mapping)
        and activation.get("name") not in ("gelu", "silu")
    ):
        ledger.not_yet(f"the activation {activation.get('name')}", "gelu, or silu in mptglu")
    no_bias = values.on("model.no_bias")
    found = {
        "seq_length": length,
        "ffn": width,
        "kv_heads": kinds[values.text(f"{attention}.attn_type", "multihead_attention") or "multihead_attention"],
        "activation": "swiglu" if glu else "gelu",
        "norm": NORMS.get(norm, "layernorm"),
        "positions": "rotary" if rope else "alibi" if alibi else "learned",
        "tied_embeddings": values.on("model.tie_word_embeddings", True),
        "bias": not no_bias,
        "qkv_bias": not no_bias,
        "vocab": 50368,
        "vocab_multiple": 1,
    } | values.run("model")
    if not values.has("model.vocab_size"):
        ledger.assume("vocabulary", "50368, MPT's default", "model.vocab_size", "parameters, memory, step time")
    if rope:
        found["rope"] = {"theta": values.number(f"{attention}.rope_theta", 10000)}
    return {key: value for key, value in found.items() if value is not None}


def _plan(values: Values) -> dict[str, Any]:
    ledger, section = values.ledger, "fsdp_config"
    strategy = values.text(f"{section}.sharding_strategy", "FULL_SHARD")
    mesh = values.given.get(f"{section}.device_mesh") if values.has(f"{section}.device_mesh") else None
    if isinstance(mesh, list) and len(mesh) > 1:
        ledger.not_yet(f"hybrid sharding (device_mesh {mesh})", "no device_mesh")
    if strategy == "HYBRID_SHARD":
        ledger.not_yet("hybrid sharding (sharding_strategy HYBRID_SHARD)", "FULL_SHARD")
    plan: dict[str, Any] = {"zero_stage": 3}
    if strategy == "NO_SHARD" or not any(key.startswith(section) for key in values.given):
        plan = {"zero_stage": 0}
    else:
        fsdp(plan, "Composer's FSDP", ledger)
        plan |= {"zero": {"reshard": strategy != "SHARD_GRAD_OP"}, "kernels": "llm-foundry"}
    words = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
    precision = words[values.text("precision", "amp_bf16") or "amp_bf16"]
    if not values.has("precision"):
        ledger.assume("precision", "bf16", "precision", "step time and memory")
    pure = values.text(f"{section}.mixed_precision", "PURE") == "PURE"
    plan |= {"precision": precision, "gradient_dtype": precision if pure and precision != "fp8" else "fp32"}
    plan["recompute"] = "full" if values.on(f"{section}.activation_checkpointing") else "none"
    if not values.has(f"{section}.activation_checkpointing"):
        ledger.assume("recompute", "none", f"{section}.activation_checkpointing", "memory against step time")
    if values.on(f"{section}.activation_cpu_offload"):
        plan["offload"] = {"activations": "cpu"}
    return plan


def _batch(values: Values, ranks: int | None) -> dict[str, Any]:
    """Composer shares the global batch out and cuts a share into micro-batches of at most the size given."""
    whole, ledger = values.whole("global_train_batch_size"), values.ledger
    micro = values.given["device_train_microbatch_size"] if values.has("device_train_microbatch_size") else "auto"
    if micro == "auto":
        micro = 1
        ledger.assume(
            "batch",
            "1 a GPU; Composer's auto halves it until it fits",
            "device_train_microbatch_size",
            "memory, step time",
        )
    micro = ledger.integer(micro, "device_train_microbatch_size", least=1)
    if whole is None or micro is None or not ranks:
        return {key: value for key, value in (("global_batch_size", whole), ("micro_batch_size", micro)) if value}
    if whole % ranks:
        near = max(1, round(whole / ranks)) * ranks
        ledger.problem(f"global_train_batch_size {whole} is not a multiple of the {ranks} GPUs; nearest {near}")
        return {}
    share = whole // ranks
    if micro > share:
        ledger.note(f"device_train_microbatch_size {micro} is more than a GPU's share of the batch: {share} is taken")
    micro = min(micro, share)
    if share % micro:
        fits = max(size for size in range(1, micro + 1) if share % size == 0)
        ledger.warn(f"a share of {share} sequences is cut into {micro} and a rest: {fits} at a time are forecast")
        micro = fits
    ledger.note(f"{share // micro} micro-batches a step = {whole} / ({micro} × {ranks} GPUs)")
    return {"micro_batch_size": micro, "global_batch_size": whole}


def _training(values: Values) -> dict[str, Any]:
    run: dict[str, Any] = {}
    steps = re.fullmatch(r"([0-9]{1,9})ba", values.text("max_duration", "") or "")
    train = values.run("train") | ({"steps": int(steps[1])} if steps else {})
    run |= {"train": train} if train else {}
    optimizer = values.run("optimizer")
    if isinstance(betas := values.given.get("optimizer.betas"), list) and values.has("optimizer.betas"):
        optimizer["betas"] = betas
    for key in ("scheduler.name", "scheduler.t_warmup", "scheduler.alpha_f", "optimizer.name", "model.emb_pdrop"):
        values.has(key)
    return run | ({"optimizer": optimizer} if optimizer else {})
