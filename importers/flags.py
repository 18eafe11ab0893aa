"""The flags of Megatron-LM and Megatron-DeepSpeed: how many values each takes and what becomes of it.

Facts read from the argument parsers of NVIDIA/Megatron-LM (August 2026 and older releases) and
microsoft/Megatron-DeepSpeed (December 2024). Four groups: TRANSLATED flags set something of a run
(`importers.megatron` reads them), RENAMED old forms are first rewritten, UNMODELLED flags change a real run in a
way that the forecast leaves out (each is a warning with its reason), and NO_EFFECT flags change neither time nor memory
of a step.
"""

import re
from typing import NamedTuple


class Arity(NamedTuple):
    """How many values follow a flag; `most` None means any number."""

    least: int
    most: int | None


def _names(text: str, least: int, most: int | None) -> dict[str, Arity]:
    return {f"--{name}": Arity(least, most) for name in text.split()}


TRANSLATED = (
    _names(
        """tensor-model-parallel-size pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage
        num-virtual-stages-per-pipeline-rank pipeline-model-parallel-layout decoder-first-pipeline-num-layers
        decoder-last-pipeline-num-layers microbatch-group-size-per-virtual-pipeline-stage context-parallel-size
        expert-model-parallel-size num-experts micro-batch-size global-batch-size num-layers hidden-size ffn-hidden-size
        num-attention-heads kv-channels num-query-groups seq-length max-position-embeddings position-embedding-type
        rotary-base rotary-percent normalization make-vocab-size-divisible-by loss-scale ddp-bucket-size
        num-distributed-optimizer-instances recompute-granularity recompute-method recompute-num-layers optimizer
        optimizer-offload-fraction attention-backend transformer-impl fp8-format lr min-lr lr-decay-style lr-decay-iters
        lr-decay-samples lr-warmup-iters lr-warmup-fraction lr-warmup-samples weight-decay clip-grad adam-beta1
        adam-beta2 adam-eps train-iters train-samples train-tokens eval-interval tokenizer-type tokenizer-model
        vocab-size padded-vocab-size pad-vocab-size-to save-interval seed hidden-dropout attention-dropout norm-epsilon
        layernorm-epsilon init-method-std deepspeed_config zero-stage ds-sequence-parallel-size pp-partition-method
        cpu-offloading-num-layers data-parallel-sharding-strategy num-key-value-heads
        rope-scaling-factor encoder-num-layers encoder-seq-length decoder-num-layers remote-device
        zero-reduce-bucket-size zero-allgather-bucket-size moe-expert-parallel-size spec mtp-num-layers window-size
        window-attn-skip-freq
        hybrid-layer-pattern
        rotary-seq-len-interpolation-factor rotary-scaling-factor activation-func""",
        1,
        1,
    )
    | _names("rampup-batch-size recompute-modules step-batch-size-schedule", 1, None)
    | _names(
        """sequence-parallel group-query-attention use-rope-scaling swiglu squared-relu quick-geglu openai-gelu
        disable-bias-linear add-qkv-bias untie-embeddings-and-output-weights bf16 fp16
        accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 use-distributed-optimizer overlap-grad-reduce
        overlap-param-gather account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
        use-megatron-fsdp use-torch-fsdp2 recompute-activations distribute-saved-activations optimizer-cpu-offload
        use-flash-attn use-flash-attn-v1 use-flash-attn-v2 use-flash-attn-triton deepspeed no-pipeline-parallel
        cpu-optimizer deepspeed-activation-checkpointing partition-activations checkpoint-in-cpu enable-zbh1-pipeline
        embed-layernorm use-tp-pp-dp-mapping multi-latent-attention use-rotary-position-embeddings no-position-embedding
        qk-layernorm fine-grained-activation-offloading fp8-hybrid fp8-e4m3 use-mup is-hybrid-model
        apply-residual-connection-post-layernorm""",
        0,
        0,
    )
    | {"--glu-activation": Arity(1, 1), "--fp4-format": Arity(1, 1)}
)

WITHOUT_TIME = frozenset(
    _names(
        """seed lr min-lr lr-decay-style lr-decay-iters lr-decay-samples lr-warmup-iters lr-warmup-fraction
        lr-warmup-samples weight-decay clip-grad adam-beta1 adam-beta2 adam-eps train-iters train-samples train-tokens
        eval-interval save-interval init-method-std
        norm-epsilon layernorm-epsilon loss-scale""",
        1,
        1,
    )
)
"""Translated flags that change what is learnt or how long, not what a step costs."""

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
RENAMED_ARITY = _names(
    "checkpoint-activations distribute-checkpointed-activations fp32-allreduce use-deepspeed flash-attn", 0, 0
)


def _unmodelled(text: str, arity: Arity, reason: str) -> dict[str, tuple[Arity, str]]:
    return dict.fromkeys(_names(text, *arity), (arity, reason))


UNMODELLED: dict[str, tuple[Arity, str]] = (
    _unmodelled(
        """no-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion
        no-rope-fusion no-gradient-accumulation-fusion no-persist-layer-norm""",
        Arity(0, 0),
        "the forecast keeps the fused kernel",
    )
    | _unmodelled(
        """tp-comm-overlap tp-comm-overlap-rs-dgrad tp-comm-bulk-dgrad tp-comm-bulk-wgrad
        no-async-tensor-model-parallel-allreduce disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs""",
        Arity(0, 0),
        "this overlap of tensor-parallel communication is not forecast",
    )
    | _unmodelled(
        """no-overlap-p2p-communication overlap-p2p-communication overlap-p2p-communication-warmup-flush
        no-scatter-gather-tensors-in-pipeline defer-embedding-wgrad-compute delay-wgrad-compute
        overlap-param-gather-with-optimizer-step use-ring-exchange-p2p standalone-embedding-stage
        enable-zbh1-exact-semantics""",
        Arity(0, 0),
        "its effect on the pipeline's communication is not forecast",
    )
    | _unmodelled(
        """fp32-residual-connection fp16-lm-cross-entropy cross-entropy-loss-fusion
        use-precision-aware-optimizer attention-softmax-in-fp32 use-sharp use-nccl-ub enable-cuda-graph
        optimizer-cuda-graph overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params
        ddp-pad-buckets-for-high-nccl-busbw ddp-average-in-collective embedding-weights-in-fp32
        sync-tp-duplicated-parameters calculate-per-token-loss random-ltd memory-centric-tiled-linear
        cpu_torch_adam ds_fused_adam synchronize-each-layer contigious-checkpointing
        no-contiguous-buffers-in-local-ddp manual-gc data-efficiency-curriculum-learning curriculum-learning
        disable-mem-efficient-ln use-tutel fp8-param-gather keep-fp8-transpose-cache deterministic-mode
        zero-contigious-gradients zero-reduce-scatter no-query-key-layer-scaling
        apply-query-key-layer-scaling check-for-large-grads enable-experimental
        decrease-batch-size-if-needed init-model-with-meta-device""",
        Arity(0, 0),
        "its effect on step time or memory is not forecast",
    )
    | _unmodelled(
        """main-grads-dtype exp-avg-dtype exp-avg-sq-dtype main-params-dtype cuda-graph-impl cuda-graph-warmup-steps
        ddp-num-buckets empty-unused-memory-level tp-comm-overlap-cfg manual-gc-interval
        cross-entropy-fusion-impl check-weight-hash-across-dp-replicas-interval fp8-recipe
        fp8-amax-history-len fp8-amax-compute-algo fp8-margin fp8-interval tile-factor
        expert-tensor-parallel-size suggested-communication-unit-size outer-dp-sharding-strategy
        weight-decay-incr-style start-weight-decay end-weight-decay softmax-type DDP-impl
        tp-comm-overlap-bootstrap-backend""",
        Arity(1, 1),
        "its effect on step time or memory is not forecast",
    )
    | _unmodelled(
        """cuda-graph-scope cuda-graph-modules cp-comm-type hierarchical-context-parallel-sizes offload-modules""",
        Arity(1, None),
        "its effect on step time or memory is not forecast",
    )
)

NO_EFFECT = (
    _names(
        """data-cache-path split vocab-file merge-file num-workers dataloader-type data-impl
        save load ckpt-format dist-ckpt-format async-strategy ckpt-step pretrained-checkpoint
        non-persistent-save-interval non-persistent-ckpt-type non-persistent-local-ckpt-dir
        non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo replication-jump replication-factor
        ckpt-fully-parallel-save-process-group dist-ckpt-strictness dist-ckpt-workers load-tag log-interval
        timing-log-level timing-log-option tensorboard-dir tensorboard-log-interval tensorboard-queue-size wandb-project
        wandb-exp-name wandb-save-dir wandb-entity logging-level one-logger-project one-logger-run-name app-tag-run-name
        app-tag-run-version otel-service-name profile-step-start profile-step-end profile_steps memory-snapshot-path
        eval-iters start-eval-at-iter eval-micro-batch-size eval-global-batch-size exit-interval exit-duration-in-mins
        exit-signal distributed-timeout-minutes distributed-timeout-seconds-after-init distributed-backend local-rank
        local_rank lazy-mpu-init initial-loss-scale min-loss-scale loss-scale-window hysteresis lr-warmup-init
        lr-wsd-decay-style lr-wsd-decay-iters lr-wsd-decay-samples decoupled-lr decoupled-min-lr head-lr-mult
        sgd-momentum lion-beta1 lion-beta2 rerun-mode error-injection-rate error-injection-type straggler-ctrlr-port
        straggler-minmax-count gpu-sniff-test-interval kill-switch-file adlr-autoresume-interval vocab-extra-ids
        tiktoken-pattern tiktoken-num-special-tokens tiktoken-special-tokens metadata-path null-tokenizer-eod-id
        null-tokenizer-pad-id data-args-path per-split-data-args-path mid-level-dataset-surplus mask-prob short-seq-prob
        sample-rate  train-data-exact-num-epochs  aml-data-download-path nccl-communicator-config-path yaml-cfg
        train-sync-interval num-dataset-builder-threads object-storage-cache-path flight-recorder-dump-path
        flight-recorder-trace-buffer-size embedding-init-method-std lr-decay-tokens lr-warmup-tokens
        master-addr master-port node-rank name kill-switch-path codecarbon-dir valid-num-workers
        """,
        1,
        1,
    )
    | _names(
        """data-path train-data-path valid-data-path test-data-path profile-ranks train-weighted-split-paths
        valid-weighted-split-paths test-weighted-split-paths train-weighted-split-paths-path
        valid-weighted-split-paths-path test-weighted-split-paths-path special-tokens iterations-to-skip""",
        1,
        None,
    )
    | _names(
        """mock-data async-save no-load-optim no-load-rng no-save-optim no-save-rng finetune use-checkpoint-args
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
        abort-on-unmet-fused-kernel-constraints
        no-use-tokenizer-model-from-checkpoint-args enable-msc disable-msc""",
        0,
        0,
    )
)


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


MATTERS = re.compile(
    r"attention|attn|head|layer|hidden|ffn|mlp|norm|embed|rotary|rope|position|window|expert|moe|glu|relu|gelu|bias"
    r"|vocab|precision|fp[0-9]|bf16|dtype|quant|parallel|pipeline|tensor|shard|fsdp|zero|recompute|activation"
    r"|offload|query|kv|seq|batch|residual|tie|dropout|optimizer"
)
"""Names of flags that change architecture, precision, layout or memory."""


def known_flags() -> list[str]:
    """Every flag known by name, for nearest-name hints."""
    return [*TRANSLATED, *RENAMED, *UNMODELLED, *NO_EFFECT]


def arity(flag: str) -> Arity | None:
    """How many values a known flag takes; None for an unknown one."""
    if flag in RENAMED:
        return RENAMED_ARITY.get(flag, Arity(1, 1))
    if flag in UNMODELLED:
        return UNMODELLED[flag][0]
    return TRANSLATED.get(flag) or NO_EFFECT.get(flag)


def family(flag: str) -> str | None:
    """The family of a flag known only by its prefix."""
    table = PREFIXES_WITHOUT_EFFECT | FAMILIES_OF_OTHER_MODELS
    return next((what for prefix, what in table.items() if flag.startswith(prefix)), None)
