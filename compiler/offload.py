"""Optimizer state and parameters in host memory: the copies and the host's optimizer as instructions.

    D2H gradients   a bucket's reduced gradient, as soon as it is complete, on the stream `d2h`
    D2H stats       norm and loss, once their sum is there: the host clips by them
    STEP adamw.host AdamW on the CPUs, one bucket after another on the stream `cpu`; the host thread does it, so it
                    issues nothing meanwhile
    H2D weights     the weights that the STEP changed, back to the device beside the next bucket's STEP; ZeRO-3 with
                    parameters on the host keeps them there, and copies a unit's shard up before gathering it

After Ren et al. 2021 (ZeRO-Offload, arXiv 2101.06840) and Rajbhandari et al. 2021 (ZeRO-Infinity, arXiv 2104.07857).
A gradient crosses once a step, in its own type: micro-batches are added up on the device. (DeepSpeed's ZeRO-3 widens
it to fp32 first, adds on the host's copy, and with a partition per parameter group steps all of it before it copies.)

Positional order. D2H, H2D: reads (source,), writes (target,). STEP "adamw.host", unit = bucket: reads (stats on the
host, gradient on the host, master, exp_avg, exp_avg_sq, 16-bit weights), writes the last four (three where the master
is the weight).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.block_builder import BlockBuilder
from compiler.parameters import Parameters
from compiler.units import AdamNumbers
from compiler.units import step as around
from plan.parallel import Plan
from program import Bucket, numel, rank_wide


def copied_early(plan: Plan, bucket: Bucket) -> bool:
    """Whether the gradient is complete with its data-parallel reduction, inside the last backward."""
    summed_again = (bucket.kind == "replicated" and plan.sequence_parallel) or (
        bucket.kind == "tied" and plan.pipeline_parallel > 1
    )
    return bucket.offloaded and plan.communication.overlap and not summed_again


def copy_gradient(builder: BlockBuilder, bucket: Bucket, after: tuple[int, ...] = ()) -> int:
    """The bucket's reduced gradient goes to the host; returns the copy's local id."""
    source, target = rank_wide(bucket.reduced_buffer), rank_wide(bucket.host_grad_buffer)
    body = around.transfer(bucket.shard_numel, bucket.shard_numel, "")
    return builder.emit("step", "D2H", bucket.index, "gradients", "d2h", (source,), (target,), body, after=after)


@dataclass(slots=True)
class HostSteps:
    """The steps of offloaded buckets in a closing block. `copied`: in-ports of the gradients copied already."""

    builder: BlockBuilder
    parameters: Parameters
    optimizer: AdamNumbers
    stats: tuple[int, int]  # rank-wide buffers: on the device, on the host
    copied: dict[int, int]
    done: list[int] = field(default_factory=list)

    def take(self, buckets: list[Bucket], gradients: tuple[int, ...]) -> None:
        """Copy what is still to be copied (after `gradients`), then step bucket by bucket."""
        if not buckets:
            return
        late = [b for b in buckets if b.index not in self.copied]
        self.copied |= {b.index: copy_gradient(self.builder, b, gradients) for b in late}
        device, host = map(rank_wide, self.stats)
        self.builder.emit("step", "D2H", 0, "stats", "d2h", (device,), (host,), around.transfer(2, 2, ""))
        for bucket in buckets:
            self._step(bucket, host)

    def _step(self, bucket: Bucket, stats: int) -> None:
        state = [bucket.master_buffer, bucket.exp_avg_buffer, bucket.exp_avg_sq_buffer]
        on_host = bucket.host_weight_buffer < 0  # the weights live there
        weights = bucket.weight_buffer if on_host else bucket.host_weight_buffer
        if weights != bucket.master_buffer:
            state.append(weights)
        updated = tuple(map(rank_wide, state))
        reads = (stats, rank_wide(bucket.host_grad_buffer), *updated)
        gradient = self.parameters.buffers[bucket.host_grad_buffer]
        body = around.adamw(self.parameters.stepped(bucket, gradient, state), self.optimizer)
        step = self.builder.emit(
            "step", "STEP", bucket.index, "adamw.host", "cpu", reads, updated, body,
            after=(self.copied[bucket.index],), host_sync=True,
        )  # fmt: skip
        self.done.append(step)
        if not on_host:
            held = self.parameters.buffers
            source, target = rank_wide(weights), rank_wide(bucket.weight_buffer)
            body = around.transfer(numel(held[weights].shape), numel(held[bucket.weight_buffer].shape), "")
            up = self.builder.emit(
                "step", "H2D", bucket.index, "weights", "h2d", (source,), (target,), body, after=(step,)
            )
            self.done.append(up)
