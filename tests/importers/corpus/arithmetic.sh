#!/bin/bash
NODES=2
PER=8
TP=2
DP=$((NODES*PER/TP))
GBS=$((DP*4))
torchrun --nnodes $NODES --nproc_per_node $PER pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 2 --global-batch-size $GBS --tensor-model-parallel-size $TP --bf16
