"""Small runs to simulate: a tiny GPT on a cluster of small nodes, and programs made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler import compile_run
from plan.run import Run, load
from program import (
    Block,
    Call,
    Comm,
    CommOp,
    Group,
    Instruction,
    KernelCall,
    Phase,
    RankProgram,
    Role,
    StepProgram,
    Stream,
)
from program.cluster import Cluster, Device
from simulator.simulation import Simulation, simulate
from tests.simulator.fakes import FakeProfile

MODEL = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 8,
    "ffn": 2048,
    "vocab": 1024,
    "seq_length": 256,
    "tied_embeddings": False,
}
CLUSTER = {"preset": "dgx-a100-80gb", "gpus_per_node": 4}


def small(plan: dict[str, Any], cluster: dict[str, Any] | str | None = None, **model: Any) -> tuple[StepProgram, Run]:
    """Program and run of a small model under a plan."""
    plan = {"micro_batch_size": 1, "zero_stage": 0, **plan}
    world = plan.get("tensor_parallel", 1) * plan.get("pipeline_parallel", 1) * plan.get("data_parallel", 1)
    where = cluster if isinstance(cluster, str) else {**CLUSTER, "gpus": world, **(cluster or {})}
    run = load({"model": MODEL | model, "cluster": where, "plan": plan})
    return compile_run(run), run


def simulated_small(
    plan: dict[str, Any], profile: Any, cluster: dict[str, Any] | str | None = None, **model: Any
) -> Simulation:
    """A small model under a plan, simulated with a profile."""
    program, run = small(plan, cluster, **model)
    return simulate(program, run.cluster, profile)


def cluster_of(world: int, device: Device = "cuda", cores: int = 2) -> Cluster:
    """One node of `world` ranks."""
    _, run = small({"data_parallel": world, "global_batch_size": world})
    return replace(
        run.cluster,
        device=device,
        gpus=world,
        gpus_per_node=world,
        nodes=1,
        host=replace(run.cluster.host, cores=cores),
    )


def kernel(microseconds: int) -> tuple[KernelCall, ...]:
    """A kernel that takes so long under `TABLE`: one FLOP is a microsecond, bytes and launches are free."""
    return (KernelCall("gemm", (microseconds, 1, 1), "fp32"),)


TABLE = FakeProfile(
    flops_per_s=2e6,
    bytes_per_s=float("inf"),
    launch_s=0.0,
    issue_s=0.0,
    alpha_s=0.0,
    bus_bytes_per_s=1e6,
    nic_bytes_per_s=1e6 / 8,
)  # a microsecond for each FLOP pair of a (n, 1, 1) product and for each byte on a wire


def compute(kind: str, microseconds: int, waits: tuple[int, ...] = (), phase: Phase = "F", **more: Any) -> Instruction:
    """A compute instruction of so many microseconds."""
    return Instruction(phase, kind, 1, "piece", "compute", kernel(microseconds), waits=waits, **more)


def move(
    op: CommOp, role: Role, stream: Stream, bytes_: int, waits: tuple[int, ...] = (), channel: str = ""
) -> Instruction:
    """A communication of so many bytes."""
    kinds = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "send": "SEND", "recv": "RECV"}
    return Instruction(
        "F", kinds[op], 1, "piece", stream, comm=Comm(op, role, bytes_, "uint8", channel or stream), waits=waits
    )


def by_hand(*ranks: list[Instruction], groups: dict[str, tuple[tuple[int, ...], ...]] | None = None) -> StepProgram:
    """A program in which every rank is a class of one block."""
    classes = []
    for stage, instructions in enumerate(ranks):
        block = Block("all", tuple(instructions), (), (), ())
        classes.append(RankProgram(stage, (block,), (Call(0, 0, 0, ()),), (), (), ()))
    made = {role: tuple(Group(role, ranks_) for ranks_ in of_role) for role, of_role in (groups or {}).items()}  # type: ignore[arg-type]
    return StepProgram(tuple(classes), tuple(range(len(ranks))), made, {"pp": len(ranks)})


def starts(simulation: Simulation, rank: int = 0) -> list[int]:
    """Starts of a rank's instructions in whole microseconds, the first at 0."""
    timeline = simulation.timeline([rank])
    times = np.rint(timeline.columns["start_s"] * 1e6).astype(int)
    return [int(t) for t in times - times.min()]
