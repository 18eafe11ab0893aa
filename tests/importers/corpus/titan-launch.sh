#!/bin/bash
NGPU=8
torchrun --nproc_per_node=${NGPU} -m torchtitan.train --job.config_file ./titan-base.toml --training.local_batch_size 2 --parallelism.tensor_parallel_degree=4
