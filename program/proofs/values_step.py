"""The books of a rank over one step: weights, gradients, loss and statistics, and the sums they still owe.

Who reduces, norms or steps a bucket asks for all parts of its gradients (`program.proofs.values_books`), once each, and
for every sum over ranks before: over `dp` where there are several, over `tp` where the parts owe one, over `embed`
where the table is tied. Weights that the step leaves as shares must be gathered before they are read, here or in the
next step: the period closes.
"""

from __future__ import annotations

from collections.abc import Callable

from program import Bucket, Comm, Instruction, numel, rank_wide
from program.proofs.values_books import MicroBooks, need


class Books(MicroBooks):
    """The books of one class over a whole step."""

    def step(self, i: Instruction) -> None:
        """An instruction that declares no value of a unit."""
        self.changes += 1
        self.enter_pending()
        if i.comm is not None:
            need(len(i.reads) == len(i.writes) == 1, f"a {i.comm.op} of {len(i.reads)} buffers")
            self._communicate(i, i.comm, i.reads[0], i.writes[0])
            return
        known: dict[str, Callable[[Instruction], None]] = {
            "ZERO": self._zero, "ACC": self._accumulate, "NORM": self._norm, "CAST": self._widen,
            "D2H": self._to_host, "H2D": self._to_device, "STEP": self._step, "LOSS": self._report,
        }  # fmt: skip
        need(i.kind in known, "it declares nothing of what it reads and writes")
        known[i.kind](i)

    def _is(self, ref: int, what: str) -> bool:
        return ref < 0 and self.stage.buffers[-1 - ref].what == what

    def _zero(self, i: Instruction) -> None:
        for ref in i.writes:
            if ref in self.by_gradient:
                bucket = self.by_gradient[ref]
                need(
                    not any(self.parts.get(n) for n in self.members[bucket.index]),
                    "gradients are cleared that were made",
                )
                self.parts |= {name: {} for name in self.members[bucket.index]}
                self.sums[bucket.index] = set()
            else:
                need(self._is(ref, "loss"), "something is cleared that is no gradient")
                need(not self.loss, "the loss is cleared after it was added to")
                self.loss = 0

    def _accumulate(self, i: Instruction) -> None:
        many, rest = divmod(len(i.reads), 2)
        need(not rest and i.reads == i.writes, "fresh gradients and main ones do not pair")
        for fresh, main in zip(i.reads[:many], i.reads[many:], strict=True):
            need(fresh < 0 and main < 0, "a gradient is in no rank-wide buffer")
            ours, theirs = self.stage.buffers[-1 - main], self.stage.buffers[-1 - fresh]
            name = self.at.get(ours.base or (-1, -1))
            need(name is not None, f"{ours.what} is no main gradient")
            assert name is not None
            bucket = self.bucket_of[name]
            need(
                theirs.what == name and theirs.shape == ours.shape, f"{theirs.what} is added to the gradient of {name}"
            )
            need(name in self.parts and not self.sums[bucket.index], f"the gradient of {name} is not open")
            for key, bit in self.fresh.pop(name, []):
                self._enter(name, key, bit)

    def _complete(self, bucket: Bucket) -> None:
        for name in self.members[bucket.index]:
            expected, found = self.expected.get(name, set()), self.parts.get(name)
            need(found is not None, f"the gradient of {name} is never cleared")
            assert found is not None
            missing = next((key for key in sorted(expected) if found.get(key, 0) != self.all), None)
            what = missing and f"`{missing[2]} {missing[1]}` of unit {missing[0]}"
            need(
                missing is None and bool(expected),
                f"the gradient of {name} lacks micro-batches of {what or 'everything'}",
            )
            need(not self.fresh.get(name), f"a fresh gradient of {name} was not added to the main one")

    def _owed(self, bucket: Bucket) -> set[str]:
        owed = {"dp"} if self.degrees["dp"] > 1 and not bucket.gradients_sharded else set()
        if bucket.index in self.owing and self.degrees["tp"] > 1:
            owed.add("tp")
        if bucket.kind == "tied" and self.degrees["pp"] > 1:
            owed.add("embed")
        return owed

    def _settled(self, bucket: Bucket) -> None:
        self._complete(bucket)
        owes = sorted(self._owed(bucket) - self.sums[bucket.index])
        need(not owes, f"the gradient of bucket {bucket.index} still owes a sum over {', '.join(owes)}")

    def _communicate(self, i: Instruction, comm: Comm, source: int, target: int) -> None:
        if comm.op == "all_gather":
            self._gather(comm, source, target)
            return
        need(comm.reduce == "sum", f"a {comm.op} {comm.reduce} where a sum is owed")
        bucket = self.by_gradient.get(source) if comm.role == "dp" else self.by_reduced.get(source)
        if bucket is not None:
            self._sum(bucket, comm, target)
        elif self._is(source, "loss"):
            need(
                comm.role == "dp" and comm.op == "all_reduce" and source == target,
                f"the loss is summed over {comm.role}",
            )
            need(self.loss == self.all and not self.loss_sums, "the loss is summed twice, or before it is complete")
            self.loss_sums += 1
        else:
            need(self._is(source, "stats") and source == target, f"a {comm.op} of what owes no sum")
            need(
                self.stats == "" and comm.op == "all_reduce", "the statistics are summed twice, or before they are made"
            )
            self.stats = comm.role

    def _sum(self, bucket: Bucket, comm: Comm, target: int) -> None:
        self._complete(bucket)
        sums = self.sums[bucket.index]
        owed = comm.role in self._owed(bucket) and comm.role not in sums
        need(owed, f"bucket {bucket.index} owes no sum over {comm.role}")
        apart = bucket.reduced_buffer != bucket.grad_buffer and not bucket.gradients_sharded
        need(not apart or comm.role == "dp" or "dp" in sums, f"bucket {bucket.index} is not reduced over dp yet")
        need(
            target == rank_wide(bucket.reduced_buffer),
            f"the gradient of bucket {bucket.index} is reduced into another's",
        )
        need(comm.role == "dp" or comm.op == "all_reduce", f"a {comm.op} over {comm.role}")
        if comm.role == "dp" and comm.op == "reduce_scatter":
            self.shares.add(bucket.index)
        sums.add(comm.role)

    def _gather(self, comm: Comm, source: int, target: int) -> None:
        bucket = next((b for b in self.stage.buckets if rank_wide(b.weight_buffer) == source), None)
        need(bucket is not None and source == target and comm.role == "dp", "what is gathered is no bucket of weights")
        assert bucket is not None
        need(not comm.reduce, f"a gather does not take a {comm.reduce}")
        need(self.weights.get(bucket.index) != "stale", f"bucket {bucket.index} is gathered before its step is back")
        if bucket.index not in self.weights:
            self.assumed[bucket.index] = "share"
        self.weights[bucket.index] = "whole"

    def _norm(self, i: Instruction) -> None:
        gradients = tuple(rank_wide(b.reduced_buffer) for b in self.stage.buckets)
        ends = len(i.reads) == len(gradients) + 1 and self._is(i.reads[-1], "loss")
        need(i.reads[:-1] == gradients and ends, "the norm is not of every bucket's gradient, in order")
        need(len(i.writes) == 1 and self._is(i.writes[0], "stats"), "the norm is written somewhere else")
        for bucket in self.stage.buckets:
            self._settled(bucket)
        need(not self.loss_parts or self.loss == self.all, "the loss lacks micro-batches")
        weights = (
            [dict(given).get("weights") for op, _, _, given in i.lines.lines if op == "statistics"] if i.lines else []
        )
        need(weights == [tuple(b.norm_weight for b in self.stage.buckets)], "the norm counts parameters otherwise")
        need(self.stats is None, "the norm is taken twice")
        self.stats = ""

    def _of_shares(self) -> bool:
        return bool(self.shares) and self.degrees["dp"] > 1

    def _statistics(self) -> None:
        """The statistics are summed over everybody who holds another part of them, and nobody else."""
        one = self.degrees["tp"] * self.degrees["pp"] == 1
        need(self.stats is not None, "the norm is not taken yet")
        alone = self.degrees["dp"] == 1
        fits = (
            self.stats == "world" if self._of_shares() else self.stats == "model" or (self.stats == "world" and alone)
        )
        whole = fits or (self.stats == "" and one and not self._of_shares())
        need(whole, f"the statistics owe a sum over {'world' if self._of_shares() else 'model'}")
        if self.loss_parts and not alone:
            need((self.stats == "world") != bool(self.loss_sums), "the loss owes a sum over dp, or was summed twice")

    def _widen(self, i: Instruction) -> None:
        bucket = self.by_reduced.get(i.reads[0]) if len(i.reads) == 1 else None
        need(bucket is not None and len(i.writes) == 1 and i.writes[0] >= 0, "what is widened is no gradient")
        assert bucket is not None
        self._settled(bucket)
        self.widened[i.writes[0]] = bucket.index

    def _to_host(self, i: Instruction) -> None:
        need(len(i.reads) == len(i.writes) == 1, "a copy of several buffers")
        bucket = self.by_reduced.get(i.reads[0])
        if bucket is not None:
            self._settled(bucket)
            need(i.writes[0] == rank_wide(bucket.host_grad_buffer), "a gradient is copied into another's")
            self.hosted.add(f"gradient.{bucket.index}")
        else:
            need(
                self._is(i.reads[0], "stats") and self._is(i.writes[0], "stats on the host"), "a copy of something else"
            )
            self._statistics()
            self.hosted.add("stats")

    def _to_device(self, i: Instruction) -> None:
        need(len(i.reads) == len(i.writes) == 1, "a copy of several buffers")
        source = -1 - i.reads[0]
        bucket = next((b for b in self.stage.buckets if b.host_weight_buffer == source >= 0), None)
        need(bucket is not None, "what is copied back is no weights")
        assert bucket is not None
        there = i.writes[0] == rank_wide(bucket.weight_buffer) and self.weights.get(bucket.index) == "stale"
        need(there, f"weights of bucket {bucket.index} are not copied back after their step")
        self.weights[bucket.index] = self._after_step(bucket)

    def _after_step(self, bucket: Bucket) -> str:
        held = numel(self.stage.buffers[bucket.weight_buffer].shape)
        return "whole" if held == bucket.shard_numel and bucket.whole_buffer < 0 else "share"

    def _step(self, i: Instruction) -> None:
        need(len(i.reads) >= 5, "the optimizer's step lacks arguments")
        bucket = next((b for b in self.stage.buckets if rank_wide(b.exp_avg_buffer) == i.reads[3]), None)
        need(bucket is not None and bucket.index == i.unit, f"step of bucket {i.unit} has another's state")
        assert bucket is not None
        back = bucket.host_weight_buffer if bucket.host_weight_buffer >= 0 else bucket.weight_buffer
        state = [bucket.master_buffer, bucket.exp_avg_buffer, bucket.exp_avg_sq_buffer]
        state += [back] if back != bucket.master_buffer else []
        refs = tuple(map(rank_wide, state))
        need(i.reads[2:] == refs == i.writes, f"step of bucket {bucket.index} has another's state")
        self._settled(bucket)
        self._statistics()
        stats, gradient = i.reads[:2]
        if bucket.offloaded:
            there = gradient == rank_wide(bucket.host_grad_buffer) and f"gradient.{bucket.index}" in self.hosted
            need(
                there and self._is(stats, "stats on the host") and "stats" in self.hosted,
                "the host lacks what it steps by",
            )
        else:
            own = gradient == rank_wide(bucket.reduced_buffer) or self.widened.get(gradient) == bucket.index
            need(own and self._is(stats, "stats"), f"step of bucket {bucket.index} has another's gradient")
        need(bucket.index not in self.stepped, f"bucket {bucket.index} is stepped twice")
        self.stepped.add(bucket.index)
        away = bucket.host_weight_buffer >= 0
        self.weights[bucket.index] = "stale" if away else self._after_step(bucket)

    def _report(self, i: Instruction) -> None:
        need(len(i.reads) == 1 and self._is(i.reads[0], "stats"), "what the host reads are no statistics")
        self._statistics()

    def close(self) -> None:
        """What the first instructions assume is what the last leave."""
        for bucket in self.stage.buckets:
            need(bucket.index in self.stepped, f"bucket {bucket.index} is never stepped")
            left, assumed = self.weights.get(bucket.index), self.assumed.get(bucket.index)
            closed = left == "whole" or (left == "share" and assumed != "whole")
            closed |= bucket.weights_sharded and bucket.whole_buffer < 0
            need(closed, f"the step begins with {assumed} weights of bucket {bucket.index}, and ends with {left} ones")
