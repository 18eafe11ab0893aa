"""What stands around the units, once a step or once a micro-batch, as lines: loading tokens, clearing gradients, parts
of tensors, the norm, the optimizer, copies between host and device.

Each function returns the `Body` of one instruction; the compiler says which buffers stand at its arguments, in the
order of the function's docstring. An argument in brackets is filled: the instruction writes it and does not read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from program.kinds import numel
from program.lines import Apply, Body, Dims, Offset, Step, Stretches, Tensor, Window, apply
from program.operators import body


def _body(tensors: Sequence[Tensor], arguments: str, results: str, *lines: Apply) -> Body:
    return body(lines, {tensor.name: tensor for tensor in tensors}, arguments.split(), results.split())


def _share(name: str, of: str, elements: int, dtype: str, axis: str) -> Tensor:
    """A rank's stretch of a flat tensor cut along an axis."""
    return Tensor(name, (elements,), dtype, window=Window(of, (1,), Offset((axis,), elements)))


# ---------------------------------------------------------------- once a micro-batch


@lru_cache(maxsize=64)
def load(dims: Dims, shift: int) -> Body:
    """→ token ids of the micro-batch, `shift` tokens on."""
    return _body([Tensor("ids", dims, "int64")], "", "ids", apply("load", "", "ids", shift=shift))


@lru_cache(maxsize=64)
def clear(elements: int, dtype: str) -> Body:
    """[a unit's gradients]: zero before its backward."""
    return _body([Tensor("g", (elements,), dtype, "grad")], "g", "g", apply("fill", "g", value=0.0))


@lru_cache(maxsize=64)
def cleared(elements: tuple[int, ...], dtype: str) -> Body:
    """[Stretches of a group's gradients]: zero before its backward adds to them."""
    tensors = [Tensor(f"g{i}", (count,), dtype, "grad") for i, count in enumerate(elements)]
    names = " ".join(tensor.name for tensor in tensors)
    return _body(tensors, names, names, *(apply("fill", tensor.name, value=0.0) for tensor in tensors))


@lru_cache(maxsize=64)
def copied(elements: int, source: str, target: str, passes: int = 1, made: bool = False) -> Body:
    """A flat tensor, [its copy], converted. In two `passes` it is cast first, where there is something to cast. `made`:
    the copy is a new tensor."""
    tensors = [Tensor("x", (elements,), source), Tensor("y", (elements,), target), Tensor("t", (elements,), target)]
    if made:
        return _body(tensors, "x", "y", apply("cast", "x", "y", dtype=target))
    if passes == 1 or source == target:
        return _body(tensors, "x y", "y", apply("copy", "y x"))
    lines = apply("cast", "x", "t", dtype=target), apply("copy", "y t")
    return _body(tensors, "x y", "y", *lines)


@lru_cache(maxsize=64)
def share(dims: Dims, ranks: int, dtype: str) -> Body:
    """x → this tensor-parallel rank's stretch of it, flat."""
    part = numel(dims) // ranks
    tensors = [Tensor("x", dims, dtype), _share("stretch", "x", part, dtype, "tp"), Tensor("y", (part,), dtype)]
    return _body(tensors, "x", "y", apply("clone", "stretch", "y"))


@lru_cache(maxsize=64)
def part(dims: Dims, ranks: int, dtype: str) -> Body:
    """x (rows, width) → this tensor-parallel rank's rows."""
    rows, width = dims[0] // ranks, dims[1]
    window = Window("x", (width, 1), Offset(("tp",), rows * width))
    mine = (rows, width)
    tensors = [Tensor("x", dims, dtype), Tensor("rows", mine, dtype, window=window), Tensor("y", mine, dtype)]
    return _body(tensors, "x", "y", apply("clone", "rows", "y"))


@lru_cache(maxsize=64)
def join(dims: Dims, ranks: int, dtype: str) -> Body:
    """What was gathered → the whole, by DeepSpeed's passes: zeros, the own stretch, the gathered list, a clone."""
    part = numel(dims) // ranks
    whole = [Tensor(name, dims, dtype) for name in ("x", "zeros", "all", "y")]
    stretches = [_share(f"{name}.own", name, part, dtype, "tp") for name in ("x", "zeros")]
    return _body(
        [*whole, *stretches],
        "x",
        "y",
        apply("zeros_like", "x", "zeros"),
        apply("copy", "zeros.own x.own"),
        apply("clone", "x", "all"),
        apply("clone", "all", "y"),
    )


@lru_cache(maxsize=64)
def add_share(source: int, shard: int, dtype: str) -> Body:
    """A reduced gradient, this rank's shard: the shard holds this micro-batch too. What was reduced to all ranks is cut
    first."""
    tensors = [Tensor("x", (source,), dtype), Tensor("g", (shard,), dtype), _share("x.own", "x", shard, dtype, "dp")]
    return _body(tensors, "x g", "", apply("add_into", f"g {'x' if source == shard else 'x.own'}"))


def accumulate(dims: Sequence[Dims], made: str, main: str, cleared: Sequence[bool]) -> Body:
    """A unit's gradients as a backward made them, then its main ones: each is widened and added into its main one
    (`update_hp_grads` of DeepSpeed's BF16_Optimizer). Products overwrite theirs; what is added up instead (`cleared`)
    starts from zero again."""
    tensors, lines = [], []
    for i, extents in enumerate(dims):
        tensors += [Tensor(f"m{i}", extents, made), Tensor(f"g{i}", extents, main), Tensor(f"t{i}", extents, main)]
        lines += [apply("cast", f"m{i}", f"t{i}", dtype=main), apply("add_into", f"g{i} t{i}")]
        if cleared[i]:
            lines.append(apply("fill", f"m{i}", value=0.0))
    names = " ".join(f"{kind}{i}" for kind in "mg" for i in range(len(dims)))
    return _body(tensors, names, "", *lines)


# ---------------------------------------------------------------- once a step


def zero(elements: Sequence[int], dtype: str, stat: str) -> Body:
    """Flat main gradients in bucket order, the running loss: zero."""
    flats = [Tensor(f"g{i}", (count,), dtype, "grad") for i, count in enumerate(elements)]
    tensors = [*flats, Tensor("loss", (1,), stat)]
    names = [tensor.name for tensor in tensors]
    return _body(tensors, " ".join(names), "", *(apply("fill", name, value=0.0) for name in names))


def norm(
    elements: Sequence[int], dtype: str, stat: str, weights: Sequence[float], loss_share: float, scaled: bool
) -> Body:
    """Each bucket's reduced gradient, the loss, [statistics (2,)] = [Σ weight · Σ g², loss share]; g without the loss
    scale, where gradients are `scaled`."""
    flats = [Tensor(f"g{i}", (count,), dtype, "grad") for i, count in enumerate(elements)]
    sums = [Tensor(f"q{i}", (), stat) for i in range(len(elements))]
    tensors = [*flats, *sums, Tensor("loss", (1,), stat), Tensor("stats", (2,), stat)]
    lines = [apply("sqnorm", flat.name, sum_.name) for flat, sum_ in zip(flats, sums, strict=True)]
    names = " ".join(sum_.name for sum_ in sums)
    numbers = {"weights": tuple(weights), "share": loss_share, **_times(scaled)}
    lines.append(apply("statistics", f"stats {names} loss", **numbers))
    arguments = " ".join((*(flat.name for flat in flats), "loss", "stats"))
    return _body(tensors, arguments, "stats", *lines)


def _times(scaled: bool) -> dict[str, object]:
    """What gradients were multiplied by."""
    return {"times": Step("loss_scale")} if scaled else {}


@dataclass(frozen=True, slots=True)
class AdamNumbers:
    """What every step of AdamW is given; learning rate and step are filled in before a step."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    conditional: bool = True  # a step whose norm or loss is not finite is left out
    scaled: bool = False  # gradients carry the loss scale


@lru_cache(maxsize=256)
def widen(elements: int, share_: int, narrow: str, wide: str) -> Body:
    """A gradient → this rank's share of it as the optimizer wants it: made flat, then widened."""
    own = _share("g.own", "g", share_, narrow, "dp")
    tensors = [Tensor("g", (elements,), narrow), own, Tensor("flat", (share_,), narrow), Tensor("y", (share_,), wide)]
    lines = apply("clone", "g.own" if elements > share_ else "g", "flat"), apply("cast", "flat", "y", dtype=wide)
    return _body(tensors, "g", "y", *lines)


@dataclass(frozen=True, slots=True)
class Stepped:
    """Extents and types of one bucket's step. Each count is what the buffer holds: the whole bucket, or the share."""

    share: int
    sharded: bool
    gradient: tuple[int, str]
    master: tuple[int, str]
    weight: tuple[int, str] | None
    state: str
    decayed: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def adamw(bucket: Stepped, optimizer: AdamNumbers) -> Body:
    """Statistics, gradient, master, exp_avg, exp_avg_sq [, the weights that follow]: clip, then AdamW of this rank's
    share."""
    share_ = bucket.share
    tensors = [Tensor("stats", (2,), bucket.state), Tensor("c", (), bucket.state), Tensor("bad", (), "fp32")]

    def held(name: str, count: int, dtype: str) -> str:
        tensors.append(Tensor(name, (count,), dtype))
        if count == share_:
            return name
        tensors.append(_share(f"{name}.own", name, share_, dtype, "dp"))
        return f"{name}.own"

    names = [held("master", *bucket.master), held("gradient", *bucket.gradient)]
    names += [held(name, share_, bucket.state) for name in ("exp_avg", "exp_avg_sq")]
    weight = "-" if bucket.weight is None else held("weight", *bucket.weight)
    begin = Offset(("dp",) if bucket.sharded else (), share_)
    step = apply(
        "adamw",
        f"{' '.join(names)} c {weight} {'bad' if optimizer.conditional else '-'}",
        lr=Step("lr"),
        step=Step("step"),
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        decayed=Stretches(bucket.decayed, begin, share_),
    )
    tensors.append(Tensor("squares", (), bucket.state, window=Window("stats", ())))
    clip = apply("clip_coefficient", "squares", "c", max_norm=optimizer.clip_norm, **_times(optimizer.scaled))
    check = (apply("not_finite", "stats", "bad"),) if optimizer.conditional else ()
    arguments = "stats gradient master exp_avg exp_avg_sq" + (" weight" if bucket.weight else "")
    return _body(tensors, arguments, "", clip, *check, step)


@lru_cache(maxsize=64)
def transfer(source: int, target: int, dtype: str) -> Body:
    """A flat tensor, [its copy on the other side]: between host and device, into this rank's share where that is
    larger."""
    tensors = [Tensor("x", (source,), dtype), Tensor("y", (target,), dtype)]
    tensors.append(_share("y.own", "y", source, dtype, "dp"))
    return _body(tensors, "x y", "y", apply("transfer", f"x {'y.own' if target > source else 'y'}"))


@lru_cache(maxsize=4)
def read(stat: str) -> Body:
    """Statistics: the host reads Σ g² of the whole gradient and the mean loss."""
    return _body([Tensor("stats", (2,), stat)], "stats", "", apply("read", "stats"))
