"""The cluster: one node type, how many of it, and what connects them.

Numbers here are what a data sheet or an invoice says (capacities, link counts, prices). How long an operation
*takes* comes from the profile that `profile` names, never from here.

Units: bandwidths in GB/s (1e9 bytes) per direction, latencies in µs, memories in GiB (2^30 bytes), peaks in dense
TFLOP/s.
"""

import os
from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30
Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Link:
    """A point-to-point path of one GPU: bandwidth per direction and the time an empty message takes."""

    bandwidth_gb_s: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Nics:
    """The network cards of one node; a group that crosses nodes may use all of them."""

    count: int
    bandwidth_gb_s: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Host:
    """CPU cores and memory of one node."""

    cores: int
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the nodes: `rail` (NIC i of every node on switch i) or `fat-tree`; oversubscription ≥ 1 of the
    upper level."""

    kind: Literal["rail", "fat-tree"] = "rail"
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs and what joins them. `gpus` may end in a partial last node; `device: cpu` means one synchronous device
    per rank."""

    name: str
    device: Device = "cuda"
    gpu: str
    gpus: int
    gpus_per_node: int
    nodes: int
    profile: str
    gpu_memory_gib: float
    peak_tflops: dict[str, float] = field(default_factory=dict, hash=False)
    """Dense peak per dtype (fp64 fp32 tf32 bf16 fp16 fp8): the denominator of MFU, never a cost."""
    nvlink: Link
    nics: Nics
    pcie_gb_s: float
    gpus_per_pcie: int = 1
    """GPUs that share one such link to the host."""
    host: Host
    fabric: Fabric = Fabric()
    price_per_gpu_hour: float = 0.0
    threads_per_rank: int = 1
    """CPU threads a rank computes with; only `device: cpu` reads it."""

    def node_of(self, rank: int) -> int:
        """The node that holds a rank (ranks fill nodes in order)."""
        return rank // self.gpus_per_node

    def peak_flops(self, dtype: str) -> float | None:
        """Dense peak of one GPU in FLOP/s at a dtype, or None where no data sheet states one (a CPU's is in its
        profile)."""
        peak = self.peak_tflops.get(dtype)
        return None if peak is None else peak * 1e12


def machine() -> Host:
    """This machine's usable cores and physical memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Host(cores=cores, memory_gib=memory / GIB)
