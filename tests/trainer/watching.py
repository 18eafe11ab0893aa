"""Watches a step from below: every c10d call and every product of every thread, and which instruction it happened
in."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from plan.run import Run
from program import Buffer, Placed, expand
from tests.trainer.ranks import make_executor
from trainer.executor import Executor
from trainer.streams import Op

OPS = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
}
PRODUCTS = {"mm": 0, "addmm": 1, "addmm_": 1, "bmm": 0}


@dataclass(frozen=True)
class Communication:
    """A c10d call: in which instruction (None: outside), on which group, what, and how many bytes of the full
    tensor."""

    instruction: int | None
    group: str
    op: str
    bytes: int
    dtype: str


@dataclass
class Observed:
    """What a rank really did in one step."""

    communications: list[Communication]
    products: dict[int | None, list[tuple[int, ...]]]
    wrong_results: list[str]
    peak_bytes: int


class Watch:
    """The log of one rank; `context` is the thread_context factory the executor takes."""

    def __init__(self) -> None:
        self.current = threading.local()
        self.communications: list[Communication] = []
        self.products: dict[int | None, list[tuple[int, ...]]] = {}

    def context(self) -> TorchDispatchMode:
        return _Mode(self)

    def inside(self) -> int | None:
        return getattr(self.current, "id", None)

    def around(self, op: Op, after: Callable[[], None]) -> Op:
        def run() -> None:
            self.current.id = op.id
            op.run()
            self.current.id = None
            after()

        return replace(op, run=run)


class _Mode(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.partition("::")[2]
        if function.namespace == "c10d":
            self._communication(name, args)
        elif name in PRODUCTS:
            a, b = args[PRODUCTS[name] : PRODUCTS[name] + 2]
            shape = (*a.shape[:-1], b.shape[-1], a.shape[-1])
            self.watch.products.setdefault(self.watch.inside(), []).append(tuple(shape))
        elif name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
            q, k = args[1:3] if name.endswith("_backward") else args[0:2]
            shape = (q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3])
            self.watch.products.setdefault(self.watch.inside(), []).append(shape)
        return function(*args, **(kwargs or {}))

    def _communication(self, name: str, args: Any) -> None:
        op, position = OPS.get(name, (name, 0))
        tensor = args[position][0] if isinstance(args[position], list) else args[position]
        group = next(g for g in (_unboxed(a) for a in args) if g is not None)
        dtype = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}[tensor.dtype]
        self.watch.communications.append(
            Communication(self.watch.inside(), group, op, tensor.numel() * tensor.element_size(), dtype)
        )


def _unboxed(value: Any) -> str | None:
    if not isinstance(value, torch.ScriptObject):
        return None
    try:
        return str(dist.ProcessGroup.unbox(value).group_name)
    except RuntimeError:  # a reduce operation, boxed the same way
        return None


def _check_results(executor: Executor, placed: Placed, wrong: list[str]) -> None:
    """Every tensor an instruction made has the declared shape and type and owns exactly the declared bytes."""
    storage = executor.storage
    block = executor.mine.blocks[executor.mine.calls[placed.call].block]
    for ref in placed.instruction.writes:
        spec: Buffer = block.buffers[ref] if ref >= 0 else executor.mine.buffers[-1 - ref]
        tensor = storage.table[storage.place(placed.call, ref)]
        if tensor is None:
            continue
        same = tuple(tensor.shape) == spec.shape and tensor.element_size() * tensor.numel() == spec.bytes
        owned = ref < 0 or spec.slot is not None or tensor.untyped_storage().nbytes() == spec.bytes
        if not (same and owned and tensor.is_contiguous()):
            made = f"{tuple(tensor.shape)} {tensor.dtype} in {tensor.untyped_storage().nbytes()} bytes"
            wrong.append(
                f"{placed.instruction.piece} {spec.what}: "
                f"declared {spec.shape} {spec.dtype} {spec.bytes} bytes, made {made}"
            )


def observe(rank: int, run: Run) -> tuple[Observed, dict[str, tuple[str, str]]] | None:
    """Run two steps on a pool rank and watch the second; also the names of its groups by (role, channel)."""
    watch = Watch()
    executor = make_executor(rank, run, thread_context=watch.context)
    if executor is None:
        return None
    executor.step(0)
    watch.communications.clear()
    watch.products.clear()
    wrong: list[str] = []
    placed = {p.id: p for p in expand(executor.mine)}

    def checked(op: Op) -> Op:
        return watch.around(op, lambda: _check_results(executor, placed[op.id], wrong))

    executor.ops = [checked(op) for op in executor.ops]
    executor.step(1)
    groups = {str(group.group_name): key for key, group in executor._communicators.items()}
    peak = executor.storage.peak_bytes
    executor.close()
    return Observed(watch.communications, watch.products, wrong, peak), groups
