"""Which gradients the last backward calls of a step have still to make: a bucket is reduced right after its last."""

from __future__ import annotations

from compiler.block_builder import BlockBuilder
from compiler.chunk import ChunkCompiler
from compiler.offload import copied_early, copy_gradient
from compiler.open_close import COPIED, reduce_bucket
from compiler.stage_context import StageContext
from plan.implementations import engine
from program import Bucket, Phase


class Unreduced:
    """Gradients that the last micro-batch has still to make in each bucket, over all chunks of the stage."""

    def __init__(self, context: StageContext) -> None:
        self.plan, self.buckets, self.bucket_of = context.plan, context.parameters.buckets, context.names.bucket_of
        self.missing: dict[int, int] = {}
        for step in (step for plans in context.chunks for plan in plans for step in plan.unit.backward):
            for name in dict.fromkeys(n for n in step.writes if n.startswith("g:")):
                bucket = self.bucket_of[name[2:]]
                self.missing[bucket] = self.missing.get(bucket, 0) + 1

    def watch(self, compiler: ChunkCompiler, closes: str) -> None:
        """Reduce what a block completes. `closes`: the halves of the backward whose gradients it makes the last."""

        def made(name: str, phase: Phase) -> None:
            if ("W" if phase == "W" else "I") in closes:
                self.made(compiler.builder, name)

        if closes:
            compiler.after_grad = made

    def made(self, builder: BlockBuilder, name: str) -> None:
        """A parameter's gradient was just made."""
        bucket = self.buckets[self.bucket_of[name]]
        if bucket.gradients_sharded:
            return
        self.missing[bucket.index] -= 1
        if self.missing[bucket.index] == 0:
            self._complete(builder, bucket)

    def _complete(self, builder: BlockBuilder, bucket: Bucket) -> None:
        """A bucket's last gradient was just made: reduce it, and copy it to the host, beside what follows."""
        index = len(builder.instructions) - 1
        if self.plan.data_parallel > 1 and engine(self.plan).overlaps_gradients:
            index = reduce_bucket(builder, self.plan, bucket, index)
            builder.give(f"bucket.{bucket.index}", None, index)
        if copied_early(self.plan, bucket):
            builder.give(f"{COPIED}{bucket.index}", None, copy_gradient(builder, bucket, (index,)))
