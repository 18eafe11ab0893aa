"""What a rank does is what its program says: every collective, every product, every byte it keeps, and nothing
besides."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

from compiler import compile_run
from program import Comm, CommOp, Instruction, RankProgram, Reduce, expand, resolve_buffer
from program.errors import InputError
from tests.soak import crossed
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, make_run
from tests.trainer.watching import Observed, observe
from trainer.collectives import check_known, communication
from trainer.storage import Storage

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"data_parallel": 2, "communication": {"bucket_mb": 0.02}},
    "tp2": {"tensor_parallel": 2, "sequence_parallel": False},
    "tp2-sp": {"tensor_parallel": 2, "sequence_parallel": True},
    "pp2": {"pipeline_parallel": 2},
    "tp2-pp2": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "zero1-dp2-pp2": {"data_parallel": 2, "pipeline_parallel": 2, "zero_stage": 1},
    "interleaved": {"pipeline_parallel": 2, "schedule": "interleaved-1f1b", "virtual_pipeline": 2},
    "loss-chunks": {"data_parallel": 2, "loss_chunks": 4},
    "recompute": {"tensor_parallel": 2, "sequence_parallel": True, "recompute": "selective"},
    "zero2": {"data_parallel": 2, "zero_stage": 2},
    "zero3": {"data_parallel": 2, "zero_stage": 3},
    "fsdp": {"data_parallel": 2, "zero_stage": 3, "implementation": "torch-fsdp"},
    "fsdp-kept": {"data_parallel": 2, "zero_stage": 2, "implementation": "torch-fsdp"},
    "zero3-offload": {
        "data_parallel": 2,
        "zero_stage": 3,
        "offload": {"optimizer": "cpu", "parameters": "cpu"},
    },
}


LAYOUTS |= {f"{name}-one-sequence": LAYOUTS[name] | {"micro_batch_size": 1} for name in ("tp2", "tp2-pp2", "zero3")}
MODELS = {"llama": LLAMA, "gpt": GPT}
CASES = [f"{layout} fp32" for layout in LAYOUTS] + ["tp2-sp bf16", "zero1-dp2-pp2 bf16", "zero3 bf16"]


@crossed(case=CASES, model=MODELS)
def test_a_step_does_exactly_what_its_program_says(pool: Pool, case: str, model: str) -> None:
    layout, precision = case.split()
    run = make_run(MODELS[model], LAYOUTS[layout] | {"precision": precision})
    program = compile_run(run)
    for rank, answer in enumerate(pool.run(observe, run)[: run.plan.world]):
        observed, groups = answer
        mine = program.classes[program.class_of[rank]]
        _hold_communications(observed, groups, mine)
        _hold_products(observed, mine)
        assert observed.wrong_results == []
        assert observed.peak_bytes == _peak_bytes(mine)


def _hold_communications(observed: Observed, groups: dict[str, tuple[str, str]], program: RankProgram) -> None:
    """Per communicator and direction: the same (instruction, op, bytes, dtype), in order, and none outside an
    instruction."""
    done: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for c in observed.communications:
        assert c.instruction is not None, f"{c} happened outside every instruction"
        direction = c.op if c.op in ("send", "recv") else ""
        done.setdefault((*groups[c.group], direction), []).append((c.instruction, c.op, c.bytes, c.dtype))
    told: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for placed in expand(program):
        comm = placed.instruction.comm
        if comm is not None:
            role = "pp_next" if comm.role == "pp_prev" else comm.role
            direction = comm.op if comm.op in ("send", "recv") else ""
            told.setdefault((role, comm.channel, direction), []).append((placed.id, comm.op, comm.bytes, comm.dtype))
    assert done == told


def reduced(rank: int, op: CommOp, reduce: Reduce) -> list[float] | None:
    """What this rank of the pool's first two holds after a communication of [rank, 10 − rank] on both."""
    group = _pair()
    if rank > 1:
        return None
    storage = Storage(RankProgram(0, (), (), (), (), ()), torch.device("cpu"))
    storage.table = [torch.tensor([float(rank), 10.0 - rank]), torch.zeros(1)]
    comm = Comm(op, "dp", 8, "fp32", "dp", reduce)
    communication(storage, comm, group, (0, 1), rank, 0, 0 if op == "all_reduce" else 1)()
    return storage.tensor(0 if op == "all_reduce" else 1).tolist()


@cache
def _pair() -> Any:
    return dist.new_group([0, 1])


REDUCED: dict[tuple[CommOp, Reduce], list[list[float]]] = {
    ("all_reduce", "sum"): [[1.0, 19.0], [1.0, 19.0]],
    ("all_reduce", "max"): [[1.0, 10.0], [1.0, 10.0]],
    ("reduce_scatter", "sum"): [[1.0], [19.0]],
    ("reduce_scatter", "max"): [[1.0], [10.0]],
}


@pytest.mark.parametrize(("op", "reduce"), REDUCED)
def test_the_reduction_is_the_one_the_program_names(pool: Pool, op: CommOp, reduce: Reduce) -> None:
    assert pool.run(reduced, op, reduce)[:2] == REDUCED[op, reduce]


def test_a_reduction_nobody_knows_is_refused() -> None:
    comm = Comm("reduce_scatter", "dp", 8, "fp32", "dp")
    unnamed = Instruction("step", "RS", 0, "bucket", "dp", comm=comm)
    with pytest.raises(InputError, match="reduce_scatter .bucket. reduces by nothing; what can be .* is sum or max"):
        check_known(unnamed)


PRODUCTS = ("gemm", "bmm", "attention_forward", "attention_backward")


def _hold_products(observed: Observed, program: RankProgram) -> None:
    """Every instruction multiplies and attends in the shapes of its body, in order."""
    told = {}
    for placed in expand(program):
        shapes = [c.shape for c in placed.instruction.body if c.op in PRODUCTS for _ in range(c.count)]
        if shapes:
            told[placed.id] = shapes
    assert observed.products == told


def _peak_bytes(program: RankProgram) -> int:
    """Highest sum of resident and allocated bytes, in host order."""
    live = peak = program.resident_bytes
    alive: set[tuple[int, int]] = set()
    for placed in expand(program):
        for ref in placed.instruction.writes:
            owner = resolve_buffer(program, placed.call, ref)
            if owner[0] < 0 or owner in alive:
                continue
            buffer = program.blocks[program.calls[owner[0]].block].buffers[owner[1]]
            if buffer.slot is None and buffer.base is None:
                alive.add(owner)
                live += buffer.bytes
                peak = max(peak, live)
        for ref in placed.instruction.frees:
            try:
                owner = resolve_buffer(program, placed.call, ref)
            except KeyError:  # the port of a send that never happened
                continue
            if owner in alive:
                alive.remove(owner)
                live -= program.blocks[program.calls[owner[0]].block].buffers[owner[1]].bytes
    assert not alive
    return peak
