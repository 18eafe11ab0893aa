"""Host time to issue a training step to CUDA streams, an instruction: the streams alone, and with real pieces.

Streams and events cost nothing here (`tests.trainer.fake_cuda`), nor do collectives, and tensors are tiny; so what is
timed is our own Python and torch's dispatch of the operators. A device adds the driver's share. `extra_info` holds the
number of instructions of a step and the microseconds an instruction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiler import compile_run
from plan.run import Run, load
from tests.trainer.fake_cuda import OnStreams, install
from windtunnel.job import job_of, text_of

MODEL = {
    "layers": 16, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 256, "seq_length": 16,
    "vocab_multiple": 64, "activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "tied_embeddings": False,
    "bias": False,
}  # fmt: skip
PLAN = {"tensor_parallel": 2, "sequence_parallel": True, "precision": "fp32", "zero_stage": 0, "global_batch_size": 4}


class _Silent:
    """A communicator whose collectives have always happened."""

    def _done(self, *_: Any) -> _Silent:
        return self

    allreduce = _allgather_base = _reduce_scatter_base = wait = _done


class _Communicators(dict[tuple[str, str], _Silent]):
    def __missing__(self, key: tuple[str, str]) -> _Silent:
        return _Silent()


@pytest.mark.benchmark(group="host time of a step")
@pytest.mark.parametrize("what", ["streams", "pieces", "recorded"])
def test_issue(benchmark: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    install(monkeypatch)
    torch.set_num_threads(1)
    run: Run = load({"model": MODEL, "cluster": "cpu", "plan": PLAN})
    executor = OnStreams(compile_run(run), job_of(run), 0, _Communicators(), text_of(run))
    executor.step(0)
    if what == "streams":
        executor.ops = [replace(op, run=lambda: None) for op in executor.ops]
    benchmark.pedantic(executor.step, args=(1, what == "recorded"), rounds=20, warmup_rounds=2)
    instructions = len(executor.ops)
    benchmark.extra_info["instructions"] = instructions
    if benchmark.stats:
        benchmark.extra_info["us_each"] = benchmark.stats.stats.median / instructions * 1e6
    assert instructions > 1000
