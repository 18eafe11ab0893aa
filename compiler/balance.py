"""`pipeline_layout: auto` of an engine that balances its stages: the layers of every stage, by what its units cost.

    laid_out(run).plan.pipeline_layout      (11, 7): sixteen layers under a head with 128k entries

What a unit costs follows from its lines, the same that are priced and run: of every kernel call the FLOPs or the bytes,
whichever bind a card, and what its moves put on NVLink. A step is the slowest stage over and over, so layers go one by
one to the stage that is least busy. A stage may not grow beyond what certainly fits, unless the even split is no
smaller: `auto` never turns a plan that fits evenly into one that does not.

All of it is a function of model, plan and cluster. A profile is not known where a program is compiled, and ranks with
different profiles have to compile the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.parameters import unit_params
from compiler.recompute import UnitPlan, share_saved, unit_plan
from compiler.units import HEAD, UnitShape, embedding, head, layer, unit_shape
from plan.implementations import engine
from plan.layout import unit_counts
from plan.model import Model
from plan.parallel import Plan
from plan.pipeline import schedule
from plan.run import Run
from program import DTYPE_BYTES, KernelCall
from program.cluster import GIB, Cluster
from program.lines import Lines, Move, Part
from program.ops import bytes_of, flops_of

FLOPS_PER_BYTE = {"cuda": 160.0, "cpu": 10.0}
"""At which a kernel is bound by both: 156 (A100), 206 (H200), 295 (H100) in 16 bits; a core, about 100 GFLOP/s by 10
GB/s. It moves a stage by a part of a layer, never by several."""
ISSUE_S = 12e-6  # a launch of our own executor (h200): small layers keep the host busier than the device
CERTAIN = 0.85  # of a card's memory: what is counted here leaves out rounding, workspaces and the context


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit on one rank: FLOPs that a micro-batch costs the device and, in the same measure, the host that issues it;
    FLOPs of a step; bytes it holds, and bytes for each micro-batch in flight."""

    micro: float
    issue: float
    step: float
    held: int
    saved: int


def laid_out(run: Run) -> Run:
    """The run with `auto` replaced by the units of every virtual stage, where they are not those of an even split."""
    plan = run.plan
    if plan.pipeline_layout != "auto" or plan.pipeline_parallel == 1 or not engine(plan).balances_stages:
        return run
    counts = _balanced(run.model, plan, run.cluster)
    if counts == unit_counts(run.model.layers, plan):
        return run
    return replace(run, plan=replace(plan, pipeline_layout=counts))


@lru_cache(maxsize=64)
def _balanced(model: Model, plan: Plan, cluster: Cluster) -> tuple[int, ...]:
    """Units of each virtual stage."""
    stages = _Stages(model, plan, cluster)
    even = unit_counts(model.layers, plan)
    last = plan.stages - 1
    bare = [count - (stage == 0) - (stage == last) for stage, count in enumerate(even)]
    limit = max(CERTAIN * cluster.gpu_memory_gib * GIB, *stages.bytes(bare))
    layers = [int(0 < stage < last) for stage in range(plan.stages)]
    for _ in range(model.layers - sum(layers)):
        stage = stages.next(layers, limit)
        if stage is None:
            return even
        layers[stage] += 1
    layers = _relieved(stages, layers, limit)
    if stages.whole(layers) >= stages.whole(bare):
        return even
    return tuple(count + (stage == 0) + (stage == last) for stage, count in enumerate(layers))


def _relieved(stages: _Stages, layers: list[int], limit: float) -> list[int]:
    """With as few layers under the head as make no step longer (by more than a hundredth, such as an embedding): the
    head, a wide product and passes over logits, is what is weighed against layers least surely."""
    most = 1.01 * stages.whole(layers)
    while layers[-1] > 0 and stages.plan.virtual_pipeline == 1:
        fewer = [*layers[:-1], layers[-1] - 1]
        stage = stages.next(fewer, limit, last=False)
        if stage is None:
            break
        fewer[stage] += 1
        if stages.whole(fewer) > most:
            break
        layers = fewer
    return layers


class _Stages:
    """The stages of a plan under any number of layers on each of its virtual stages."""

    def __init__(self, model: Model, plan: Plan, cluster: Cluster) -> None:
        self.plan = plan
        self.stages = plan.pipeline_parallel
        e = unit_shape(model, plan)
        price = _Price(plan, cluster)
        first = unit_plan(embedding(e), 0, "none")
        last = unit_plan(head(e, HEAD), model.layers + 1, "none")
        self.ends = [price.unit(model, first), price.unit(model, last)]
        kinds = {"none": "none", "selective": "selective", "full": "full", "layers": "none"}
        self.layer = price.unit(model, _layer(e, plan, kinds[plan.recompute]))
        self.again = price.unit(model, _layer(e, plan, "full")) if plan.recompute == "layers" else self.layer
        self.flight = [_in_flight(plan, stage) for stage in range(self.stages)]

    def _units(self, stage: int, layers: int) -> list[tuple[int, _Unit]]:
        """(how many, unit) of a virtual stage."""
        again = min(layers, self.plan.recompute_layers) if self.plan.recompute == "layers" else 0
        found = [(again, self.again), (layers - again, self.layer)]
        found += [(1, self.ends[0])] if stage == 0 else []
        return found + ([(1, self.ends[1])] if stage == self.plan.stages - 1 else [])

    def costs(self, layers: list[int]) -> list[float]:
        """What a micro-batch costs on every stage: what its device or its host does, whichever is longer."""
        held = [self._held(rank, layers) for rank in range(self.stages)]
        return [max(sum(many * u.micro for many, u in of), sum(many * u.issue for many, u in of)) for of in held]

    def whole(self, layers: list[int]) -> float:
        """What a step costs: the slowest stage for every micro-batch, then the slowest update."""
        updates = (sum(many * u.step for many, u in self._held(rank, layers)) for rank in range(self.stages))
        return self.plan.microbatches * max(self.costs(layers)) + max(updates)

    def _held(self, rank: int, layers: list[int]) -> list[tuple[int, _Unit]]:
        return [held for stage in range(rank, len(layers), self.stages) for held in self._units(stage, layers[stage])]

    def bytes(self, layers: list[int]) -> list[float]:
        """What every stage holds at its peak."""
        found = [0.0] * self.stages
        for stage, many in enumerate(layers):
            chunk, rank = divmod(stage, self.stages)
            flight = self.flight[rank][chunk]
            found[rank] += sum(count * (u.held + flight * u.saved) for count, u in self._units(stage, many))
        return found

    def next(self, layers: list[int], limit: float, last: bool = True) -> int | None:
        """The virtual stage that takes the next layer: of the stages that hold it the one that is least busy with it,
        and of its chunks the smallest; of equals the first, behind which a pipeline fills fastest. `last`: the head's
        may be it."""
        best: tuple[float, float, int] | None = None
        for stage, many in enumerate(layers if last else layers[:-1]):
            grown = [count + (s == stage) for s, count in enumerate(layers)]
            rank = stage % self.stages
            chunk = sum(count * u.micro for count, u in self._units(stage, many))
            key = (self.costs(grown)[rank], chunk, stage)
            if (best is None or key < best) and self.bytes(grown)[rank] <= limit:
                best = key
        return None if best is None else best[2]


def _layer(e: UnitShape, plan: Plan, recompute: str) -> UnitPlan:
    unit = layer(e, 1, cut=recompute == "selective")
    made = unit_plan(unit, 1, recompute, whole=engine(plan).recomputes_whole)
    return share_saved(made, plan.tensor_parallel) if plan.partition_activations and recompute == "full" else made


def _in_flight(plan: Plan, stage: int) -> list[int]:
    """Micro-batches that every chunk of a stage keeps at most."""
    now, most = [0] * plan.virtual_pipeline, [0] * plan.virtual_pipeline
    few = min(plan.microbatches, 2 * plan.stages + plan.microbatch_group)
    many = plan.microbatches if isinstance(plan.schedule, tuple) else few
    for slot in schedule(plan).order(plan, many, stage):
        if slot.phase == "F":
            now[slot.chunk] += 1
            most[slot.chunk] = max(most[slot.chunk], now[slot.chunk])
        elif slot.phase in "BW":
            now[slot.chunk] -= 1
    return most


class _Price:
    """What a unit costs and holds on a rank."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan = plan
        self.per_byte = FLOPS_PER_BYTE[cluster.device]
        peak = cluster.peak_flops(plan.precision) or 0.0
        self.per_moved = peak / (cluster.nvlink.bandwidth_gb_s * 1e9)
        self.per_launch = 0.0 if plan.cuda_graph or cluster.device == "cpu" else ISSUE_S * peak

    def unit(self, model: Model, plan: UnitPlan) -> _Unit:
        """The unit of a rank."""
        parts = (*plan.unit.forward, *plan.repeated, *plan.unit.backward)
        numbers = sum(param.local_numel for param in unit_params(model, self.plan, plan.unit, tied_here=False))
        shared = numbers // self.plan.data_parallel if engine(self.plan).sharded_optimizer else numbers
        state = "fp64" if self.plan.precision == "fp64" else "fp32"
        own = DTYPE_BYTES[self.plan.precision] + DTYPE_BYTES[self.plan.gradient_dtype]
        masters = 3 if self.plan.precision in ("bf16", "fp16") else 2
        launches = sum(len(part.body.calls) if isinstance(part, Lines) else 1 for part in parts)
        return _Unit(
            micro=self._parts(parts),
            issue=launches * self.per_launch,
            step=self._calls((KernelCall("adamw", (shared,), state, self.plan.precision),)),
            held=numbers * own + shared * masters * DTYPE_BYTES[state],
            saved=sum(plan.unit.tensors[name].bytes for name in plan.kept),
        )

    def _parts(self, parts: Iterable[Part]) -> float:
        return sum(self._calls(p.body.calls) if isinstance(p, Lines) else self._move(p) for p in parts)

    def _calls(self, calls: Iterable[KernelCall]) -> float:
        return sum(max(float(flops_of(call)), self.per_byte * bytes_of(call)) for call in calls)

    def _move(self, move: Move) -> float:
        """A ring passes every byte but the rank's own, twice for an all-reduce; weight gradients hide what stands
        beside them."""
        if move.phase == "W" or (move.phase == "B" and move.kind != "AG"):
            return 0.0
        share = (self.plan.tensor_parallel - 1) / self.plan.tensor_parallel
        return move.bytes * share * self.per_moved * (2 if move.kind == "AR" else 1)
