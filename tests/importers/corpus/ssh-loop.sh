#!/bin/bash
for h in a b; do
  ssh $h "torchrun --nnodes 2 --nproc_per_node 8 --node_rank $h pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 16 --bf16"
done
