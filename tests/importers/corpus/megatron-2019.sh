#!/bin/bash
python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt2.py --model-parallel-size 8 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --batch-size 8 --fp16 --checkpoint-activations
