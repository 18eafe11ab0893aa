#!/bin/bash
#SBATCH -N 2
#SBATCH --gres=gpu:a100:8
#SBATCH -n 16
srun python pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size 16 --bf16
