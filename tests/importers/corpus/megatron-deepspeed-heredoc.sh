#!/bin/bash
GBS=64
cat > ds.json <<EOF
{"train_batch_size": $GBS, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}
EOF
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 2 --global-batch-size $GBS --fp16 --no-pipeline-parallel --deepspeed --deepspeed_config ds.json
