#!/bin/bash
# BLOOM 176B on 384 A100-80GB: tensor parallel 4, pipeline parallel 12, data parallel 8, micro-batch 2, global batch 2,048.
# 70 layers on 12 stages: embedding and head count as a layer each, so every stage holds 6 of 72.
#
#   windtunnel forecast examples/bloom-176b.sh
#
#SBATCH --job-name=bloom-176b
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#
# Eight A100-80GB with NVLink and four Omni-Path links of 100 Gb/s in a node:
# windtunnel: cluster.preset=dgx-a100-80gb cluster.nics.count=4 cluster.nics.bandwidth_gb_s=12.5

GPUS_PER_NODE=8
NNODES=$SLURM_NNODES

TP_SIZE=4
PP_SIZE=12
MICRO_BATCH_SIZE=2
GLOBAL_BATCH_SIZE=2048

NLAYERS=70
NHIDDEN=14336
NHEADS=112
SEQ_LEN=2048

TRAIN_SAMPLES=220_000_000   # 450 billion tokens
LR_DECAY_SAMPLES=200_000_000
LR_WARMUP_SAMPLES=183_105

ZERO_STAGE=0   # the bf16 optimizer shards its states by itself
CONFIG_JSON="ds_config.json"

cat <<EOT > $CONFIG_JSON
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "bf16": {
    "enabled": true
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
EOT

GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers $NLAYERS \
    --hidden-size $NHIDDEN \
    --num-attention-heads $NHEADS \
    --seq-length $SEQ_LEN \
    --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --train-samples $TRAIN_SAMPLES \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --init-method-std 0.0048 \
    --embed-layernorm \
    --sync-tp-duplicated-parameters \
    --position-embedding-type alibi \
    --pad-vocab-size-to 250880 \
    --bf16 \
    --seed 42 \
    --checkpoint-activations \
    "

OPTIMIZER_ARGS=" \
    --optimizer adam \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --adam-eps 1e-8 \
    --lr 6e-5 \
    --min-lr 6e-6 \
    --lr-decay-style cosine \
    --lr-decay-samples $LR_DECAY_SAMPLES \
    --lr-warmup-samples $LR_WARMUP_SAMPLES \
    --clip-grad 1.0 \
    --weight-decay 1e-1 \
    "

DEEPSPEED_ARGS=" \
    --deepspeed \
    --deepspeed_config ${CONFIG_JSON} \
    --zero-stage ${ZERO_STAGE} \
    --deepspeed-activation-checkpointing \
    "

LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --rdzv_backend c10d \
    "

CMD=" \
    `pwd`/pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $GPT_ARGS \
    $OPTIMIZER_ARGS \
    --save-interval 300 \
    $DEEPSPEED_ARGS \
    "

srun --jobid $SLURM_JOBID bash -c "$LAUNCHER $CMD" 2>&1 | tee main_log.txt
