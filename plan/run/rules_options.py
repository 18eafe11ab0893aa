"""Rules on options: which exclude, or need, one another."""

from collections.abc import Iterator
from math import gcd

from plan.implementations import engine, implementation
from plan.parallel import FRAMEWORK_KERNELS
from plan.run.job import Run
from program.nearest import divisors, nearest_number


def zero_with_pipeline(run: Run) -> Iterator[str]:
    """ZeRO-2/3 partition gradients every micro-batch, a pipeline accumulates them over all: they exclude each other."""
    plan = run.plan
    if plan.zero_stage >= 2 and plan.pipeline_parallel > 1:
        yield (
            f"zero_stage {plan.zero_stage} with pipeline_parallel {plan.pipeline_parallel}: ZeRO-2 and ZeRO-3 are "
            "incompatible with pipeline parallelism, since gradients accumulate over the micro-batches and "
            "partitioning them would reduce on every one; use zero_stage 1 with this pipeline, or "
            f"zero_stage {plan.zero_stage} with pipeline_parallel 1"
        )


def own(run: Run) -> Iterator[str]:
    """What the plan's implementation cannot do."""
    yield from implementation(run.plan.implementation).problems(run.plan)


def attention(run: Run) -> Iterator[str]:
    """Attention dropout and a cap on scores are ours only where the scores exist."""
    model, plan = run.model, run.plan
    if model.attention_dropout > 0 and plan.attention != "unfused":
        yield (
            f"model.attention_dropout {model.attention_dropout} needs attention: unfused, but it is {plan.attention} "
            "(a fused kernel's own generator depends on the layout, so the run could not be reproduced); "
            "use unfused, or attention_dropout 0"
        )
    if model.attention_softcap is not None and plan.attention != "unfused":
        yield (
            f"model.attention_softcap {model.attention_softcap:g} needs attention: unfused, but it is "
            f"{plan.attention} (torch's fused kernels do not cap scores); use unfused, or attention_softcap none"
        )


def recompute(run: Run) -> Iterator[str]:
    """Recompute options that contradict each other."""
    plan = run.plan
    if plan.partition_activations and plan.recompute not in ("full", "layers"):
        yield f"partition_activations splits inputs of recomputed layers, but recompute is {plan.recompute}; use full"
    if plan.partition_activations and plan.tensor_parallel == 1:
        yield "partition_activations needs tensor_parallel > 1 (it is 1); set it to false"
    if plan.partition_activations and plan.sequence_parallel:
        yield (
            "partition_activations does nothing with sequence_parallel: layer inputs are already split over TP; "
            "set one of them to false"
        )
    yield from _shares(run)
    if plan.recompute_layers > run.model.layers:
        yield f"recompute layers {plan.recompute_layers} is more than the model's {run.model.layers}; use full"


def _shares(run: Run) -> Iterator[str]:
    """A recomputed layer's input is cut into equal shares, as DeepSpeed and Megatron-LM cut it."""
    plan, ranks = run.plan, run.plan.tensor_parallel
    one = run.model.seq_length * run.model.hidden
    if not plan.partition_activations or one * plan.micro_batch_size % ranks == 0:
        return
    least = ranks // gcd(one, ranks)
    near = max(least, round(plan.micro_batch_size / least) * least)
    yield (
        f"partition_activations cuts a layer's input over tensor_parallel {ranks}, but its {plan.micro_batch_size} × "
        f"{run.model.seq_length} × {run.model.hidden} elements (micro_batch_size × seq_length × hidden) leave a rest; "
        f"nearest micro_batch_size {near}, or set it to false"
    )


def zero(run: Run) -> Iterator[str]:
    """Options of ZeRO-3 on a plan that gathers no parameters, and of offload on one that offloads nothing."""
    plan = run.plan
    given = [name for name in ("prefetch", "live", "persist_below") if getattr(plan.zero, name) is not None]
    given += [] if plan.zero.reshard else ["reshard"]
    if given and plan.zero_stage < 3:
        keys = ", ".join(f"plan.zero.{name}" for name in given)
        yield f"{keys} {'are' if len(given) > 1 else 'is'} for zero_stage 3 (it is {plan.zero_stage}); leave out"
    if plan.offload.optimizer != "none" and plan.zero_stage == 0:
        yield (
            f"offload.optimizer {plan.offload.optimizer} is part of ZeRO, but zero_stage is 0; use zero_stage 1, 2 or 3"
        )
    if plan.offload.parameters != "none" and plan.zero_stage < 3:
        yield (
            f"offload.parameters {plan.offload.parameters} keeps shards on the host, but zero_stage {plan.zero_stage} "
            "keeps parameters whole; use zero_stage 3, or offload.parameters none"
        )
    if plan.offload.fraction != 1.0 and plan.offload.parameters != "none":
        yield (
            f"plan.offload.fraction {plan.offload.fraction:g} leaves part of the optimizer on the device, but "
            "offload.parameters keeps all weights on the host; use fraction 1, or offload.parameters none"
        )
    if plan.offload.fraction != 1.0 and plan.offload.optimizer == "none":
        fraction = plan.offload.fraction
        yield f"plan.offload.fraction {fraction:g} is of the optimizer offloaded, but offload.optimizer is none"


def loss(run: Run) -> Iterator[str]:
    """Loss chunks split the tokens of a micro-batch."""
    tokens = run.plan.micro_batch_size * run.model.seq_length
    if tokens % run.plan.loss_chunks:
        legal = nearest_number(run.plan.loss_chunks, divisors(tokens))
        given = run.plan.loss_chunks
        yield f"loss_chunks {given} does not divide the {tokens} tokens of a micro-batch; nearest {legal}"


def optimizer(run: Run) -> Iterator[str]:
    """A learning-rate schedule that makes sense."""
    schedule = run.optimizer.schedule
    if schedule.kind != "constant" and schedule.warmup_steps >= schedule.decay_steps:
        yield (
            f"optimizer.schedule warms up for {schedule.warmup_steps} steps but ends its decay at "
            f"{schedule.decay_steps}; use warmup_steps below {schedule.decay_steps}"
        )
    stable = schedule.decay_steps - schedule.warmup_steps
    if schedule.kind == "wsd" and stable > 0 and schedule.anneal_steps > stable:
        yield (
            f"optimizer.schedule.anneal_steps {schedule.anneal_steps} is more than the {stable} steps from warm-up to "
            f"decay_steps {schedule.decay_steps}; use at most {stable}"
        )
    if schedule.kind != "constant" and schedule.min_lr > run.optimizer.lr:
        lr = run.optimizer.lr
        yield f"optimizer.schedule.min_lr {schedule.min_lr:g} is above lr {lr:g}; use at most {lr:g}"


def kernels(run: Run) -> Iterator[str]:
    """A framework's kernels are CUDA's, launched by its own host code."""
    plan = run.plan
    if plan.kernels not in FRAMEWORK_KERNELS:
        return
    if run.cluster.device == "cpu":
        yield f"kernels {plan.kernels} are those of another project on CUDA devices, but the cluster is cpu; use eager"
    if plan.cuda_graph:
        yield f"cuda_graph true is of our own kernels, but kernels is {plan.kernels}; set it to false"


def graph(run: Run) -> Iterator[str]:
    """A replayed graph holds what is the same every step."""
    plan = run.plan
    if not plan.cuda_graph:
        return
    if run.cluster.device == "cpu":
        yield "cuda_graph true needs CUDA devices, but the cluster is cpu; set it to false"
    if not engine(plan).captures_graphs:
        yield f"cuda_graph true is of implementation windtunnel, but it is {plan.implementation}; set it to false"
    if plan.loss_scale is not None:
        yield "cuda_graph true with a loss scale: a replayed graph holds one scale; set cuda_graph to false"
    if plan.launch_blocking:
        yield "cuda_graph true with launch_blocking true: a graph's kernels are launched at once; set one to false"
