"""What the shipped profiles say of where each of their numbers is from: the `text` of a source, by card and part.

`tools.fit_published` puts them beside the rows and the fits that they speak of.
"""

from __future__ import annotations

TEXTS = {
    "a100 gemm": "cuBLASLt on A100-SXM: rate, and the rows as points; prologue and tiles from gemm-shapes",
    "a100 weight": "the accumulating layout of the same rows, rate only",
    "a100 attention": "FlashAttention-2, causal, forward and backward together; backward / forward rate from A100-PCIe",
    "a100 triton attention": "FlashAttention-1 in Triton, causal, forward and backward apart; narrow heads as "
    "FlashAttention-2",
    "h100 triton attention": "the ratio of FlashAttention-1 in Triton to FlashAttention-2 on A100, on H100's "
    "FlashAttention-2: both were written for the A100's instructions",
    "a100 reduce": "in-node all-reduce by size, 2 to 8 GPUs; below 1 MiB and above 1 GiB on 8 GPUs from a second node",
    "a100 network": "rings over 4 and 8 NICs of 200 Gb/s; latency of a tree level from the H100 scans",
    "a100 copies": "nvbandwidth; its device-to-host rate (nccl-0648, 6.3 GB/s) is anomalous: one rate for both ways",
    "hopper gemm": "launch and prologue from fp8 rows on H100-SXM (half the depth in bf16), small tiles as on A100; "
    "rate: 8192 cubed on one H200, torch 2.11",
    "h100 points": ". Points: bf16 on one H200 (calibration/measured/h200-points.json), the same chip, clocks and "
    "power limit with faster memory, where the product is bound by arithmetic on both",
    "h100 attention": "causal rows of the FlashAttention-2 and -3 figures; backward / forward rate from one H200",
    "h200 attention": "causal rates on one H200, torch 2.11, at 2k, 8k, 32k; narrow heads from the H100 figures",
    "hopper network": "efficiency: peak of large messages over 8 NICs of 400 Gb/s; tree: all-reduce on 32 to 8192 "
    "H100, read from a figure",
    "hopper reduce": "other rank counts and ring operations: the 8-GPU curve scaled to the published bandwidth of "
    "large messages (H200 rows; 4 GPUs and fewer run the ring)",
    "softmax": "copy bandwidth over a traffic factor of unfused attention, from a study on 28 development rows of "
    "runs.csv: no microbenchmark, and not separable there from slower score GEMMs",
    "eager": "bytes moved and kernels launched by the torch references (tools.traffic) at 0.90 of the copy "
    "bandwidth; a launch on the device: one H200 filling 256 KiB",
    "lines": "lines through points of one H200 (calibration/measured/h200-points.json), by the ratio of copy "
    "bandwidths",
    "host": "a launch: at most the launch term of timings on H100 (6.6 µs), and 6.7 µs through Python on the virtual "
    "machine of one H200; sigma: log of its ratio to 12.6 µs, a whole operator call there",
    "host measured": "an operator call on the virtual machine of one H200 (12.6 µs); sigma: log of its ratio to 6.6 "
    "µs, a launch alone",
    "sustained": "8192 cubed in bf16 on one H200, torch 2.11: short runs and a long one, which meets the power limit; "
    "the 700 W of both cards",
    "wide": "fp32 (not tf32) and fp64 products: the bf16 form at the ratio of the data sheet's dense peaks",
    "context": "device memory one process held outside the allocator on an H200 (torch 2.11; no communicators)",
    "memory error": "feasibility rows of runs.csv (nanotron: 208 ran, 203 crashed or ran out of memory): with these "
    "shares 23 of the 411 verdicts are borderline and 372 of the other 388 right; NVIDIA/nccl issue 864 gives 0.9 to "
    "1.8 GB a communicator; host memory of ZeRO-Offload is published 10 to 60 % above 16 bytes a parameter",
    "host optimizer": "ZeRO-Offload against ZeRO-2 of Qwen2.5-1.5B on two A100 of a host with 2 x EPYC 7742, cores "
    "bound (DeepSpeed, blogs/zenflow-corebinding: 1365 and 240 ms): the difference less the copy of the 16-bit weights",
    "host optimizer derived": "the rate of 2 x EPYC 7742 by data-sheet memory bandwidth: 16 channels of DDR5-4800 "
    "against DDR4-3200",
    "cards": "average performance variation among identical GPUs of a cluster, 8 %, taken as a standard deviation "
    "(arXiv 2208.11035); 9 % of GPU time at 64 thousand GPUs, up to 14 % of products between environments (arXiv "
    "2510.15596)",
    "contention": "mean slow-down of computation beside a collective, four kinds of GPU (arXiv 2507.03114)",
}
