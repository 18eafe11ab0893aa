"""How a communication is issued: bound once to its communicator, peer and options, called without arguments in a step.

A process group is called directly, past the module's wrappers. On CUDA its backend is called past the dispatcher too,
and a collective is asked to run in the current stream (`asyncOp` off): from torch 2.8 on nothing is left to wait for
then, since events around the instruction bracket it (https://github.com/pytorch/pytorch/pull/148590). Transfers run in
a stream of the backend's, which the current one waits for. Tensors that stay where they are for the whole run are
viewed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceScatterOptions

from program import Comm, Instruction
from program.errors import InputError
from trainer.storage import Storage

Body = Callable[[], None]
Start = Callable[[], Any]
REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
IN_STREAM = torch.__version__ >= "2.8"  # torch compares it as a version
"""Whether a synchronous collective runs in the current stream; before, it used one of the backend's."""


def check_known(instruction: Instruction) -> None:
    """Raises InputError for a communication this trainer cannot execute."""
    comm = instruction.comm
    if comm is not None and comm.op not in ("all_reduce", "all_gather", "reduce_scatter", "send", "recv"):
        raise InputError(
            f"communication {comm.op} ({instruction.piece}) cannot be trained; take an implementation that sends and "
            "receives apart"
        )
    if comm is not None and comm.op in ("all_reduce", "reduce_scatter") and comm.reduce not in REDUCTIONS:
        raise InputError(
            f"communication {comm.op} ({instruction.piece}) reduces by {comm.reduce or 'nothing'}; what can be trained "
            f"is {' or '.join(REDUCTIONS)}"
        )


def communication(
    storage: Storage, comm: Comm, group: Any, ranks: tuple[int, ...], rank: int, read: int, written: int
) -> Body:
    """`comm` on the communicator `group` of `ranks`, from the tensor at place `read` (-1: none) into that at `written`
    (-1: none). The body returns when it has finished, on CUDA when it was issued."""
    cuda = storage.device.type == "cuda"
    called = group._get_backend(storage.device) if cuda else group
    begin = _beginning(storage, comm, called, ranks, rank, read, written)
    if cuda and IN_STREAM and comm.op not in ("send", "recv"):
        return begin

    def communicate() -> None:
        work = begin()
        if work is not None:
            work.wait()

    return communicate


def _beginning(
    storage: Storage, comm: Comm, group: Any, ranks: tuple[int, ...], rank: int, read: int, written: int
) -> Start:
    """What begins `comm` and returns its work."""
    table, in_stream = storage.table, storage.device.type == "cuda"
    if comm.op == "all_reduce":
        options: Any = AllreduceOptions()
        options.reduceOp = REDUCTIONS[comm.reduce]
        options.asyncOp = not in_stream
        reduce = group.allreduce
        return lambda: reduce([table[written]], options)
    if comm.op == "all_gather":
        return _gathering(storage, group, ranks, rank, read, written)
    if comm.op == "reduce_scatter":
        options = ReduceScatterOptions()
        options.reduceOp = REDUCTIONS[comm.reduce]
        options.asyncOp = not in_stream
        scatter = group._reduce_scatter_base
        return lambda: scatter(table[written], table[read], options)
    peer = (ranks.index(rank) + (1 if comm.role == "pp_next" else -1)) % len(ranks)
    send, receive = group.send, group.recv
    if comm.op == "send":
        return lambda: send([table[read]], peer, 0)
    return lambda: receive([table[written]], peer, 0)


def _gathering(storage: Storage, group: Any, ranks: tuple[int, ...], rank: int, read: int, written: int) -> Start:
    """Every rank's tensor one after another. Where a rank's own is all of the target, its share of it is sent from
    there: in place."""
    options: Any = AllgatherOptions()
    options.asyncOp = storage.device.type != "cuda"
    table, gather = storage.table, group._allgather_base
    source, target = table[read], table[written]
    if target is None:
        return lambda: gather(storage.tensor(written).view(-1), storage.tensor(read).view(-1), options)
    whole = target.view(-1)
    if source is None:
        return lambda: gather(whole, storage.tensor(read).view(-1), options)
    if source.data_ptr() == target.data_ptr() and source.numel() == target.numel():
        source = source.view(len(ranks), -1)[ranks.index(rank)]
    share = source.view(-1)
    return lambda: gather(whole, share, options)
