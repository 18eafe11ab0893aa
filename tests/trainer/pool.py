"""Four worker processes joined by gloo, started once and reused by every test that needs ranks.

    pool.run(function, *arguments)     # function(rank, *arguments) on all four; the results in rank order

Functions and arguments must be picklable. A worker that raises fails the call with its traceback; one that does not
answer fails it by name.
"""

import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

WORKERS = 4
ANSWER_S = 90.0


def _worker(rank: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # the other ranks may be gone already: nothing to tear down together


class Pool:
    """The workers. `close` ends them."""

    def __init__(self) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(WORKERS):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_worker, args=(rank, str(Path(self._folder.name) / "store"), theirs), daemon=True
            )
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results of `function(rank, *arguments)` on every worker (a function for fewer ranks returns None on the
        rest)."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        deadline, answers = time.monotonic() + ANSWER_S, []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {rank} did not answer {function.__name__} within {ANSWER_S:g} s")
            answers.append(pipe.recv())
        broken = [f"rank {rank}:\n{text}" for rank, (good, text) in enumerate(answers) if not good]
        if broken:
            raise AssertionError("\n".join(broken))
        return [value for _, value in answers]

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
