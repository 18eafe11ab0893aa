#!/bin/bash
set -- --layers 24 --verbose
while [[ $# -gt 0 ]]; do
  case $1 in
    --layers) L=$2; shift 2;;
    *) shift;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 8 --bf16
