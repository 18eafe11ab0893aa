"""The keys of a Hugging Face `config.json`: which describe the architecture, which change nothing in a training run,
and which must keep their usual value for the architecture to be the one that `plan.huggingface` reads.

    check(config, ledger)        # notes what has no effect, names the unknown, refuses what is not forecast

Facts read from the configuration classes of transformers 4.57 and 5.17 (families: llama, mistral, qwen2, qwen3, phi3,
smollm3, mixtral, gpt2, bloom, gpt_neox) and from published configurations with code of their own (internlm2, baichuan).
"""

from collections.abc import Mapping
from typing import Any

from plan.ledger import Ledger

READ = frozenset(
    """model_type _name_or_path hidden_size n_embd n_embed d_model num_hidden_layers n_layer num_layers n_layers
    num_attention_heads n_head num_heads n_heads num_key_value_heads n_head_kv multi_query head_dim intermediate_size
    n_inner ffn_dim ffn_hidden_size vocab_size max_position_embeddings n_positions n_ctx seq_length model_max_length
    rms_norm_eps layer_norm_epsilon layer_norm_eps hidden_act activation_function hidden_activation initializer_range
    tie_word_embeddings attention_bias mlp_bias bias qkv_bias attention_dropout hidden_dropout resid_pdrop attn_pdrop
    embd_pdrop rope_theta rope_scaling rope_parameters rotary_emb_base rotary_pct partial_rotary_factor
    apply_residual_connection_post_layernorm use_parallel_residual num_local_experts n_routed_experts num_experts
    moe_num_experts kv_lora_rank quantization_config layer_types sliding_window use_sliding_window no_rope_layers
    max_window_layers original_max_position_embeddings gradient_checkpointing activation""".split()
)
"""Keys that are translated or refused by `plan.huggingface`."""

NO_EFFECT = frozenset(
    """architectures transformers_version torch_dtype dtype auto_map use_cache tokenizer_class prefix
    task_specific_params problem_type finetuning_task id2label label2id num_labels _num_labels
    _from_model_config _commit_hash _from_auto
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_implementation use_flash_attn
    _flash_attn_2_enabled _experts_implementation return_dict return_dict_in_generate output_attentions
    output_hidden_states output_scores output_router_logits torchscript use_bfloat16 tf_legacy_loss pruned_heads
    chunk_size_feed_forward is_decoder cross_attention_hidden_size tie_encoder_decoder max_length min_length
    max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens bos_token_id eos_token_id pad_token_id
    unk_token_id sep_token_id mask_token_id decoder_start_token_id summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj classifier_dropout pretraining_tp
    slow_but_exact masked_softmax_fusion bias_dropout_fusion attention_softmax_in_fp32 skip_bias_add skip_bias_add_qkv
    offset_alibi no_rope_layer_interval
    num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size decoder_sparse_step norm_topk_prob
    router_aux_loss_coef router_jitter_noise mlp_only_layers generation_config custom_pipelines""".split()
)
"""Labels, tokens, generation and bookkeeping; expert keys, which say nothing that `num_local_experts` has not said;
data types and attention kernels, which the plan decides."""

USUAL: dict[str, tuple[tuple[object, ...], str]] = {
    "is_encoder_decoder": ((False, None), "a decoder (is_encoder_decoder false)"),
    "add_cross_attention": ((False, None), "no cross-attention (add_cross_attention false)"),
    "scale_attn_by_inverse_layer_idx": ((False, None), "scale_attn_by_inverse_layer_idx false"),
    "reorder_and_upcast_attn": ((False, None), "attention in the plan's precision (reorder_and_upcast_attn false)"),
    "scale_attn_weights": ((True, None), "scores scaled by the head dimension (scale_attn_weights true)"),
    "use_qk_norm": ((False, None), "no norms on queries and keys"),
    "qk_layernorm": ((False, None), "no norms on queries and keys"),
    "attn_logit_softcapping": ((None, 0), "scores without a cap"),
    "final_logit_softcapping": ((None, 0), "logits without a cap"),
    "clip_qkv": ((None,), "queries and keys that are not clipped"),
    "z_loss_weight": ((None, 0), "cross entropy alone (z_loss_weight 0)"),
    "num_nextn_predict_layers": ((None, 0), "the next token alone (num_nextn_predict_layers 0)"),
    "parallel_attn": ((False, None), "attention before the MLP"),
}
"""Keys that are accepted at their usual values; at any other the model is not forecast: (values, nearest)."""


def check(config: Mapping[str, Any], ledger: Ledger, own: frozenset[str]) -> None:
    """Every key of a language configuration that nobody translates: a note, a refusal or an unknown name. `own`: what
    its family reads beside the others."""
    for key, value in config.items():
        if key in own:
            continue
        if key in USUAL:
            values, nearest = USUAL[key]
            if value not in values:
                ledger.not_yet(f"{key} {_text(value)}", nearest)
        elif key not in READ and key not in NO_EFFECT:
            ledger.unknown(key, READ | NO_EFFECT | set(USUAL) | own, "config.json key")
    ledger.no_effect((key for key in config if key in NO_EFFECT), "config.json")
    if config.get("gradient_checkpointing"):
        ledger.warn("gradient_checkpointing in a config.json is not the plan; set plan.recompute=full if it is meant")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
