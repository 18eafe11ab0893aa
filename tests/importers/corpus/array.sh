#!/bin/bash
MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --vocab-size 51200
)
TRAIN=(--micro-batch-size 2 --global-batch-size 64 --fp16)
TRAIN+=(--lr 1e-4)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAIN[@]}"
