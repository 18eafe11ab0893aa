#!/bin/bash
# GPT-3 175B on 1,024 A100s: the layout of the Megatron scaling study (tensor parallel 8, pipeline parallel 16, data parallel 8,
# micro-batch 1, global batch 1,536), everything recomputed in the backward pass.
#
#   windtunnel forecast examples/gpt3-175b-megatron.sh --cluster dgx-a100-80gb --nodes 128

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-128}

DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-checkpoints/gpt3-175b}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --node_rank $SLURM_NODEID
    --master_addr $MASTER_ADDR
    --master_port 6000
)

MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --init-method-std 0.006
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 8
    --pipeline-model-parallel-size 16
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 95000           # 300 billion tokens
    --lr 6.0e-5
    --min-lr 6.0e-6
    --lr-decay-style cosine
    --lr-decay-iters 83000
    --lr-warmup-iters 120
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)

DATA_ARGS=(
    --data-path "$DATA_PATH"
    --vocab-file gpt2-vocab.json
    --merge-file gpt2-merges.txt
    --split 949,50,1
)

OUTPUT_ARGS=(
    --log-interval 10
    --save "$CHECKPOINT_PATH"
    --load "$CHECKPOINT_PATH"
    --save-interval 1000
    --eval-interval 1000
    --eval-iters 10
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${OUTPUT_ARGS[@]}"
