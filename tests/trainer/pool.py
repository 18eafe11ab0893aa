"""Four worker processes joined by gloo, started once and reused by every test that needs ranks.

    pool.run(function, *arguments)     # function(rank, *arguments) on all four; the results in rank order

Functions and arguments must be picklable. A worker that raises fails the call with its traceback; one that does not
answer, or dies, fails it by name. No test inherits another's failure: after one the workers are ended, and the next
call starts new ones.
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
        number, function, arguments = task
        try:
            pipe.send((number, True, function(rank, *arguments)))
        except BaseException:
            pipe.send((number, False, traceback.format_exc()))
    os._exit(0)  # the other ranks may be gone already: nothing to tear down together


class Pool:
    """The workers. `close` ends them."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self.answer_s, self._number = answer_s, 0
        self._pipes: list[Connection] = []
        self._processes: list[mp.process.BaseProcess] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results of `function(rank, *arguments)` on every worker (a function for fewer ranks returns None on the
        rest)."""
        if not self._processes:
            self._start()
        self._number += 1
        try:
            for pipe in self._pipes:
                pipe.send((self._number, function, arguments))
            deadline = time.monotonic() + self.answer_s
            answers = [self._answer(rank, function, deadline) for rank in range(WORKERS)]
            broken = [f"rank {rank}:\n{text}" for rank, (good, text) in enumerate(answers) if not good]
            if broken:
                raise AssertionError("\n".join(broken))
        except BaseException:
            # A worker may be inside a collective, or its group be broken: neither is the next test's concern.
            self._kill()
            raise
        return [value for _, value in answers]

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(5)
        self._kill()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")  # workers are forks of one process that has imported torch and us
        context.set_forkserver_preload(["torch", "tests.trainer.ranks"])
        for rank in range(WORKERS):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_worker, args=(rank, str(Path(self._folder.name) / "store"), theirs), daemon=True
            )
            process.start()
            theirs.close()  # so that a worker that dies is an end of its pipe
            self._pipes.append(mine)
            self._processes.append(process)

    def _answer(self, rank: int, function: Callable[..., Any], deadline: float) -> tuple[bool, Any]:
        """A worker's answer to this request; one that is late, to an earlier request, is dropped."""
        pipe = self._pipes[rank]
        while pipe.poll(max(0.0, deadline - time.monotonic())):
            try:
                number, good, value = pipe.recv()
            except EOFError:
                return False, f"the worker died in {function.__name__}"
            if number == self._number:
                return good, value
        raise TimeoutError(f"rank {rank} did not answer {function.__name__} within {self.answer_s:g} s")

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._processes:
            self._folder.cleanup()
        self._pipes, self._processes = [], []
