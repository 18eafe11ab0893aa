#!/bin/bash
read L H A <<< '24 1024 16'
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size $H --num-attention-heads $A --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 8 --bf16
