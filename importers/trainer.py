"""Fine-tuning files around Hugging Face's Trainer: axolotl and LLaMA-Factory YAML, with the DeepSpeed JSON that they
name beside them.

    translate(yaml_mapping, Beside, request, ledger)  ->  {"model": ..., "cluster": ..., "plan": ...}

Facts read from axolotl-ai-cloud/axolotl, `src/axolotl/utils/schemas`, hiyouga/LLaMA-Factory, `src/llamafactory/hparams`
(gradient checkpointing is on unless `disable_gradient_checkpointing`), and huggingface/transformers,
`training_args.py`. A key's `trainer.…` target is what both files mean by it.
"""

import re
from collections.abc import Mapping
from typing import Any

from importers import deepspeed, megatron
from importers.partitioned import fsdp
from importers.table import Values, table
from importers.world import Request, World, agree, cluster_section
from plan import presets
from plan.ledger import Ledger
from program.confined import Confined
from program.errors import InputError

AXOLOTL = table(
    read="""
    whole 1 | micro_batch_size=plan.micro_batch_size gradient_accumulation_steps=trainer.accumulation
        sequence_len=model.seq_length max_steps=train.steps
    whole 0 | seed=train.seed
    number 0 | learning_rate=optimizer.lr weight_decay=optimizer.weight_decay max_grad_norm=optimizer.clip_norm
    any | base_model=trainer.model bf16=trainer.bf16 fp16=trainer.fp16 bfloat16 float16 deepspeed=trainer.deepspeed
        fsdp=trainer.fsdp fsdp_config=trainer.fsdp_config adapter=trainer.adapter load_in_8bit=trainer.bits8
        load_in_4bit=trainer.bits4 optimizer=trainer.optimizer gradient_checkpointing=trainer.recompute
        tensor_parallel_size=trainer.tensor sequence_parallel_degree=trainer.ulysses context_parallel_size
    switch | flash_attention=trainer.flash sdp_attention=trainer.sdpa xformers_attention eager_attention=trainer.eager
    """,
    idle="""
    any | datasets dataset_prepared_path val_set_size output_dir sample_packing pad_to_sequence_len eval_sample_packing
        wandb_project wandb_entity wandb_watch wandb_name wandb_log_model num_epochs lr_scheduler train_on_inputs
        group_by_length tf32 early_stopping_patience resume_from_checkpoint local_rank logging_steps warmup_steps
        warmup_ratio evals_per_epoch eval_steps saves_per_epoch save_steps save_total_limit debug special_tokens tokens
        model_type tokenizer_type strict chat_template base_model_config trust_remote_code is_llama_derived_model
        lora_r lora_alpha lora_dropout lora_target_linear lora_target_modules lora_fan_in_fan_out lora_model_dir
        hub_model_id push_dataset_to_hub gradient_checkpointing_kwargs eval_table_size eval_max_new_tokens
        auto_resume_from_checkpoints plugins liger_rope liger_rms_norm liger_glu_activation
        liger_fused_linear_cross_entropy adam_beta1 adam_beta2 adam_epsilon cosine_min_lr_ratio dataloader_num_workers
    """,
)
LLAMA_FACTORY = table(
    read="""
    whole 1 | per_device_train_batch_size=plan.micro_batch_size gradient_accumulation_steps=trainer.accumulation
        cutoff_len=model.seq_length max_steps=train.steps
    whole 0 | seed=train.seed
    number 0 | learning_rate=optimizer.lr weight_decay=optimizer.weight_decay max_grad_norm=optimizer.clip_norm
    any | model_name_or_path=trainer.model bf16=trainer.bf16 fp16=trainer.fp16 pure_bf16 deepspeed=trainer.deepspeed
        fsdp=trainer.fsdp fsdp_config=trainer.fsdp_config quantization_bit=trainer.bits4 optim=trainer.optimizer
        flash_attn=trainer.kernel stage=trainer.stage
    word full lora freeze oft | finetuning_type=trainer.adapter
    switch | disable_gradient_checkpointing=trainer.keep
    """,
    idle="""
    any | do_train do_eval do_predict dataset dataset_dir eval_dataset template max_samples overwrite_cache output_dir
        preprocessing_num_workers dataloader_num_workers logging_steps save_steps plot_loss overwrite_output_dir
        save_only_model report_to num_train_epochs lr_scheduler_type warmup_ratio warmup_steps ddp_timeout val_size
        resume_from_checkpoint per_device_eval_batch_size eval_strategy eval_steps trust_remote_code lora_rank
        lora_alpha lora_target lora_dropout packing neat_packing tokenized_path streaming mix_strategy
        use_fast_tokenizer
        gradient_checkpointing upcast_layernorm save_total_limit include_num_input_tokens_seen enable_liger_kernel
    """,
)

ADAMW = re.compile(r"(paged_)?adam(w(_torch(_fused|_xla|_npu_fused)?|_hf|_apex_fused)?)?(_32bit)?")
"""Names of AdamW with its states in 32 bits."""


class Trainer(Values):
    """The keys of a configuration."""

    kind = "key"


def table_of(config: Mapping[str, Any]) -> Any:
    """The table of a configuration; None when it is neither of the two."""
    if "base_model" in config:
        return AXOLOTL
    factory = {"stage", "finetuning_type", "cutoff_len", "per_device_train_batch_size"}
    return LLAMA_FACTORY if "model_name_or_path" in config and factory & config.keys() else None


def translate(config: Mapping[str, Any], beside: Confined, request: Request, ledger: Ledger) -> dict[str, Any]:
    """The run of a configuration; the JSON that it names is read `beside` it."""
    values = Trainer(table_of(config), config, ledger, request.asked)
    values.check()
    said = values.run("trainer", "model", "plan", "optimizer", "train")
    trainer: dict[str, Any] = said.get("trainer", {})
    values.touched |= {key.name for key in values.table.values() if key.effect == "read"}
    _not_forecast(values, trainer)
    cluster, world = cluster_section(agree([], ledger), request, {}, ledger)
    model = _model(trainer.get("model"), request, ledger) | said.get("model", {})
    if "seq_length" not in model and model:
        length = 2048 if values.table is LLAMA_FACTORY else 512
        ledger.assume(
            "sequence length", str(length), "cutoff_len" if length == 2048 else "sequence_len", "memory, step time"
        )
        model["seq_length"] = length
    precision = _precision(values, trainer)
    plan = _plan(values, trainer, said.get("plan", {}), precision, beside, world, request, model)
    plan |= {"attention": _attention(values, trainer), "recompute": _recompute(values, trainer)}
    plan |= request.of("plan", ("attention", "recompute"))
    run: dict[str, Any] = {
        "model": model,
        "plan": plan,
        "optimizer": plan.pop("optimizer", {}) | said.get("optimizer", {}),
    }
    values.account()
    return run | ({"cluster": cluster} if cluster else {}) | ({"train": said["train"]} if "train" in said else {})


def _not_forecast(values: Values, trainer: Mapping[str, Any]) -> None:
    """Adapters and quantized weights."""
    if trainer.get("adapter") not in (None, "", "full"):
        values.ledger.not_yet(f"training of an adapter ({trainer['adapter']})", "all parameters")
    for key, bits in (("bits8", 8), ("bits4", 4)):
        if trainer.get(key) not in (None, False):
            values.ledger.not_yet(
                f"weights in {trainer[key] if trainer[key] is not True else bits} bits", "bf16 weights"
            )
    optimizer = str(trainer.get("optimizer") or "adamw_torch").lower()
    if not re.fullmatch(
        r"(paged_)?(adamw?|adamw_torch(_fused|_xla|_npu_fused)?|adamw_hf|adamw_apex_fused)(_32bit)?", optimizer
    ):
        values.ledger.not_yet(f"the optimizer {trainer['optimizer']}", "adamw_torch")
    for key in ("tensor", "ulysses"):
        if trainer.get(key) not in (None, 1):
            values.ledger.not_yet(f"{key} parallelism under Hugging Face's Trainer", "data parallelism")
    if trainer.get("stage") not in (None, "pt", "sft"):
        values.ledger.not_yet(f"stage {trainer['stage']}", "pt or sft")


def _model(name: object, request: Request, ledger: Ledger) -> dict[str, Any]:
    """The preset of a model by its name on a hub."""
    if request.model is not None:
        return megatron.model_of(request.model, ledger)
    found = preset_of(str(name))
    if found is None:
        ledger.problem(f"the model {name} is not known here; add --model PRESET, or the path of its config.json")
        return {}
    return {"preset": found}


def preset_of(name: str) -> str | None:
    """The preset of a model's name: "meta-llama/Meta-Llama-3-8B-Instruct" is llama-3-8b."""
    words = name.rstrip("/").rpartition("/")[2].lower().replace("meta-", "").replace("3.1", "3").replace("_", "-")
    for end in ("-hf", "-instruct", "-chat", "-base", "-it", "-v0.1", "-v0.3"):
        words = words.removesuffix(end)
    known = presets.names("models")
    return next(
        (each for each in (words, words.replace("-hf", ""), words.removesuffix("-chat")) if each in known), None
    )


def _precision(values: Values, trainer: Mapping[str, Any]) -> str:
    if trainer.get("fp16") is True:
        return "fp16"
    if trainer.get("bf16") not in (None, False) or values.given.get("bfloat16") or values.given.get("pure_bf16"):
        return "bf16"
    axolotl = values.table is AXOLOTL
    found = "bf16" if axolotl and trainer.get("bf16") is None else "fp32"
    values.ledger.assume("precision", f"{found}, as neither bf16 nor fp16 is set", "bf16", "step time and memory")
    return found


def _attention(values: Values, trainer: Mapping[str, Any]) -> str:
    kernel = trainer.get("kernel")
    if trainer.get("eager") or kernel in ("disabled", False):
        return "unfused"
    if not (trainer.get("flash") or trainer.get("sdpa") or kernel in ("fa2", "fa3", "sdpa", True)):
        flag = "flash_attention" if values.table is AXOLOTL else "flash_attn"
        values.ledger.assume("attention", "flash, by torch's own choice", flag, "memory and step time")
    return "flash"


def _recompute(values: Values, trainer: Mapping[str, Any]) -> str:
    if values.table is LLAMA_FACTORY:
        if "keep" not in trainer:
            flag = "disable_gradient_checkpointing"
            values.ledger.assume("recompute", "full, LLaMA-Factory's default", flag, "memory against step time")
        return "none" if trainer.get("keep") else "full"
    if "recompute" not in trainer:
        values.ledger.assume("recompute", "none", "gradient_checkpointing", "memory against step time")
    return "full" if trainer.get("recompute") not in (None, False) else "none"


def _plan(
    values: Values,
    trainer: Mapping[str, Any],
    said: Mapping[str, Any],
    precision: str,
    beside: Confined,
    world: World,
    request: Request,
    model: Mapping[str, Any],
) -> dict[str, Any]:
    """The engine that the file names, DeepSpeed, FSDP or none, and the batch."""
    ledger, default = values.ledger, 8 if values.table is LLAMA_FACTORY else 1
    micro, steps = said.get("micro_batch_size", default), trainer.get("accumulation", 1) or 1
    if "micro_batch_size" not in said:
        flag = "per_device_train_batch_size" if default == 8 else "micro_batch_size"
        ledger.assume("batch", f"{default} a GPU", flag, "memory, step time, tokens a step")
    batch, ranks = {"micro_batch_size": micro}, request.ranks(world)
    if request.asked.get("plan.global_batch_size"):
        batch["global_batch_size"] = request.asked["plan.global_batch_size"]
    elif ranks and micro:
        batch["global_batch_size"] = micro * steps * ranks
    json = trainer.get("deepspeed")
    if json:
        hidden = megatron.hidden_of(model, request.asked)
        return _deepspeed(values, json, batch | {"steps": steps, "hidden": hidden}, precision, beside, world, request)
    if "global_batch_size" in batch:
        ledger.note(f"global batch {batch['global_batch_size']} = micro batch {micro} × {steps} × {ranks} ranks")
    kinds = trainer.get("fsdp")
    words = " ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds or "")
    plan: dict[str, Any] = {"precision": precision, **batch}
    if not words and not trainer.get("fsdp_config"):
        ledger.note("neither deepspeed nor fsdp: data parallelism with whole parameters, zero_stage 0")
        return plan | {"implementation": "windtunnel", "zero_stage": 0}
    if "hybrid" in words:
        ledger.not_yet(f"hybrid sharding (fsdp {words})", "full_shard")
    part = {"zero_stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"} if "offload" in words else {}}
    fsdp(part, "torch's FSDP", ledger)
    return plan | part | {"zero": {"reshard": "shard_grad_op" not in words}, "gradient_dtype": precision}


def _deepspeed(
    values: Values,
    json: object,
    batch: Mapping[str, Any],
    precision: str,
    beside: Confined,
    world: World,
    request: Request,
) -> dict[str, Any]:
    """The JSON beside the file, with what the file says for "auto"."""
    ledger, config = values.ledger, json
    if isinstance(json, str):
        try:
            text = beside.text(json)
        except InputError as error:
            ledger.problem(str(error))
            return {}
        if text is None:
            ledger.problem(f"{json}, which the file names, is not beside it: put it there, or add --allow-read DIR")
            return {}
        config = deepspeed.read(text, json)
    if not isinstance(config, Mapping):
        ledger.problem(f"deepspeed is {json!r}, but must name a JSON file")
        return {}
    auto = {
        "train_micro_batch_size_per_gpu": batch["micro_batch_size"],
        "gradient_accumulation_steps": batch["steps"],
        "fp16.enabled": precision == "fp16",
        "bf16.enabled": precision == "bf16",
    }
    for key, name in (
        ("train_micro_batch_size_per_gpu", "micro batch"),
        ("gradient_accumulation_steps", "accumulation"),
    ):
        if isinstance(stated := config.get(key), int) and stated != auto[key]:
            ledger.problem(f"two values of the {name}: {stated} in {json} and {auto[key]} in the file; make them equal")
    clean = {key: value for key, value in config.items() if key != "train_batch_size" or value != "auto"}
    clean |= {key: auto[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
    setting = deepspeed.Setting(
        ranks=request.ranks(world), hidden=batch["hidden"], precision=precision, auto=auto, asked=request.asked
    )
    pieces = deepspeed.translate(clean, setting, ledger)
    plan: dict[str, Any] = pieces["plan"]
    return plan | {"optimizer": pieces.get("optimizer", {})}
