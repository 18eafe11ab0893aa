"""ZeRO on paper: what each stage keeps and what it moves, as multiples of the number of parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plan.run import Run
from program import StepProgram, expand
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import simulated_small, small

RANKS = 4
SHARDED = {"data_parallel": RANKS, "micro_batch_size": 1}


def made(stage: int, microbatches: int = 1, **plan: Any) -> StepProgram:
    program, _ = small(SHARDED | {"zero_stage": stage, "global_batch_size": RANKS * microbatches} | plan)
    return program


def numbers(program: StepProgram) -> int:
    """Parameters of a rank, with the padding of their buckets."""
    return sum(bucket.numel for bucket in program.classes[0].buckets)


def moved(program: StepProgram) -> dict[str, int]:
    """Bytes of every kind of collective over the data-parallel ranks in a step."""
    found: dict[str, int] = {}
    for placed in expand(program.classes[0]):
        comm = placed.instruction.comm
        if comm is not None and comm.role == "dp" and placed.instruction.piece != "loss":
            found[comm.op] = found.get(comm.op, 0) + comm.bytes
    return found


@pytest.mark.parametrize("gradient", ["bf16", "fp32"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_of_a_rank(stage: int, gradient: str) -> None:
    """With 16-bit weights and gradients and 12 bytes of optimizer 16, 4 + 12/N, 2 + 14/N and 16/N bytes a parameter
    (Rajbhandari et al. 2020), with fp32 gradients 2 more; ZeRO-1 keeps the reduced shard of its gradients too."""
    g = 2 if gradient == "bf16" else 4
    whole, shared = ((2 + g + 12, 0), (2 + g, 12 + g), (2, 12 + g), (0, 2 + g + 12))[stage]
    program, run = small(SHARDED | {"zero_stage": stage, "gradient_dtype": gradient, "global_batch_size": RANKS})
    parts = simulate(program, run.cluster, FakeProfile()).memory[0].parts
    kept = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert kept == pytest.approx(numbers(program) * (whole + shared / RANKS), rel=1e-12)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_bytes_a_step_moves(microbatches: int) -> None:
    """Gradients 2Ψ by all-reduce; ZeRO-1 Ψ of gradients and Ψ of weights; ZeRO-2 reduces every micro-batch; ZeRO-3
    gathers twice and reduces once every micro-batch, but for the embedding, whose backward reads no weights."""
    n = numbers(made(0))
    assert moved(made(0, microbatches)) == {"all_reduce": 4 * n}
    assert moved(made(1, microbatches)) == {"reduce_scatter": 4 * n, "all_gather": 2 * n}
    assert moved(made(2, microbatches)) == {"reduce_scatter": 4 * n * microbatches, "all_gather": 2 * n}
    program = made(3, microbatches)
    (table,) = (p for p in program.classes[0].params if p.name == "embed.tokens.weight")
    embedding = program.classes[0].buckets[table.bucket].numel
    gathers = 2 * (2 * n - embedding) * microbatches
    assert moved(program) == {"reduce_scatter": 4 * n * microbatches, "all_gather": gathers}


def test_deepspeed_all_reduces_what_it_partitions() -> None:
    """3Ψ at one micro-batch: 2Ψ of gradients, counted once as the tensor that is all-reduced, and Ψ of weights."""
    n = numbers(made(2))
    for microbatches in (1, 3):
        program = made(2, microbatches, implementation="deepspeed")
        assert moved(program) == {"all_reduce": 4 * n * microbatches, "all_gather": 2 * n}
        closing = program.classes[0].blocks[-1]
        assert [i.kind for i in closing.instructions].count("AG") == len(program.classes[0].buckets)


def test_recompute_gathers_nothing_more() -> None:
    """A unit's weights stay from its recomputed forward to its backward."""
    assert moved(made(3, recompute="full")) == moved(made(3))


def test_a_tied_table_is_reduced_by_both_its_users() -> None:
    program, _ = small(SHARDED | {"zero_stage": 2, "global_batch_size": RANKS}, tied_embeddings=True)
    (tied,) = (bucket for bucket in program.classes[0].buckets if bucket.kind == "tied")
    assert moved(program)["reduce_scatter"] == 4 * (numbers(program) + tied.numel)


def test_weights_travel_while_the_unit_before_computes() -> None:
    plan = SHARDED | {"zero_stage": 3, "global_batch_size": RANKS}
    ahead, late = (
        simulated_small(plan | {"communication": {"overlap": overlap}}, FakeProfile(issue_s=1e-8), layers=8)
        for overlap in (True, False)
    )
    assert ahead.step_time_s < late.step_time_s
    assert ahead.breakdown["exposed_data"] < 0.5 * late.breakdown["exposed_data"]


def test_what_is_small_can_stay_whole() -> None:
    """Norms and biases of 512 numbers below a threshold of 1,000: gathered once a step, reduced once."""
    plan = SHARDED | {"zero_stage": 3, "global_batch_size": RANKS * 2, "zero": {"persist_below": 1000}}
    program, _ = small(plan)
    stage = program.classes[0]
    (whole,) = (b for b in stage.buckets if not b.weights_sharded)
    assert {p.name for p in stage.params if p.bucket == whole.index} == {
        p.name for p in stage.params if p.local_numel < 1000
    }
    opened = next(b for b in stage.blocks if b.name == "open")
    assert [i.unit for i in opened.instructions if i.kind == "AG"] == [whole.index]


OFFLOAD = {"offload": {"optimizer": "cpu", "parameters": "cpu"}}


def test_what_is_on_the_host() -> None:
    """fp32 master and moments, the gradient, and the 16-bit weights: 12 + 4 + 2 bytes of this rank's share, while the
    device keeps the shard of gradients that it adds up and nothing else."""
    program, run = small(SHARDED | {"zero_stage": 3, "global_batch_size": RANKS * 2} | OFFLOAD)
    memory = simulate(program, run.cluster, FakeProfile()).memory[0]
    share = numbers(program) // RANKS
    assert memory.host_bytes == 18 * share + 8  # and two numbers: norm and loss
    assert (memory.parts["weights"], memory.parts["gradients"], memory.parts["optimizer"]) == (0, 4 * share, 0)


def test_a_slow_host_is_waited_for_and_nothing_else_is() -> None:
    """The step grows by what the CPUs take for 30 bytes a parameter of each of four ranks, and it is called so."""
    plan = SHARDED | {"zero_stage": 2, "global_batch_size": RANKS, "offload": {"optimizer": "cpu"}}
    program, run = small(plan)
    free = {"copy_bytes_per_s": 1e18}
    run = replace(run, cluster=replace(run.cluster, pcie_gb_s=1e9))
    fast, slow = (simulate(program, run.cluster, FakeProfile(host_bytes_per_s=rate, **free)) for rate in (1e18, 1e9))
    added = 30 * numbers(program) / 1e9
    assert slow.step_time_s - fast.step_time_s == pytest.approx(added, rel=1e-6)
    assert slow.breakdown["exposed_offload"] * slow.step_time_s == pytest.approx(
        added + fast.breakdown["exposed_offload"] * fast.step_time_s, rel=1e-3
    )


def test_weights_go_back_beside_the_next_step() -> None:
    """Of as many copies as buckets only the last is not beside a step of the host."""
    plan = SHARDED | {"zero_stage": 3, "global_batch_size": RANKS, "offload": {"optimizer": "cpu"}}
    program, run = small(plan, layers=8)
    simulation = simulate(program, run.cluster, FakeProfile(host_bytes_per_s=2e9, copy_bytes_per_s=2e10))
    ends: dict[str, list[float]] = {}
    for row in simulation.timeline([0]).rows():
        ends.setdefault(row.stream, []).append(row.end_s)
    assert len(ends["h2d"]) == len(ends["cpu"]) == len(program.classes[0].buckets)
    assert sum(end > max(ends["cpu"]) for end in ends["h2d"]) == 1


def _step_s(program: StepProgram, run: Run) -> float:
    return simulate(program, run.cluster, FakeProfile()).step_time_s


def test_a_fraction_stays_on_the_device() -> None:
    """ZeRO-Offload++: the first buckets, until they hold half the parameters, are stepped by the host."""
    plan = SHARDED | {"zero_stage": 3, "global_batch_size": RANKS}
    whole, half = (small(plan | {"offload": {"optimizer": "cpu", "fraction": share}}) for share in (1.0, 0.5))
    steps = [i for b in half[0].classes[0].blocks for i in b.instructions if i.kind == "STEP"]
    assert {i.stream for i in steps} == {"cpu", "compute"}
    hosted = [b.numel for b in half[0].classes[0].buckets if b.offloaded]
    assert sum(hosted[:-1]) < 0.5 * numbers(half[0]) <= sum(hosted)
    assert _step_s(*half) < _step_s(*whole)


def test_gpus_behind_one_link_share_it() -> None:
    plan = SHARDED | {"zero_stage": 3, "global_batch_size": RANKS} | OFFLOAD
    fast = FakeProfile(copy_bytes_per_s=1e12)
    alone, shared = (simulated_small(plan, fast, {"pcie_gb_s": 1, "gpus_per_pcie": n}).step_time_s for n in (1, 2))
    assert shared > 1.5 * alone
