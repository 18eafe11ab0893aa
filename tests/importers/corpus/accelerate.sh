#!/bin/bash
accelerate launch --num_machines 1 --num_processes 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 8 --bf16
