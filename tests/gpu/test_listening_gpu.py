"""Under NCCL nothing listens to another machine either, before, during and after step 0 of a run on two GPUs.

python -m pytest tests/gpu/test_listening_gpu.py -m gpu -s      # prints the sockets
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.test_two_gpus import GPUS, SMALL
from tests.listening import named, outside_address, watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("layout", [{"tensor_parallel": 2, "sequence_parallel": True}, {"pipeline_parallel": 2}])
def test_nothing_listens_to_another_machine(tmp_path: Path, layout: dict[str, object]) -> None:
    plan = {"precision": "bf16", "zero_stage": 0, "micro_batch_size": 1, "global_batch_size": 32, **layout}
    run = {"model": SMALL, "cluster": GPUS, "plan": plan, "train": {"steps": 4}}
    path, folder = tmp_path / "run.yaml", tmp_path / "out"
    path.write_text(json.dumps(run), encoding="utf-8")
    command = [sys.executable, "-m", "windtunnel", "train", str(path), "--output", str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_SOCKET_IFNAME")}
    address = outside_address()
    started = subprocess.Popen(named(address, command), stderr=subprocess.PIPE, text=True, env=environment)
    found = watch(started, folder)
    assert found.code == 0, found.said[-3000:]
    print(f"\n{layout}; the host's name is {address or 'its own'}")
    for when, sockets in found.when.items():
        print(f"  {when} step 0: {', '.join(f'{one.who} {one.address}' for one in sorted(sockets)) or 'nothing'}")
    assert not [one for one in found.sockets() if one.outside]
    assert {"rank 0", "rank 1"} <= {one.who for one in found.when["during"]}  # the test does see sockets
