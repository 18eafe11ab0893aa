#!/bin/bash
ARGS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200"
BATCH=" --micro-batch-size 4 --global-batch-size 256"
CMD="torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS $BATCH --bf16"
eval $CMD
