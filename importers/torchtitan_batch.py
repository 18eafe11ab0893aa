"""Data parallelism and batch of a torchtitan configuration: local and global batch, in sequences or in tokens."""

from collections.abc import Mapping
from typing import Any

from importers.torchtitan_values import whole
from plan.ledger import Ledger


def data_parallel(keys: Mapping[str, Any], plan: Mapping[str, Any], world: int | None, ledger: Ledger) -> int | None:
    """Data-parallel ranks: shard × replicate, with -1 (rest of the world) settled where the world is known."""
    shard = whole(keys, "parallelism.data_parallel_shard_degree", ledger)
    copies = whole(keys, "parallelism.data_parallel_replicate_degree", ledger) or 1
    if copies > 1:
        ledger.not_yet(f"hybrid sharding (data_parallel_replicate_degree {copies})", "data_parallel_replicate_degree 1")
    if shard is not None and shard > 0:
        return shard * copies
    share: int = plan["tensor_parallel"] * plan["pipeline_parallel"] * plan.get("context_parallel", 1)
    if world is None or world % share:
        return None
    ledger.note(f"data_parallel {world // share} = {world} GPUs / {share} (tensor × pipeline × context)")
    return world // share


def batch_section(
    keys: Mapping[str, Any], plan: Mapping[str, Any], length: int, ranks: int | None, ledger: Ledger
) -> dict[str, Any]:
    """Micro-batch and global batch; `length` is of a sequence, `ranks` (None: not known) are data-parallel."""
    local = _stated(keys, "training.local_batch_size", "num_tokens_per_microbatch_per_dp_rank", length, ledger)
    step = _stated(keys, "training.global_batch_size", "num_tokens_per_train_step", length, ledger)
    if local is None:
        local = 8
        ledger.note("local_batch_size is not given: torchtitan's default 8")
    micro = local if plan["pipeline_parallel"] == 1 else _cut(keys, local, ledger)
    found: dict[str, Any] = {"micro_batch_size": micro}
    if step is not None and step > 0:
        found["global_batch_size"] = step
        if ranks and step % (local * ranks):
            ledger.problem(
                f"global batch {step} is not a multiple of local batch {local} × {ranks} data-parallel ranks ="
                f" {local * ranks}"
            )
    elif ranks:
        found["global_batch_size"] = local * ranks
        ledger.note(f"global batch {local * ranks} = local batch {local} × {ranks} data-parallel ranks")
    elif micro != local:
        ledger.problem(
            "the global batch is local batch × data-parallel ranks, but the number of GPUs is not known; give --cluster"
            " PRESET --nodes N"
        )
    return found


def _stated(keys: Mapping[str, Any], key: str, tokens_key: str, length: int, ledger: Ledger) -> int | None:
    """A batch in sequences, or made of one in tokens where that alone is given."""
    given, tokens = whole(keys, key, ledger), whole(keys, f"training.{tokens_key}", ledger)
    if given is None and tokens is not None and tokens > 0:
        return _sequences(tokens, length, tokens_key, ledger)
    return given


def _cut(keys: Mapping[str, Any], local: int, ledger: Ledger) -> int:
    """The micro-batch that a pipeline cuts the local batch into."""
    count = whole(keys, "parallelism.num_pp_microbatches", ledger)
    size = whole(keys, "parallelism.pipeline_parallel_microbatch_size", ledger)
    micro = (local // count if count else size) or 1
    ledger.note(f"with a pipeline the local batch {local} is cut into micro-batches of {micro}")
    return micro


def _sequences(tokens: int, length: int, where: str, ledger: Ledger) -> int:
    if tokens % length:
        ledger.problem(
            f"{where} {tokens} is not a multiple of seq_len {length} (nearest"
            f" {max(1, round(tokens / length)) * length})"
        )
    return max(1, tokens // length)
