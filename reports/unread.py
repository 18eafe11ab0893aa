"""Keys that a run sets and its forecast does not read: each is named, with why, under "not modelled".

    unread(run)  ->  ("cluster.pcie_gb_s 64.0: nothing of this plan crosses PCIe",)

A key counts as set when it differs from what a run that leaves it out would get: the value of the preset of the
cluster's name, else this machine's or the language's default.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from plan import presets
from plan.parallel import auto_bucket_mb
from plan.run import Run
from program import cluster as clusters

Reason = Callable[[Run], str]


def _offloads(run: Run) -> bool:
    offload = run.plan.offload
    return (offload.optimizer, offload.parameters, offload.activations) != ("none", "none", "none")


def _unless(reads: Callable[[Run], bool], why: str) -> Reason:
    return lambda run: "" if reads(run) else why


def _leaves_the_node(run: Run) -> bool:
    return run.cluster.nodes > 1


def _on_cpu(run: Run) -> bool:
    return run.cluster.device == "cpu"


REASONS: dict[str, Reason] = {
    "nvlink.latency_us": _unless(lambda run: False, "latencies inside a node are those of the profile"),
    "nvlink.bandwidth_gb_s": _unless(lambda run: not _on_cpu(run), "ranks of a cpu cluster exchange in its memory"),
    "nics.count": _unless(_leaves_the_node, "no message leaves the node"),
    "nics.bandwidth_gb_s": _unless(_leaves_the_node, "no message leaves the node"),
    "nics.latency_us": _unless(_leaves_the_node, "no message leaves the node"),
    "pcie_gb_s": _unless(_offloads, "nothing of this plan crosses PCIe"),
    "gpus_per_pcie": _unless(_offloads, "nothing of this plan crosses PCIe"),
    "host.cores": _unless(_on_cpu, "the host's own times are those of the profile"),
    "host.memory_gib": _unless(lambda run: _on_cpu(run) or _offloads(run), "nothing of this plan is kept on the host"),
    "fabric.kind": _unless(lambda run: False, "without oversubscription both kinds carry every link at full rate"),
    "threads_per_rank": _unless(_on_cpu, "only ranks of a cpu cluster compute with CPU threads"),
}
"""Why the forecast of a run does not read a key; empty when it does."""


def unread(run: Run) -> tuple[str, ...]:
    """A sentence for each key that the run sets without effect on its forecast."""
    values, usual = asdict(run.cluster), _left_out(run)
    found = [
        f"cluster.{key} {_at(values, key)}: {why}"
        for key, reason in REASONS.items()
        if _at(values, key) != _at(usual, key) and (why := reason(run))
    ]
    plan, size_mb = run.plan, run.plan.communication.bucket_mb
    if plan.zero_stage >= 2 and size_mb != auto_bucket_mb(plan.data_parallel):
        found.append(f"plan.communication.bucket_mb {size_mb:g}: ZeRO-2 and ZeRO-3 reduce a layer at a time")
    return tuple(found)


def _left_out(run: Run) -> dict[str, Any]:
    """What the cluster's keys are where nobody sets them; a link without a preset has no such value."""
    name = run.cluster.name
    preset = presets.preset("clusters", name) if name in presets.names("clusters") else {}
    usual = {"host": asdict(clusters.machine()), "fabric": {"kind": "rail"}, "threads_per_rank": 1, "gpus_per_pcie": 1}
    return usual | preset


def _at(values: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values
