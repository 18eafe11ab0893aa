"""Memory by blocks equals memory instruction by instruction, parts sum to the peak, and the allocator rounds as it
says."""

from __future__ import annotations

from typing import Any

import pytest

from calibration.workspace import Workspace
from program import Buffer, RankProgram, StepProgram, expand, resolve_buffer
from program.ops import bytes_of
from program.text import label_of
from simulator.memory import OFF_DEVICE, PART_OF_POOL, PARTS, Rounding, StageMemory, on_allocator, simulate_memory
from simulator.simulation import simulate
from tests.simulator.fakes import ALLOCATOR, FakeProfile
from tests.simulator.runs import small
from tests.simulator.test_equalities import PLANS

MIB = 2**20


def simulated_one_by_one(stage: RankProgram, rounding: Rounding) -> tuple[int, dict[str, int], str, int]:
    """(peak, parts, where, reserved) with every allocation followed by itself: the slow reference."""
    live: dict[tuple[int, int], Buffer] = {}
    resident = [b for b in stage.buffers if b.base is None and b.pool not in OFF_DEVICE]
    peak, parts, where = -1, dict.fromkeys(PARTS, 0), ""
    highest: dict[int, int] = {}
    for placed in expand(stage):
        block = stage.blocks[stage.calls[placed.call].block]
        for ref in placed.instruction.writes:
            if (
                ref >= 0
                and resolve_buffer(stage, placed.call, ref) == (placed.call, ref)
                and on_allocator(block.buffers[ref])
            ):
                live.setdefault((placed.call, ref), block.buffers[ref])
        held = [(b.bytes, PART_OF_POOL[b.pool]) for b in (*resident, *live.values())]
        held += [(placed.instruction.transient_bytes, "workspace")] if placed.instruction.transient_bytes else []
        amounts: dict[int, int] = {}
        for bytes_, _ in held:
            kind, amount = rounding.size_class(bytes_)
            amounts[kind] = amounts.get(kind, 0) + amount
        for kind, amount in amounts.items():
            highest[kind] = max(highest.get(kind, 0), amount)
        total = sum(rounding.allocated(bytes_) for bytes_, _ in held)
        if total > peak:
            peak, where = total, label_of(placed.instruction, placed.micro)
            parts = {part: sum(bytes_ for bytes_, p in held if p == part) for part in PARTS}
            parts["framework"] = total - sum(parts.values())
        for ref in placed.instruction.frees:
            try:
                live.pop(resolve_buffer(stage, placed.call, ref), None)
            except KeyError:  # nothing behind the port in this call
                continue
    assert not live, "the step leaves nothing behind"
    return peak, parts, where, sum(rounding.reserved(kind, amount) for kind, amount in highest.items())


@pytest.mark.parametrize("plan", PLANS)
def test_blocks_equal_single_instructions(plan: str) -> None:
    program, _ = small(PLANS[plan])
    for stage in program.classes:
        memory = simulate_memory(stage, ALLOCATOR)
        found = (memory.peak_allocated_bytes, memory.parts, memory.where, memory.peak_reserved_bytes)
        assert found == simulated_one_by_one(stage, Rounding(ALLOCATOR))


def memory_of(plan: dict[str, Any], **model: Any) -> tuple[StepProgram, tuple[StageMemory, ...]]:
    program, run = small(plan, **model)
    return program, simulate(program, run.cluster, FakeProfile()).memory


@pytest.mark.parametrize("plan", PLANS)
def test_parts_sum_to_the_peak(plan: str) -> None:
    program, stages = memory_of(PLANS[plan])
    assert [stage.stage for stage in stages] == list(range(len(program.classes)))
    for stage in stages:
        assert sum(stage.parts.values()) == stage.peak_allocated_bytes
        assert stage.peak_reserved_bytes >= stage.peak_allocated_bytes


def test_state_of_adamw_in_mixed_precision() -> None:
    """bf16 weights, fp32 gradients, fp32 master and two moments: 2 + 4 + 12 bytes a parameter, buckets padded."""
    program, stages = memory_of({"global_batch_size": 1})
    padded = sum(bucket.numel for bucket in program.classes[0].buckets)
    parts = stages[0].parts
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (2 * padded, 4 * padded, 12 * padded)


def test_zero_1_shards_the_optimizer() -> None:
    _, alone = memory_of({"data_parallel": 4, "global_batch_size": 4})
    program, sharded = memory_of({"data_parallel": 4, "global_batch_size": 4, "zero_stage": 1})
    shard = sum(bucket.shard_numel for bucket in program.classes[0].buckets)
    assert sharded[0].parts["optimizer"] == pytest.approx(12 * shard, rel=0.01)
    assert alone[0].parts["optimizer"] > 3.9 * sharded[0].parts["optimizer"]


def test_recompute_holds_less() -> None:
    held = [
        memory_of({"global_batch_size": 4, "recompute": how})[1][0].parts["activations"]
        for how in ("none", "selective", "full")
    ]
    assert held[0] >= held[1] > held[2]


def test_rounding_of_the_caching_allocator() -> None:
    rounding = Rounding(ALLOCATOR)
    assert rounding.allocated(1) == 512
    assert rounding.size_class(513) == (-1, 1024)  # small ones share 2 MiB segments
    assert rounding.reserved(*rounding.size_class(513)) == 2 * MIB
    assert rounding.reserved(*rounding.size_class(3 * MIB)) == 20 * MIB  # middle ones share 20 MiB segments
    assert rounding.reserved(*rounding.size_class(10 * MIB + 1)) == 12 * MIB  # large ones are rounded to 2 MiB


def test_temporaries_of_kernels_live_while_their_instruction_runs() -> None:
    """The largest call of an instruction counts, not the sum; and one pool holds whatever any instruction needs."""
    program, _ = small({"precision": "bf16"})
    (stage,) = program.classes
    bare, held = simulate_memory(stage, ALLOCATOR), simulate_memory(stage, ALLOCATOR, Workspace({"ce_exp": 100.0}))
    calls = {call for block in stage.blocks for i in block.instructions for call in i.body if call.op == "ce_exp"}
    largest = max(Workspace({"ce_exp": 100.0}).bytes_(call) for call in calls)
    assert largest == max(100 * bytes_of(call) // call.count for call in calls)
    assert held.where.endswith("head.exp")
    assert largest <= held.parts["workspace"] < largest + 1024
    assert held.peak_reserved_bytes - bare.peak_reserved_bytes >= largest
    assert simulate_memory(stage, ALLOCATOR, Workspace({"gemm": 0.0})).parts == bare.parts
