#!/bin/bash
LAYERS=24
HIDDEN=1024
GPUS=8
torchrun --nproc_per_node $GPUS pretrain_gpt.py --num-layers $LAYERS --hidden-size ${HIDDEN} --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 8 --bf16
