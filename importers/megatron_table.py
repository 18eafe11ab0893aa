"""The flags of Megatron-LM and Megatron-DeepSpeed (`importers.table`): type, range and target of each, and what becomes
of it.

Facts read from the argument parsers of NVIDIA/Megatron-LM, `megatron/training/arguments.py` (August 2026 and older
releases), and microsoft/Megatron-DeepSpeed, `megatron/arguments.py` (December 2024). A number is never "not given": a
count of 0 is a problem. Flags whose other words are real choices that are not forecast (`--optimizer`,
`--position-embedding-type`) are texts here and refused where they are translated.
"""

from typing import NamedTuple

from importers.table import table

FLAGS = table(
    prefix="--",
    read="""
    whole 1 | tensor-model-parallel-size=plan.tensor_parallel pipeline-model-parallel-size=plan.pipeline_parallel
        num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank~plan.virtual_pipeline
        microbatch-group-size-per-virtual-pipeline-stage~plan.microbatch_group
        context-parallel-size=plan.context_parallel expert-model-parallel-size micro-batch-size=plan.micro_batch_size
        global-batch-size=plan.global_batch_size num-layers=model.layers hidden-size=model.hidden
        ffn-hidden-size=model.ffn num-attention-heads=model.heads kv-channels=model.head_dim
        num-query-groups~model.kv_heads seq-length=model.seq_length max-position-embeddings=model.max_positions
        make-vocab-size-divisible-by=model.vocab_multiple ddp-bucket-size num-distributed-optimizer-instances
        vocab-size=model.vocab padded-vocab-size pad-vocab-size-to ds-sequence-parallel-size num-key-value-heads
        encoder-num-layers encoder-seq-length decoder-num-layers moe-expert-parallel-size
    text | pipeline-model-parallel-layout~plan.pipeline_layout position-embedding-type~model.positions normalization
        optimizer tokenizer-type tokenizer-model deepspeed_config pp-partition-method zero-reduce-bucket-size
        zero-allgather-bucket-size spec window-size window-attn-skip-freq hybrid-layer-pattern rotary-scaling-factor
        activation-func glu-activation fp4-format
    whole 0 | decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers num-experts recompute-num-layers
        zero-stage~plan.zero_stage cpu-offloading-num-layers mtp-num-layers
    number 0 ..1 | rotary-percent
    number >0 | rotary-base rope-scaling-factor rotary-seq-len-interpolation-factor
    number 0 untimed | loss-scale lr=optimizer.lr min-lr=optimizer.schedule.min_lr
        lr-warmup-iters~optimizer.schedule.warmup_steps lr-warmup-samples weight-decay=optimizer.weight_decay
        clip-grad=optimizer.clip_norm
    word full selective | recompute-granularity~plan.recompute
    word uniform block | recompute-method
    number 0 ..1 | optimizer-offload-fraction
    word flash fused unfused local auto | attention-backend~plan.attention
    word local transformer_engine inference_optimized | transformer-impl
    word e4m3 hybrid | fp8-format
    word constant linear cosine inverse-square-root WSD untimed | lr-decay-style
    whole 1 untimed | lr-decay-iters~optimizer.schedule.decay_steps lr-decay-samples train-iters=train.steps
        train-samples train-tokens
    number 0 ..1 untimed | lr-warmup-fraction
    number 0 <1 untimed | adam-beta1 adam-beta2
    number >0 untimed | adam-eps=optimizer.eps norm-epsilon layernorm-epsilon init-method-std=model.init_std
    whole 0 untimed | eval-interval=train.eval_every save-interval=checkpoint.every seed=train.seed
    number 0 <1 | hidden-dropout=model.dropout attention-dropout=model.attention_dropout
    word no_shard optim optim_grads optim_grads_params | data-parallel-sharding-strategy
    word none cpu nvme | remote-device
    list | rampup-batch-size recompute-modules step-batch-size-schedule
    switch | sequence-parallel~plan.sequence_parallel group-query-attention use-rope-scaling swiglu squared-relu
        quick-geglu openai-gelu disable-bias-linear add-qkv-bias untie-embeddings-and-output-weights bf16 fp16
        accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 use-distributed-optimizer overlap-grad-reduce
        overlap-param-gather account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
        use-megatron-fsdp use-torch-fsdp2 recompute-activations distribute-saved-activations~plan.partition_activations
        optimizer-cpu-offload use-flash-attn use-flash-attn-v1 use-flash-attn-v2 use-flash-attn-triton deepspeed
        no-pipeline-parallel cpu-optimizer deepspeed-activation-checkpointing partition-activations checkpoint-in-cpu
        enable-zbh1-pipeline embed-layernorm use-tp-pp-dp-mapping multi-latent-attention use-rotary-position-embeddings
        no-position-embedding qk-layernorm fine-grained-activation-offloading fp8-hybrid fp8-e4m3 use-mup
        is-hybrid-model apply-residual-connection-post-layernorm
    """,
    idle="""
    text | data-cache-path split vocab-file merge-file num-workers dataloader-type data-impl save load ckpt-format
        dist-ckpt-format async-strategy ckpt-step pretrained-checkpoint non-persistent-save-interval
        non-persistent-ckpt-type non-persistent-local-ckpt-dir non-persistent-global-ckpt-dir
        non-persistent-local-ckpt-algo replication-jump replication-factor ckpt-fully-parallel-save-process-group
        dist-ckpt-strictness dist-ckpt-workers load-tag log-interval timing-log-level timing-log-option tensorboard-dir
        tensorboard-log-interval tensorboard-queue-size wandb-project wandb-exp-name wandb-save-dir wandb-entity
        logging-level one-logger-project one-logger-run-name app-tag-run-name app-tag-run-version otel-service-name
        profile-step-start profile-step-end profile_steps memory-snapshot-path eval-iters start-eval-at-iter
        eval-micro-batch-size eval-global-batch-size exit-interval exit-duration-in-mins exit-signal
        distributed-timeout-minutes distributed-timeout-seconds-after-init distributed-backend local-rank local_rank
        lazy-mpu-init initial-loss-scale min-loss-scale loss-scale-window hysteresis lr-warmup-init lr-wsd-decay-style
        lr-wsd-decay-iters lr-wsd-decay-samples decoupled-lr decoupled-min-lr head-lr-mult sgd-momentum lion-beta1
        lion-beta2 rerun-mode error-injection-rate error-injection-type straggler-ctrlr-port straggler-minmax-count
        gpu-sniff-test-interval kill-switch-file adlr-autoresume-interval vocab-extra-ids tiktoken-pattern
        tiktoken-num-special-tokens tiktoken-special-tokens metadata-path null-tokenizer-eod-id null-tokenizer-pad-id
        data-args-path per-split-data-args-path mid-level-dataset-surplus mask-prob short-seq-prob sample-rate
        train-data-exact-num-epochs aml-data-download-path nccl-communicator-config-path yaml-cfg train-sync-interval
        num-dataset-builder-threads object-storage-cache-path flight-recorder-dump-path
        flight-recorder-trace-buffer-size embedding-init-method-std lr-decay-tokens lr-warmup-tokens master-addr
        master-port node-rank name kill-switch-path codecarbon-dir valid-num-workers
    list | data-path train-data-path valid-data-path test-data-path profile-ranks train-weighted-split-paths
        valid-weighted-split-paths test-weighted-split-paths train-weighted-split-paths-path
        valid-weighted-split-paths-path test-weighted-split-paths-path special-tokens iterations-to-skip
    switch | mock-data async-save no-load-optim no-load-rng no-save-optim no-save-rng finetune use-checkpoint-args
        use-mp-args-from-checkpoint-args exit-on-missing-checkpoint ckpt-assume-constant-structure
        ckpt-fully-parallel-save no-ckpt-fully-parallel-save ckpt-fully-parallel-load use-dist-ckpt
        auto-detect-ckpt-format use-persistent-ckpt-worker dist-ckpt-optim-fully-reshardable replication
        verify-integrity universal-checkpoint use-checkpoint-opt_param-scheduler use-checkpoint-opt-param-scheduler
        override-opt_param-scheduler override-opt-param-scheduler override-lr-scheduler use-checkpoint-lr-scheduler
        log-throughput log-params-norm log-num-zeros-in-grad log-progress log-straggler log-energy
        log-timers-to-tensorboard log-batch-size-to-tensorboard log-memory-to-tensorboard log-world-size-to-tensorboard
        log-validation-ppl-to-tensorboard log-optimizer-states-to-tensorboard log-learning-rate-to-tensorboard
        log-loss-scale-to-tensorboard no-log-loss-scale-to-tensorboard no-log-learnig-rate-to-tensorboard
        log-device-memory-used no-barrier-with-level-1-timing no-one-logger one-logger-async profile
        use-pytorch-profiler record-memory-history nvtx-ranges profile-backward pytorch-profiler-collect-shapes
        pytorch-profiler-collect-callstack use-nsys-profiler otel-enabled use-mcore-models use-legacy-models
        use-cpu-initialization init-method-xavier-uniform data-parallel-random-init reset-position-ids
        reset-attention-mask eod-mask-loss no-create-attention-mask-in-dataloader no-mmap-bin-files mmap-warmup
        no-data-sharding skip-train test-mode full-validation exit-signal-handler no-check-for-nan-in-loss-and-grad
        check-for-nan-in-loss-and-grad check-for-spiky-loss inprocess-restart enable-ft-package calc-ft-timeouts
        adlr-autoresume disable-straggler-on-startup manual-gc-eval te-rng-tracker inference-rng-tracker
        trust-remote-code tiktoken-legacy tokenizer-sentencepiece-legacy no-initialization no-align-grad-reduce
        no-align-param-gather create-moe-param-group create-all-gather-group use-pin-memory dataloader-fast-cache-load
        dataloader-defer-npy-index-mmap repeated-dataloader apply-layernorm-1p layernorm-zero-centered-gamma inference
        disable-jit-fuser use-gloo-process-groups disable-gloo-process-groups use-one-sent-docs no-load-lr-state
        reset-iteration reset-progress bert-no-binary-head no-pad-vocab-size norm-target-loss loss-on-targets-only
        abort-on-unmet-fused-kernel-constraints no-use-tokenizer-model-from-checkpoint-args enable-msc disable-msc
    """,
    left_out={
        "the forecast keeps the fused kernel": """
        switch | no-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion
            no-rope-fusion no-gradient-accumulation-fusion no-persist-layer-norm
        """,
        "this overlap of tensor-parallel communication is not forecast": """
        switch | tp-comm-overlap tp-comm-overlap-rs-dgrad tp-comm-bulk-dgrad tp-comm-bulk-wgrad
            no-async-tensor-model-parallel-allreduce disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs
        """,
        "the effect on the pipeline's communication is not forecast": """
        switch | no-overlap-p2p-communication overlap-p2p-communication overlap-p2p-communication-warmup-flush
            no-scatter-gather-tensors-in-pipeline defer-embedding-wgrad-compute delay-wgrad-compute
            overlap-param-gather-with-optimizer-step use-ring-exchange-p2p standalone-embedding-stage
            enable-zbh1-exact-semantics
        """,
        "the effect on step time or memory is not forecast": """
        switch | fp32-residual-connection fp16-lm-cross-entropy cross-entropy-loss-fusion use-precision-aware-optimizer
            attention-softmax-in-fp32 use-sharp use-nccl-ub enable-cuda-graph optimizer-cuda-graph
            overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params ddp-pad-buckets-for-high-nccl-busbw
            ddp-average-in-collective embedding-weights-in-fp32 sync-tp-duplicated-parameters calculate-per-token-loss
            random-ltd memory-centric-tiled-linear cpu_torch_adam ds_fused_adam synchronize-each-layer
            contigious-checkpointing no-contiguous-buffers-in-local-ddp manual-gc data-efficiency-curriculum-learning
            curriculum-learning disable-mem-efficient-ln use-tutel fp8-param-gather keep-fp8-transpose-cache
            deterministic-mode zero-contigious-gradients zero-reduce-scatter no-query-key-layer-scaling
            apply-query-key-layer-scaling check-for-large-grads enable-experimental decrease-batch-size-if-needed
            init-model-with-meta-device
        text | main-grads-dtype exp-avg-dtype exp-avg-sq-dtype main-params-dtype cuda-graph-impl cuda-graph-warmup-steps
            ddp-num-buckets empty-unused-memory-level tp-comm-overlap-cfg manual-gc-interval cross-entropy-fusion-impl
            check-weight-hash-across-dp-replicas-interval fp8-recipe fp8-amax-history-len fp8-amax-compute-algo
            fp8-margin fp8-interval tile-factor expert-tensor-parallel-size suggested-communication-unit-size
            outer-dp-sharding-strategy weight-decay-incr-style start-weight-decay end-weight-decay softmax-type DDP-impl
            tp-comm-overlap-bootstrap-backend
        list | cuda-graph-scope cuda-graph-modules cp-comm-type hierarchical-context-parallel-sizes offload-modules
        """,
    },
)

RENAMED: dict[str, tuple[str, str]] = {
    "--batch-size": (
        "--micro-batch-size",
        "the old flag means the batch of one data-parallel rank, without accumulation",
    ),
    "--model-parallel-size": ("--tensor-model-parallel-size", ""),
    "--warmup": ("--lr-warmup-fraction", ""),
    "--checkpoint-activations": (
        "--recompute-granularity full --recompute-method uniform",
        "Megatron-DeepSpeed still uses the old flag",
    ),
    "--checkpoint-num-layers": ("--recompute-num-layers", ""),
    "--activations-checkpoint-method": (
        "--recompute-method VALUE --recompute-granularity full",
        "alone it recomputed whole layers",
    ),
    "--distribute-checkpointed-activations": ("--distribute-saved-activations", ""),
    "--fp32-allreduce": ("--accumulate-allreduce-grads-in-fp32", ""),
    "--use-deepspeed": ("--deepspeed", "this form appears in tutorials only; no version of Megatron reads it"),
    "--deepspeed-config": ("--deepspeed_config", ""),
    "--rotary-position-embeddings-theta": ("--rotary-base", ""),
    "--tokenizer-name-or-path": ("--tokenizer-model", ""),
    "--flash-attn": ("--use-flash-attn", ""),
}


OLD_SWITCHES = frozenset(
    """--checkpoint-activations --distribute-checkpointed-activations --fp32-allreduce --use-deepspeed
    --flash-attn""".split()
)
"""Old names that take no value."""


class Arity(NamedTuple):
    """How many values follow a flag; `most` None means any number."""

    least: int
    most: int | None


def arity(flag: str) -> Arity | None:
    """How many values a known flag takes; None for an unknown one."""
    if flag in RENAMED:
        return Arity(0, 0) if flag in OLD_SWITCHES else Arity(1, 1)
    known = {"switch": Arity(0, 0), "list": Arity(1, None)}
    return known.get(FLAGS[flag].kind, Arity(1, 1)) if flag in FLAGS else None


def _families(prefixes: dict[str, str]) -> dict[str, str]:
    """Prefix → family, from family → prefixes."""
    return {prefix: family for family, text in prefixes.items() for prefix in text.split()}


PREFIXES_WITHOUT_EFFECT = _families(
    {
        "inference": "--inference-",
        "reinforcement learning": "--rl- --grpo- --langrl-",
        "RETRO": "--retro-",
        "retriever": "--biencoder- --retriever- --ict-",
        "BERT": "--bert-",
        "vision": "--dino- --vision- --img- --swin-",
        "restart": "--inprocess-",
        "fault tolerance": "--ft-",
        "logging": "--wandb- --tensorboard- --log- --one-logger- --otel-",
        "checkpoints": "--ckpt- --dist-ckpt- --save-",
        "logits files": "--logits-",
        "data": "--fim- --dataloader-",
        "tokenizer": "--tokenizer-",
    }
)
"""Families of flags that do not touch a pre-training step."""

FAMILIES_OF_OTHER_MODELS = _families(
    {
        "mixture-of-experts": "--moe- --topk",
        "multi-token prediction": "--mtp-",
        "Mamba": "--mamba-",
        "sparse attention": "--dsa-",
        "linear attention": "--linear-",
        "hyper-connections": "--mhc-",
        "Muon": "--muon-",
        "YaRN": "--yarn-",
        "latent attention": "--q-lora- --kv-lora- --qk-head- --qk-pos- --v-head-",
    }
)
"""Options of features whose switch (--num-experts, --multi-latent-attention, ...) decides; alone they do nothing."""


def family(flag: str) -> str | None:
    """The family of a flag known only by its prefix."""
    families = PREFIXES_WITHOUT_EFFECT | FAMILIES_OF_OTHER_MODELS
    return next((what for prefix, what in families.items() if flag.startswith(prefix)), None)
