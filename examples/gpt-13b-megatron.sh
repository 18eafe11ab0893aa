#!/bin/bash
# A 13B GPT with the flags of a well-known tutorial, old names included: --batch-size is today's --micro-batch-size.
#
#   windtunnel forecast examples/gpt-13b-megatron.sh --cluster dgx-a100-80gb --nodes 1

torchrun --nproc_per_node 8 pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 2 \
    --num-layers 40 \
    --hidden-size 5120 \
    --num-attention-heads 40 \
    --batch-size 128 \
    --seq-length 2048 \
    --lr 6e-5 \
    --train-iters 100000 \
    --lr-decay-iters 99000 \
    --lr-decay-style cosine \
    --min-lr 6e-6 \
    --weight-decay 0.01 \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --fp16
