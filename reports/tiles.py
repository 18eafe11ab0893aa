"""Model sizes that tensor cores take badly, which the forecast does not price: a warning with the nearest good size.

A half-precision product runs at full rate where its rows begin on 16 bytes (multiples of 8 elements); on A100 and later
the best rates need 128 bytes, multiples of 64. (NVIDIA, "Matrix Multiplication Background User's Guide", section
"Requirements to Use Tensor Cores".) The published product rates that profiles are fitted on are of such sizes, so what
another size costs is not in them. BigScience measured it: hidden 14400 over 96 heads and 8 ranks took 38 % more time
than 13824, of which 8 % are work.
"""

from collections.abc import Iterator
from math import lcm

from plan.run import Run

WHOLE = 8  # elements of 2 bytes: where tensor cores begin
BEST = 64
HALF = ("bf16", "fp16", "fp8")


def warnings(run: Run) -> tuple[str, ...]:
    """A sentence for each size; none on a CPU and in wider precisions."""
    if run.cluster.device == "cpu" or run.plan.precision not in HALF:
        return ()
    return tuple(_head_dim(run)) + tuple(_widths(run))


def _head_dim(run: Run) -> Iterator[str]:
    model = run.model
    if model.head_dim % WHOLE:
        yield (
            f"head_dim {model.head_dim} is not a multiple of {WHOLE}: attention's products run below the tensor cores'"
            f" full rate, which is not priced; the nearest hidden sizes are {_nearest(run)}"
        )


def _widths(run: Run) -> Iterator[str]:
    tensor = run.plan.tensor_parallel
    for name, size in (("hidden", run.model.hidden), ("ffn", run.model.ffn)):
        width = size // tensor
        if width % BEST:
            nearest = (
                f"hidden sizes are {_nearest(run)}" if name == "hidden" else f"ffn is {_round(size, BEST * tensor)}"
            )
            yield (
                f"{name} {size} / tensor_parallel {tensor} = {width} is not a multiple of {BEST}: its products"
                f" waste a part of their tiles' rate, which is not priced; the nearest {nearest}"
            )


def _nearest(run: Run) -> str:
    """Hidden sizes on both sides that suit heads and ranks."""
    own_heads = run.model.head_dim * run.model.heads == run.model.hidden
    step = lcm(BEST * run.plan.tensor_parallel, run.model.heads * WHOLE if own_heads else 1)
    below = run.model.hidden // step * step
    return f"{below} and {below + step}" if below else str(step)


def _round(size: int, step: int) -> int:
    return max(step, round(size / step) * step)
