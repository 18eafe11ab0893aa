"""The program of torch-fsdp communicates as torch's own `fully_shard` does: the same collectives of the same groups and
types, in the same order. A process group that moves nothing stands for the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from compiler import compile_run
from program import expand
from tests.trainer.ranks import LLAMA, make_run

Said = list[tuple[str, str, str]]  # operation, root or layer, type
RANKS, LAYERS, WIDTH, VOCAB, MICROBATCHES = 4, 4, 8, 64, 2
OPERATIONS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class _Heard(TorchDispatchMode):
    """Collectives as they are issued."""

    def __init__(self) -> None:
        super().__init__()
        self.said: Said = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).split(".")[1]
        if name in OPERATIONS:
            whole = max(args[0], args[1], key=Tensor.numel)
            group = "root" if whole.numel() > 2 * VOCAB * WIDTH else "layer"
            self.said.append((OPERATIONS[name], group, str(whole.dtype).removeprefix("torch.")))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def ranks() -> Iterator[None]:
    """This process is one rank of four."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def _issued(reshard: bool) -> Said:
    """What a step of two micro-batches issues under torch's own FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    tokens = torch.arange(8).view(1, 8)
    with _Heard() as heard:
        for _ in range(MICROBATCHES):
            model(tokens).float().sum().backward()
    return heard.said


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("stage", [3, 2])
def test_collectives_are_those_of_fully_shard_in_its_order(stage: int) -> None:
    plan = {"data_parallel": RANKS, "implementation": "torch-fsdp", "zero_stage": stage, "precision": "bf16"}
    run = make_run(LLAMA, plan | {"micro_batch_size": 1, "global_batch_size": MICROBATCHES * RANKS})
    assert run.model.layers == LAYERS
    names = {"bf16": "bfloat16", "fp32": "float32"}
    ours: Said = []
    for placed in expand(compile_run(run).classes[0]):
        i = placed.instruction
        if i.comm is not None and i.phase != "step":
            ours.append((i.comm.op, "layer" if i.unit else "root", names[i.comm.dtype]))
    assert ours == _issued(reshard=stage == 3)
