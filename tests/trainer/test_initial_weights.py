"""Initial weights are those of the seed, bit for bit, whatever the layout: three tensors are held by their hashes."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from compiler import compile_run
from plan.run import Run
from tests.trainer.ranks import GPT, LLAMA, Share, assemble, make_run, text
from trainer.context import RankContext, coordinates
from trainer.init import BLOCK_ELEMENTS, initialise
from trainer.storage import Storage
from windtunnel.job import job_of

Tensor = torch.Tensor
HASHES: dict[str, dict[str, str]] = {
    "llama": {
        "embed.tokens.weight": "608d32ea7d732636",
        "layers.0.attn.qkv.weight": "cec7f920b99d32e2",
        "layers.3.mlp.down.weight": "fb97f2e134f282a7",
    },
    "gpt": {
        "embed.tokens.weight": "608d32ea7d732636",
        "layers.0.attn.qkv.weight": "f133ae790de910f0",
        "layers.3.mlp.down.weight": "2593ff5d2207a0f1",
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "bf16": {"precision": "bf16"},
    "tp2-sp": {"tensor_parallel": 2, "sequence_parallel": True},
    "tp4": {"tensor_parallel": 4, "kv": 4},
    "pp2": {"pipeline_parallel": 2},
    "zero1-dp2": {"data_parallel": 2, "zero_stage": 1},
    "zero3-dp4": {"data_parallel": 4, "zero_stage": 3, "micro_batch_size": 1},
    "zero3-tp2": {"data_parallel": 2, "tensor_parallel": 2, "zero_stage": 3},
    "offload": {"data_parallel": 2, "zero_stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}},
}


def masters(run: Run) -> list[Share]:
    """What each rank holds at the start, from its fp32 or fp64 masters; shares of a bucket are joined."""
    program, shares = compile_run(run), []
    storages = []
    for rank in range(run.plan.world):
        mine = program.classes[program.class_of[rank]]
        storage, at = Storage(mine, torch.device("cpu")), coordinates(program, rank)
        context = RankContext(program, job_of(run), rank, text(run), torch.device("cpu"))
        initialise(storage, context)
        storages.append((at, storage))
    for at, storage in (pair for pair in storages if pair[0].dp == 0):
        peers = [s for a, s in sorted(storages, key=lambda p: p[0].dp) if (a.tp, a.pp) == (at.tp, at.pp)]
        found = {}
        for param in storage.program.params:
            bucket = storage.program.buckets[param.bucket]
            flat = storage.tensor(bucket.master_buffer)
            if flat.numel() < bucket.numel:
                flat = torch.cat([peer.tensor(bucket.master_buffer) for peer in peers])
            view = flat[param.offset : param.offset + param.local_numel].view(param.local_shape)
            found[param.name] = (param, view.double())
        shares.append(Share(at.tp, [], [], found, 0, 0))
    return shares


@pytest.mark.parametrize("model", HASHES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_tensors_hash_as_ever(model: str, layout: str) -> None:
    plan = dict(LAYOUTS[layout])
    if plan.pop("kv", 0) and model == "llama":
        pytest.skip("two heads of keys for four ranks")
    run = make_run({"llama": LLAMA, "gpt": GPT}[model], plan)
    full = assemble(masters(run), run)
    found = {name: hashlib.sha256(full[name].float().numpy().tobytes()).hexdigest()[:16] for name in HASHES[model]}
    assert found == HASHES[model]


def test_blocks_are_drawn_apart_and_only_where_they_are_held() -> None:
    """A table of several blocks, over two ranks and on one: what the formula says, element by element."""
    model = LLAMA | {"layers": 1, "hidden": 64, "vocab": 40_000, "head_dim": 16}
    formula = []
    for block in range(-(-40_000 * 64 // BLOCK_ELEMENTS)):
        key = hashlib.blake2b(f"1234/embed.tokens.weight/{block}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, np.uint64)))
        rows = min(BLOCK_ELEMENTS // 64, 40_000 - block * (BLOCK_ELEMENTS // 64))
        formula.append(generator.standard_normal((rows, 64), dtype=np.float32) * np.float32(0.1))
    want = torch.from_numpy(np.concatenate(formula)).double()
    assert len(formula) == 3
    for plan in ({}, {"data_parallel": 2, "zero_stage": 3}, {"tensor_parallel": 2}):
        run = make_run(model, {"precision": "fp32"} | plan)
        assert torch.equal(assemble(masters(run), run)["embed.tokens.weight"], want)
