"""What happens once a step or once a micro-batch around the model: loading tokens, clearing gradients, norm, optimizer,
reading the loss.

These are instructions like any other, registered under the same names as in the program (`plan.compile.step`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.registry import bind
from kernels.registry_inputs import DTYPES
from plan.program import Bucket
from trainer.context import PieceContext
from trainer.pieces import Results, piece

Tensor = torch.Tensor


@piece("ZERO", "grads")
def zero(ctx: PieceContext, *buffers: Tensor) -> Results:
    """Main gradients and the running loss become zero."""
    for buffer in buffers:
        ctx.ops.fill(buffer, 0.0)
    return ()


@piece("ZERO", "gradients", fills=True)
def clear(ctx: PieceContext, gradients: Tensor) -> Results:
    """A unit's gradients become zero before its backward (ZeRO-2 and 3)."""
    ctx.ops.fill(gradients, 0.0)
    return ()


@piece("ADD", "gradients", "tied.gradients")
def add_share(ctx: PieceContext, reduced: Tensor, shard: Tensor) -> Results:
    """shard += reduced: this micro-batch's share of a bucket's gradient joins those of earlier ones. What was reduced
    to all ranks is cut first."""
    ranks = reduced.numel() // shard.numel()
    shard.add_(reduced.view(-1).chunk(ranks)[ctx.rank.coords.dp] if ranks > 1 else reduced)
    return ()


@piece("ACC", "grads")
def add_fresh(ctx: PieceContext, *grads: Tensor) -> Results:
    """A unit's fresh gradients, then its main gradients: each fresh one is widened and added into its main one, as
    DeepSpeed's BF16_Optimizer does after a backward pass. Products overwrite theirs the next time; what is added up
    instead (norms, biases, embeddings alone on their stage) starts from zero again."""
    fresh, main = grads[: len(grads) // 2], grads[len(grads) // 2 :]
    for made, total in zip(fresh, main, strict=True):
        total.add_(made.to(total.dtype))
        if made.dim() == 1 or ctx.unit == 0:
            made.zero_()
    return ()


@piece("PART", "edge.y", "edge.d")
def take_part(ctx: PieceContext, whole: Tensor) -> Results:
    """This tensor-parallel rank's rows of what is sent to the next stage (or back)."""
    return (whole.chunk(ctx.e.tp)[ctx.rank.coords.tp].clone(),)


@piece("JOIN", "edge.x", "edge.y", "edge.d")
def join_parts(ctx: PieceContext, gathered: Tensor) -> Results:
    """All ranks' rows, copied out of the slot they were gathered in."""
    return (gathered.clone(),)


@piece("SHARE", "saved")
def share_saved(ctx: PieceContext, x: Tensor) -> Results:
    """This tensor-parallel rank's share of a recomputed layer's input, flat."""
    return (x.reshape(-1).chunk(ctx.e.tp)[ctx.rank.coords.tp].clone(),)


@piece("D2H", "gradients", "stats", fills=True)
def copy_down(ctx: PieceContext, source: Tensor, target: Tensor) -> Results:
    """To the host: a bucket's reduced gradient, or the norm and the loss."""
    target.copy_(source, non_blocking=True)
    return ()


@piece("H2D", "weights", "tied.weights", fills=True)
def copy_up(ctx: PieceContext, source: Tensor, target: Tensor) -> Results:
    """To the device: this rank's share of a bucket's weights, into a slot, its shard, or its stretch of the whole."""
    if target.numel() > source.numel():
        target = target[share_of(ctx.rank.program.buckets[ctx.unit], ctx.rank.coords.dp)]
    target.copy_(source, non_blocking=True)
    return ()


@piece("LOAD", "tokens")
def load_tokens(ctx: PieceContext) -> Results:
    """Token ids (T,) of the micro-batch in (position, sample) order."""
    return (_column_order(ctx, 0),)


@piece("LOAD", "targets")
def load_targets(ctx: PieceContext) -> Results:
    """The token after each of `tokens`."""
    return (_column_order(ctx, 1),)


def _column_order(ctx: PieceContext, shift: int) -> Tensor:
    rank = ctx.rank
    ids = rank.feed.ids(rank.state.step, ctx.micro, shift)
    return ids if rank.device.type == "cpu" else ids.to(rank.device, non_blocking=True)


@piece("NORM", "norm")
def norm(ctx: PieceContext, *reads: Tensor) -> Results:
    """Each bucket's reduced gradient, then the loss → stats (2,) = [Σ norm_weight · Σ g², loss / tp]."""
    *gradients, loss = reads
    stats = loss.new_zeros(2)
    for bucket, gradient in zip(ctx.rank.program.buckets, gradients, strict=True):
        if bucket.norm_weight:
            stats[0].add_(ctx.ops.sqnorm(gradient), alpha=bucket.norm_weight)
    stats[1].add_(loss[0], alpha=1.0 / ctx.e.tp)
    return (stats,)


@piece("CAST", "gradient")
def widen_share(ctx: PieceContext, gradient: Tensor) -> Results:
    """This rank's share of the gradient of the bucket numbered by the unit, in the optimizer's type."""
    share = share_of(ctx.rank.program.buckets[ctx.unit], ctx.rank.coords.dp)
    return (gradient[share].to(DTYPES[ctx.e.stat], copy=True),)


@piece("STEP", "adamw")
def optimizer_step(ctx: PieceContext, stats: Tensor, gradient: Tensor, master: Tensor, *state: Tensor) -> Results:
    """Clip and AdamW for this rank's share of the bucket numbered by the unit; the weights' share follows."""
    bucket = ctx.rank.program.buckets[ctx.unit]
    share = share_of(bucket, ctx.rank.coords.dp)
    held = slice(None) if bucket.weights_sharded else share
    weight = state[2][held] if len(state) > 2 else None
    if gradient.numel() > bucket.shard_numel:  # DeepSpeed reduces all of it and steps its share
        gradient = gradient[share]
    master = master[held] if weight is None else master
    _adamw(ctx, ctx.ops.adamw, stats, gradient, (master, state[0], state[1], weight))
    return ()


@piece("STEP", "adamw.host")
def host_step(ctx: PieceContext, stats: Tensor, gradient: Tensor, master: Tensor, *state: Tensor) -> Results:
    """The same on the host, where statistics, gradient, state and a copy of this rank's weights are."""
    weight = state[2] if len(state) > 2 else None
    _adamw(ctx, bind("eager", "cpu").adamw, stats, gradient, (master, state[0], state[1], weight))
    return ()


def _adamw(
    ctx: PieceContext,
    adamw: Callable[..., None],
    stats: Tensor,
    gradient: Tensor,
    state: tuple[Tensor, Tensor, Tensor, Tensor | None],
) -> None:
    """One step of this rank's share of a bucket; `state`: master, exp_avg, exp_avg_sq, and weights that follow."""
    master, exp_avg, exp_avg_sq, weight = state
    rank, optimizer = ctx.rank, ctx.rank.run.optimizer
    bucket = rank.program.buckets[ctx.unit]
    coefficient, left_out = rank.update_scales(stats)
    adamw(
        master,
        gradient,
        exp_avg,
        exp_avg_sq,
        coefficient,
        weight,
        rank.kept(("decayed", bucket.index), lambda: decayed(ctx, bucket, share_of(bucket, rank.coords.dp))),
        lr=rank.state.lr,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        step=rank.state.step + 1 - rank.state.skipped,
        found_inf=left_out,
    )


def share_of(bucket: Bucket, dp: int) -> slice:
    """The elements of a bucket that data-parallel rank `dp` steps: all of them, or its shard under ZeRO."""
    if bucket.shard_numel == bucket.numel:
        return slice(0, bucket.numel)
    return slice(dp * bucket.shard_numel, (dp + 1) * bucket.shard_numel)


def decayed(ctx: PieceContext, bucket: Bucket, share: slice) -> list[tuple[int, int]]:
    """Stretches of the share that weight decay applies to, neighbours merged (offsets within the share)."""
    stretches: list[tuple[int, int]] = []
    for param in sorted(
        (p for p in ctx.rank.program.params if p.bucket == bucket.index and p.decay), key=lambda p: p.offset
    ):
        first = max(param.offset, share.start) - share.start
        last = min(param.offset + param.local_numel, share.stop) - share.start
        if first >= last:
            continue
        if stretches and stretches[-1][1] == first:
            stretches[-1] = (stretches[-1][0], last)
        else:
            stretches.append((first, last))
    return stretches


@piece("LOSS", "loss")
def read_loss(ctx: PieceContext, stats: Tensor) -> Results:
    """The one place where the host reads from the device: Σ g² of the whole gradient, and the mean loss."""
    state = ctx.rank.state
    state.sum_of_squares, state.loss = (float(x) for x in stats.tolist())
    return ()
