#!/bin/bash
# The 13B GPT with Megatron's tensor parallelism and DeepSpeed's ZeRO-3 offload together. The tutorial's pipeline is gone, because
# ZeRO-3 excludes a pipeline, and its batch of 128 is global, because the JSON beside this script says so.
#
#   windtunnel forecast examples/gpt-13b-hybrid.sh --cluster dgx-a100-80gb --nodes 1

deepspeed --num_gpus 8 pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 1 \
    --no-pipeline-parallel \
    --num-layers 40 \
    --hidden-size 5120 \
    --num-attention-heads 40 \
    --micro-batch-size 4 \
    --global-batch-size 128 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --lr 6e-5 \
    --train-iters 100000 \
    --lr-decay-iters 99000 \
    --lr-decay-style cosine \
    --min-lr 6e-6 \
    --weight-decay 0.01 \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --fp16 \
    --checkpoint-activations \
    --deepspeed-activation-checkpointing \
    --use-deepspeed \
    --deepspeed_config gpt-13b-deepspeed.json
