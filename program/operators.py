"""The operators a line may apply: which of its arguments each updates, and the kernel call it costs.

    OPERATORS["gemm_add"].adds          (2,): adds into its third argument
    kernel_call(line, tensors)          KernelCall("gemm", (m, n, k), "bf16", "tn+acc32")

`like` names the operator of `program.ops` whose measured times answer for it ("" is its own name); an operator without
a kernel costs nothing (`kind` "none": bookkeeping of a few numbers, or the host's own work). `kernels.registry` binds
every one of them to a function that takes the arguments in order and everything `given` by keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from program.kinds import DTYPE_BYTES, KernelCall, numel
from program.lines import Apply, Body, Tensor, body_of, transients

Tensors = Sequence[Tensor | None]
Shape = Callable[[Tensors, Tensors, Mapping[str, object]], tuple[int, ...]]
Variant = Callable[[Tensors, Mapping[str, object]], str]


@dataclass(frozen=True, slots=True)
class LineOperator:
    """Signature of an operator: `adds` and `overwrites` are places of arguments it updates, `shape` and `variant` say
    what its kernel call is, `typed` which argument gives the call's dtype (−1: the result). The
    result may take over the bytes of an argument it `consumes`, which no later line uses."""

    name: str
    shape: Shape | None = None
    adds: tuple[int, ...] = ()
    overwrites: tuple[int, ...] = ()
    like: str = ""
    variant: Variant | None = None
    typed: int = 0
    count: int = 1
    consumes: tuple[int, ...] = ()

    @property
    def updates(self) -> tuple[int, ...]:
        """Places of the arguments it changes."""
        return (*self.adds, *self.overwrites)


def _dims(tensor: Tensor | None) -> tuple[int, ...]:
    assert tensor is not None
    return tensor.dims


def _first(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return _dims(args[0])


def _flat(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return (sum(numel(a.dims) for a in args if a is not None),)


def _flat_first(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return (numel(_dims(args[0])),)


def _flat_second(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return (numel(_dims(args[1])),)


def _made(_: Tensors, results: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return _dims(results[0])


def _flat_made(_: Tensors, results: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return (numel(_dims(results[0])),)


def _product(layout: str, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, int]:
    """(m, n, k) of a product."""
    m, k = (x[-1], x[-2]) if layout == "tn" else (x[-2], x[-1])
    return m, (y[-2] if layout == "nt" else y[-1]), k


def _gemm(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return _product(str(given.get("variant", "tn")), _dims(args[0]), _dims(args[1]))


def _bmm(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    x, y = args[-2:]
    return (_dims(x)[0], *_product(str(given["variant"]), _dims(x), _dims(y)))


def _attention(first: int) -> Shape:
    def shape(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
        b, heads, s, d = _dims(args[first])
        return b, heads, _dims(args[first + 1])[1], s, d

    return shape


def _square_rows(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    matrices, rows, columns = _dims(args[0])
    return matrices * rows, columns


def _head_rows(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    tokens, heads, width = _dims(args[0])
    return tokens * heads, width


def _half(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    rows, width = _dims(args[0])
    return rows, width // 2


def _transposed(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    return _dims(args[0])[::-1]


def _turned(args: Tensors, _: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
    s, b, heads, d = _dims(args[0])
    return s * b, heads, d


def _looked_up(tokens: int, row: int, table: int) -> Shape:
    def shape(args: Tensors, results: Tensors, given: Mapping[str, object]) -> tuple[int, ...]:
        rows = results[0] if row < 0 else args[row]
        return _dims(args[tokens])[0], _dims(rows)[1], _dims(args[table])[0]

    return shape


def _given_variant(_: Tensors, given: Mapping[str, object]) -> str:
    return str(given["variant"])


def _gemm_variant(args: Tensors, given: Mapping[str, object]) -> str:
    return f"{given['variant']}+bias" if len(args) > 2 and args[2] is not None else str(given["variant"])


def _accumulated(args: Tensors, _: Mapping[str, object]) -> str:
    """Profiles measure a product that adds in one layout, that of a weight gradient."""
    out = args[2]
    assert out is not None
    return "tn+acc16" if DTYPE_BYTES[out.dtype] == 2 else "tn+acc32"


def _residual(bias: int) -> Variant:
    def variant(args: Tensors, given: Mapping[str, object]) -> str:
        biased = len(args) > bias and args[bias] is not None
        return "+".join(word for word, there in (("bias", biased), ("dropout", "mask" in given)) if there)

    return variant


def _causal(_: Tensors, given: Mapping[str, object]) -> str:
    return "causal+dropout" if "mask" in given else "causal"


def _converted(args: Tensors, given: Mapping[str, object]) -> str:
    source = args[0]
    assert source is not None
    return f"{source.dtype}->{given['dtype']}"


def _copied(args: Tensors, _: Mapping[str, object]) -> str:
    target, source = args
    assert target is not None
    assert source is not None
    return "" if target.dtype == source.dtype else f"{source.dtype}->{target.dtype}"


def _stepped(args: Tensors, _: Mapping[str, object]) -> str:
    """The copy's type where there is one, then the gradient's where that is not the state's."""
    master, gradient = args[0], args[1]
    assert master is not None
    assert gradient is not None
    weight = args[5] if len(args) > 5 and args[5] is not None else master
    low = weight.dtype
    return low if gradient.dtype == master.dtype else f"{low}+{gradient.dtype}"


_TABLE = (
    LineOperator("gemm", _gemm, variant=_gemm_variant),
    LineOperator("gemm_add", _gemm, adds=(2,), like="gemm", variant=_accumulated),
    LineOperator("gemm_out", _gemm, overwrites=(2,), like="gemm", variant=_given_variant),
    LineOperator("bmm", _bmm, variant=_given_variant),
    LineOperator("bmm_add", _bmm, adds=(0,), like="bmm", variant=_given_variant),
    LineOperator("attention_forward", _attention(0), variant=_given_variant),
    LineOperator("attention_backward", _attention(1), variant=_given_variant),
    LineOperator("softmax_forward", _square_rows, variant=_causal),
    LineOperator("softmax_backward", _square_rows, variant=_causal),
    LineOperator("rmsnorm_forward", _first),
    LineOperator("rmsnorm_backward", _first, adds=(5,)),
    # Norms of queries and keys, (tokens, heads, width) inside wider rows; what is made, or the gradient, is given.
    LineOperator("rmsnorm_heads_forward", _head_rows, overwrites=(2,), like="rmsnorm_forward"),
    LineOperator("rmsnorm_heads_backward", _head_rows, adds=(4,), overwrites=(0,), like="rmsnorm_backward"),
    LineOperator("rmsnorm_input_gradient", _first, like="rmsnorm_backward"),
    LineOperator("rmsnorm_weight_gradient", _first, adds=(3,), like="bias_grad", count=2),
    LineOperator("layernorm_forward", _first),
    LineOperator("layernorm_backward", _first, adds=(6, 7)),
    LineOperator("layernorm_input_gradient", _first, like="layernorm_backward"),
    LineOperator("layernorm_weight_gradient", _first, adds=(4, 5), like="bias_grad", count=2),
    LineOperator("swiglu_forward", _half),
    LineOperator("swiglu_backward", _first),
    LineOperator("gelu_forward", _first),
    LineOperator("gelu_backward", _first),
    # No profile measures these: they move the bytes of those that they are priced as.
    LineOperator("geglu_forward", _half, like="swiglu_forward"),
    LineOperator("geglu_backward", _first, like="swiglu_backward"),
    LineOperator("relu_forward", _first, like="gelu_forward"),
    LineOperator("relu_backward", _first, like="gelu_backward"),
    LineOperator("relu2_forward", _first, like="gelu_forward"),
    LineOperator("relu2_backward", _first, like="gelu_backward"),
    LineOperator("softcap_forward", _flat_first, overwrites=(0,), like="copy"),
    LineOperator("softcap_backward", _flat_first, overwrites=(0,), like="add"),
    LineOperator("scaled", _flat_first, like="copy"),
    LineOperator("rope_forward", _turned, overwrites=(0,)),
    LineOperator("rope_backward", _turned, overwrites=(0,)),
    LineOperator("add", _first, variant=_residual(2)),
    LineOperator("add_storing", _first, like="add", variant=_residual(2)),
    LineOperator("add_backward", _first, adds=(1,), variant=_residual(1)),
    LineOperator("bias_grad", _first, adds=(1,)),
    LineOperator("embedding_forward", _looked_up(0, -1, 1), typed=1),
    LineOperator("embedding_backward", _looked_up(1, 0, 2), adds=(2,)),
    LineOperator("position_forward", _first),
    LineOperator("position_backward", _first, adds=(1,)),
    LineOperator("ce_max", _first),
    LineOperator("ce_exp", _first),
    LineOperator("ce_loss", _first, adds=(4,), overwrites=(0,)),
    # No profile measures it. It reads logits twice and writes them once, and `ce_exp` reads them once: on an H200 the
    # two passes took 1.13 and 2.02 times as long as reading or writing alone.
    LineOperator("ce_columns", _transposed, adds=(2,), overwrites=(0,), like="ce_exp", count=3),
    # A cross entropy of separate passes over the logits, as Megatron-LM runs it.
    LineOperator("shift_rows", _flat_first, overwrites=(0,), like="copy"),
    LineOperator("exponentiate", _flat_first, overwrites=(0,), like="copy"),
    LineOperator("row_sums", _first, like="ce_exp"),
    LineOperator("softmax_loss", _flat_first, adds=(3,), overwrites=(0,), like="copy"),
    LineOperator("scale", _flat_first, overwrites=(0,), like="copy"),
    # Layout, masks and flat tensors.
    LineOperator("flat_heads", _flat_made, like="copy"),
    LineOperator("fold_heads", _flat_first, like="copy"),
    # A fused kernel writes heads in the order it read the queries in, which is that of rows: nothing is moved.
    LineOperator("rows_of", None, consumes=(0,)),
    LineOperator("merge_heads", _flat_made, like="copy"),
    LineOperator("alibi_scores", _flat_made, like="fill", typed=-1, count=2),
    LineOperator("alibi_add", _flat_first, adds=(0,), like="add"),
    LineOperator("drop", _flat, like="copy"),
    LineOperator("drop_storing", _flat_first, like="copy"),
    LineOperator("drop_stored", _flat_first, like="copy"),
    LineOperator("empty", None),
    LineOperator("fill", _flat, overwrites=(0,)),
    LineOperator("zeros_like", _flat_first, like="fill"),
    LineOperator("clone", _flat_first, like="copy"),
    LineOperator("copy", _flat_second, overwrites=(0,), variant=_copied),
    LineOperator("cast", _flat_first, like="copy", variant=_converted),
    LineOperator("add_into", _flat_first, adds=(0,), like="add"),
    LineOperator("sqnorm", _flat_first),
    LineOperator("statistics", None, overwrites=(0,)),
    LineOperator("clip_coefficient", None),
    LineOperator("not_finite", None),
    LineOperator("adamw", _flat_first, overwrites=(0, 1, 2, 3, 5), variant=_stepped),
    LineOperator("transfer", None, overwrites=(1,)),
    LineOperator("load", _made, like="copy", typed=-1),
    LineOperator("read", None),
)
OPERATORS: dict[str, LineOperator] = {operator.name: operator for operator in _TABLE}


def kernel_call(line: Apply, tensors: Mapping[str, Tensor]) -> KernelCall | None:
    """What one execution of a line costs; None where it has no kernel of its own."""
    operator = OPERATORS[line.op]
    if operator.shape is None:
        return None
    args, results = ([None if n is None else tensors[n] for n in names] for names in (line.args, line.results))
    given = dict(line.given)
    typed = results[0] if operator.typed < 0 else args[operator.typed]
    assert typed is not None
    variant = operator.variant(args, given) if operator.variant is not None else ""
    # A conversion is counted in the narrower type.
    dtype = min(variant.split("->"), key=DTYPE_BYTES.__getitem__) if "->" in variant else typed.dtype
    shape = operator.shape(args, results, given)
    return KernelCall(operator.like or line.op, shape, dtype, variant, operator.count)


def updated(line: Apply) -> tuple[str, ...]:
    """Names of the arguments a line changes."""
    places = OPERATORS[line.op].updates
    return tuple(name for i in places if i < len(line.args) and (name := line.args[i]) is not None)


def consumed(line: Apply) -> tuple[str, ...]:
    """Names of the arguments whose bytes a result of a line may take over."""
    return tuple(name for i in OPERATORS[line.op].consumes if (name := line.args[i]) is not None)


def body(
    lines: Sequence[Apply], tensors: Mapping[str, Tensor], arguments: Sequence[str], results: Sequence[str]
) -> Body:
    """The body of an instruction's lines, with what follows from them: its kernel calls and its transient bytes."""
    calls = tuple(call for line in lines if (call := kernel_call(line, tensors)) is not None)
    given_on = (name for line in lines for name in consumed(line))  # a result takes over their bytes
    bytes_ = transients(lines, tensors, frozenset((*results, *arguments, *given_on)))
    return body_of(lines, tensors, arguments, results, calls, bytes_)
