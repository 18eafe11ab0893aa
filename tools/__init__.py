"""Tools: what runs offline and is not installed. From the repository's root:

python -m tools.bench            every kernel beside eager PyTorch, torch.compile and Liger (a GPU)
python -m tools.tune             sweeps of the kernels' launch tables (a GPU)
python -m tools.fit_published    calibration/profiles/ of a100-80gb, h100 and h200-published, from published rows
python -m tools.traffic          what eager operators launch, move and hold, counted on their references
python -m tools.publish_schemas  windtunnel/schemas/: the JSON schema of each command's --json
torchrun --nproc_per_node 2 -m tools.autograd_bench     what launching costs a framework's host (GPUs)
"""
