#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
WORLD=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_PER_NODE pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 --global-batch-size $WORLD --bf16
