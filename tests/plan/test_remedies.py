"""What to try when a plan does not fit: in a trainer's order, changed where it is said, estimated by closed forms."""

from plan.remedies import applied, combined, estimate, remedies, states_bytes, whole_states_bytes
from plan.run import Run, load

PARTS = {
    "weights": 16.0,
    "gradients": 32.0,
    "optimizer": 96.0,
    "activations": 80.0,
    "buffers": 1.0,
    "workspace": 4.0,
    "framework": 2.0,
}


def run(**plan: object) -> Run:
    asked = {"zero_stage": 0, "micro_batch_size": 4, "global_batch_size": 64}
    return load({"model": "gpt3-6.7b", "cluster": {"preset": "dgx-a100-80gb"}, "plan": asked | plan})


def test_kinds_come_in_the_order_a_trainer_tries_them() -> None:
    kinds = list(dict.fromkeys(remedy.kind for remedy in remedies(run(tensor_parallel=2))))
    order = ["micro-batch", "recompute", "sequence parallel", "partitioned", "ZeRO", "tensor parallel", "pipeline"]
    assert kinds == [*order, "offload"]
    assert not any(remedy.kind == "ZeRO" for remedy in remedies(run(tensor_parallel=8)))  # no replica to share with
    assert [r.what for r in remedies(run()) if r.kind == "micro-batch"] == [
        "micro-batch 2, accumulating 4",
        "micro-batch 1, accumulating 8",
    ]


def test_every_change_keeps_the_global_batch_and_the_gpus() -> None:
    one = run()
    for remedy in [*remedies(one), *combined(one)]:
        plan = applied(one, remedy.changes).plan
        assert (plan.world, plan.global_batch_size) == (8, 64), remedy


def test_several_changes_begin_with_the_fewest() -> None:
    sizes = [remedy.what.count(",") - remedy.what.count("accumulating") + 1 for remedy in combined(run())]
    assert sizes[0] == 2
    assert sizes == sorted(sizes)


def test_a_number_with_many_divisors_makes_no_longer_list() -> None:
    assert len(combined(run(micro_batch_size=720720, global_batch_size=720720 * 8))) < 6 * 6 * 6 * 6


def test_states_are_estimated_by_their_sharding_and_activations_by_the_batch() -> None:
    one = run()
    assert estimate(one, one, PARTS) == sum(PARTS.values())
    sharded = applied(one, {"plan.zero_stage": 1})
    assert estimate(one, sharded, PARTS) == sum(PARTS.values()) - 96 * 7 / 8
    assert states_bytes(PARTS) == 144
    assert whole_states_bytes(sharded, PARTS | {"optimizer": 12.0}) == 144
    smaller = applied(one, {"plan.micro_batch_size": 2})
    assert estimate(one, smaller, PARTS) == sum(PARTS.values()) - 40
