"""What an operator costs when every torch operation of its reference is a kernel of its own: launches, and bytes moved.

`kernels: eager` runs the references of `kernels`, and a GPU that was not measured under it can still be priced: the
reference is executed once on the CPU under a dispatch mode that counts, for each operation that is no view, its inputs
and outputs. The ratio to the operator's least bytes is the extra traffic of not fusing.

    python -m tools.traffic       # the tables that `fit_sections.EAGER` and `fit_workspace.EAGER` hold

What it allocates on the way counts too: the temporaries alive at once, which no buffer of a program holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import registry
from program import KernelCall
from program.ops import OPERATORS

ROWS, WIDTH = 512, 1024  # large enough that statistics do not count
NO_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty")
WRITE_ONLY = ("copy_", "fill_", "zero_")
BY_INDEX = ("gather", "scatter_", "index_select", "index_add_")


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts launches, bytes read and written, and the most bytes alive at once among those allocated, of the
    operations dispatched under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0
        self.bytes = 0
        self.most_alive = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def _note(self, made: list[torch.Tensor]) -> None:
        for x in made:
            storage = x.untyped_storage()
            held = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._made[storage.data_ptr()] = (held, storage.nbytes())
        self._made = {at: kept for at, kept in self._made.items() if not kept[0].expired()}  # type: ignore[no-untyped-call]
        self.most_alive = max(self.most_alive, sum(bytes_ for _, bytes_ in self._made.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = _tensors((args, kwargs or {}))
        written = _written(func, args, kwargs or {})
        held = {x.untyped_storage().data_ptr() for x in inputs}
        made = [x for x in _tensors(result) if x.untyped_storage().data_ptr() not in held]
        self._note(made)
        name = func._schema.name.removeprefix("aten::")
        if (made or written) and name not in NO_KERNEL:
            self.launches += 1
            self.bytes += _moved(name, inputs, [*made, *written])
        return result


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Arguments that the operation writes."""
    named = [kwargs.get(a.name) if a.name in kwargs else args[i] if i < len(args) else None
             for i, a in enumerate(func._schema.arguments)]  # fmt: skip
    marked = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    return [x for value, is_written in zip(named, marked, strict=True) if is_written for x in _tensors(value)]


def _moved(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """Bytes an operation reads and writes."""
    if name in BY_INDEX:  # touches the rows its index names, not the whole table
        small = sorted(map(_bytes, [*inputs, *outputs]))[:-1]
        return sum(small) + small[-1]
    reads = inputs[1:] if name in WRITE_ONLY else inputs
    return sum(map(_bytes, reads)) + sum(map(_bytes, outputs))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in _flat(value) if isinstance(x, torch.Tensor)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in _flat(part)]
    return [x for part in value for x in _flat(part)] if isinstance(value, (list, tuple)) else [value]


def _bytes(x: torch.Tensor) -> int:
    """What lies in memory: an expanded extent is read once."""
    extents = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride != 0]
    return x.element_size() * int(torch.Size(extents).numel())


def eager_cost(op: str, variant: str = "") -> tuple[int, float, float]:
    """(launches, bytes moved over the least there are, temporaries alive at once beyond its results over the same) of
    an operator's reference in bf16."""
    call = KernelCall(op, _shape(op), "fp32" if op in ("sqnorm", "adamw", "fill") else "bf16", variant)
    inputs = registry.OPERATIONS[op].make_inputs(call, "cpu", torch.Generator().manual_seed(0))
    with torch.no_grad(), _Counter() as counter:
        results = _tensors(registry.OPERATIONS[op].function(*inputs))
    given = {x.untyped_storage().data_ptr() for x in _tensors(inputs)}
    new = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in results}
    left = sum(bytes_ for where, bytes_ in new.items() if where not in given)
    least = OPERATORS[op].bytes_(call)
    return counter.launches, counter.bytes / least, max(0, counter.most_alive - left) / least


def _shape(op: str) -> tuple[int, ...]:
    if op in ("fill", "copy", "sqnorm", "adamw"):
        return (ROWS * WIDTH,)
    if op.startswith("embedding"):
        return (ROWS, WIDTH, ROWS)
    if op.startswith("softmax"):
        return (4 * ROWS, ROWS)
    return (ROWS, WIDTH // 64, 64) if op.startswith("rope") else (ROWS, WIDTH)


def eager_table() -> dict[str, tuple[int, float, float]]:
    """Every memory-bound operator."""
    variants = {"copy": "bf16->bf16", "add_backward": "bias", "softmax_forward": "causal", "softmax_backward": "causal"}
    names = [name for name, operator in OPERATORS.items() if operator.kind == "memory"]
    return {name: eager_cost(name, variants.get(name, "")) for name in names}


if __name__ == "__main__":
    table = eager_table()
    for name, (launches, ratio, _) in table.items():
        print(f'    "{name}": ({launches}, {ratio:.2f}),')
    for name, (_, _, alive) in table.items():
        print(f'    "{name}": {alive:.2f},')
