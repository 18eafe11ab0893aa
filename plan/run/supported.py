"""What parses but is not yet forecast: one table, edited when a strategy lands.

Never ignored, never approximated: a run that uses any of it ends in "not yet forecast" with the nearest supported plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from plan.implementations import IMPLEMENTATIONS, engine, implementation
from plan.model import Model
from plan.parallel import Plan, Zero
from plan.pipeline import ROWS, SCHEDULES, known, schedule, usual
from plan.run.job import Run


@dataclass(frozen=True, slots=True)
class Feature:
    """One key of the language: how to read it from a run, the values supported, and what to use instead of the
    others: the same for every run, or what this one lacks."""

    key: str
    value: Callable[[Run], object]
    supported: tuple[object, ...]
    instead: str | Callable[[Run], str]


FEATURES: tuple[Feature, ...] = (
    Feature(
        "plan.implementation",
        lambda run: run.plan.implementation,
        tuple(IMPLEMENTATIONS),
        "implementation: windtunnel",
    ),
    Feature(
        "plan.schedule",
        lambda run: _schedule(run.plan),
        (*SCHEDULES, ROWS.name),
        lambda run: _schedule_instead(run.plan),
    ),
    Feature("plan.zero.prefetch", lambda run: _gathers(run).prefetch, (None,), "prefetch: auto, which is one unit"),
    Feature("plan.zero.live", lambda run: _gathers(run).live, (None,), "live: auto, which is two units"),
    Feature(
        "plan.zero.reshard",
        lambda run: _gathers(run).reshard or engine(run.plan).keeps_gathered,
        (True,),
        lambda run: _kept_weights(run.plan),
    ),
    Feature(
        "plan.context_parallel",
        lambda run: run.plan.context_parallel,
        (1,),
        "context_parallel: 1 with sequence_parallel: true",
    ),
    Feature(
        "plan.expert_parallel", lambda run: run.plan.expert_parallel, (1,), "expert_parallel: 1 (dense models only)"
    ),
    Feature("plan.rank_order", lambda run: run.plan.rank_order, ("tp-cp-ep-dp-pp",), "rank_order: tp-cp-ep-dp-pp"),
    Feature(
        "plan.recompute", lambda run: run.plan.recompute, ("none", "selective", "full", "layers"), "recompute: full"
    ),
    Feature("plan.precision", lambda run: run.plan.precision, ("fp64", "fp32", "bf16", "fp16"), "precision: bf16"),
    Feature(
        "plan.gradient_dtype",
        lambda run: _gradient_dtype(run.plan),
        ("fp64", "fp32", "bf16", "fp16"),
        "gradient_dtype: fp32, or the plan's precision",
    ),
    Feature("plan.attention", lambda run: run.plan.attention, ("unfused", "flash", "cudnn"), "attention: flash"),
    Feature(
        "plan.offload.optimizer",
        lambda run: _offloaded(run.plan.offload.optimizer, run.plan),
        ("none", "cpu"),
        "offload.optimizer: cpu with implementation: windtunnel",
    ),
    Feature(
        "plan.offload.parameters",
        lambda run: _parameters_offloaded(run.plan),
        ("none", "cpu"),
        lambda run: _parameters_instead(run.plan),
    ),
    Feature("plan.offload.activations", lambda run: run.plan.offload.activations, ("none",), "recompute: full"),
    Feature("plan.hybrid", lambda run: run.plan.hybrid, ("none",), "hybrid: none with sequence_parallel: true"),
    Feature(
        "plan.gradient_compression", lambda run: run.plan.gradient_compression, ("none",), "gradient_compression: none"
    ),
    Feature(
        "plan.loss_chunks",
        lambda run: 1 if run.plan.tensor_parallel == 1 else run.plan.loss_chunks,
        (1,),
        "loss_chunks: 1, or tensor_parallel: 1",
    ),
    Feature(
        "cluster.fabric.oversubscription",
        lambda run: run.cluster.fabric.oversubscription,
        (1.0,),
        "oversubscription: 1.0, or nics.bandwidth_gb_s at the share that reaches the spine",
    ),
    Feature(
        "plan.communication.allreduce",
        lambda run: run.plan.communication.allreduce,
        ("auto", "ring", "tree"),
        "allreduce: auto",
    ),
    Feature("plan.communication.order", lambda run: run.plan.communication.order, ("auto",), "order: auto"),
    Feature(
        "model.qk_norm",
        lambda run: _qk_norm(run),
        ("none", "head", "projection"),
        lambda run: "tensor_parallel: 1" if run.model.qk_norm == "projection" else "sequence_parallel: true",
    ),
    Feature(
        "model.parallel_residual",
        lambda run: _parallel_residual(run.model),
        (True, False),
        lambda run: "dropout: 0" if run.model.dropout else "norm_place: input",
    ),
    Feature(
        "model.norm_place",
        lambda run: _norm_place(run.model),
        ("input", "output", "both"),
        "bias: {qkv: true, out: false, mlp: false}",
    ),
    Feature(
        "model.attention_softcap",
        lambda run: "with alibi" if run.model.attention_softcap and run.model.positions == "alibi" else "",
        ("",),
        "attention_softcap: none, or positions: rotary",
    ),
    Feature(
        "model.window",
        lambda run: "with attention cudnn" if run.model.windowed_layers and run.plan.attention == "cudnn" else "",
        ("",),
        "attention: flash",
    ),
)


def _qk_norm(run: Run) -> str:
    """A norm of a whole projection needs a sum over the ranks that share it, and the weights of a norm of heads owe
    one, which only sequence parallelism runs."""
    kind, ranks = run.model.qk_norm, run.plan.tensor_parallel
    alone = kind == "none" or ranks == 1 or (kind == "head" and run.plan.sequence_parallel)
    without = "" if kind == "projection" else " without sequence_parallel"
    return kind if alone else f"{kind} with tensor_parallel {ranks}{without}"


def _parallel_residual(model: Model) -> bool | str:
    if model.parallel_residual and model.dropout:
        return f"true with dropout {model.dropout}"
    if model.parallel_residual and model.norm_place != "input":
        return f"true with norm_place {model.norm_place}"
    return model.parallel_residual


def _norm_place(model: Model) -> str:
    """A bias would stand between the product and its norm."""
    biased = model.norm_place != "input" and (model.out_bias or model.mlp_bias)
    return f"{model.norm_place} with biases before it" if biased else model.norm_place


def _gathers(run: Run) -> Zero:
    """How parameters are gathered, where they are (`plan.run.rules` refuses the keys where they are not)."""
    return run.plan.zero if run.plan.zero_stage == 3 else Zero()


def _schedule(plan: Plan) -> str:
    """The schedule's name; an implementation may have no weight gradients apart."""
    if not known(plan):
        return str(plan.schedule)
    given = schedule(plan)
    apart = given.splits(plan) and not engine(plan).splits_backward
    return f"{given.name} with implementation {plan.implementation}" if apart else given.name


def _schedule_instead(plan: Plan) -> str:
    if known(plan):
        return f"schedule: {usual(plan.virtual_pipeline)}, or implementation: windtunnel"
    return f"schedule: {', '.join(SCHEDULES)}, or a file FILE.csv in PyTorch's text form"


def _offloaded(device: str, plan: Plan) -> str:
    """Where our own trainer keeps what is offloaded; other implementations copy in another order."""
    own = device == "none" or engine(plan).offloads
    return device if own else f"{device} with implementation {plan.implementation}"


def _parameters_offloaded(plan: Plan) -> str:
    """Parameters on the host are a shard that the host steps too."""
    device = _offloaded(plan.offload.parameters, plan)
    if device == "cpu" and plan.offload.optimizer == "none":
        return "cpu with optimizer none"
    if device == "cpu" and plan.data_parallel == 1:
        return "cpu with data_parallel 1"
    return device


def _parameters_instead(plan: Plan) -> str:
    """What a plan lacks to keep its parameters on the host."""
    lacks = {
        "implementation: windtunnel": not engine(replace(plan, zero_stage=3)).offloads,
        "offload.optimizer: cpu": plan.offload.optimizer != "cpu",
        "offload.parameters: cpu": plan.offload.parameters != "cpu",
        "zero_stage: 3": plan.zero_stage != 3,
        "data_parallel: 2 or more": plan.data_parallel == 1,
    }
    return f"the same with {', '.join(key for key, lacking in lacks.items() if lacking)}"


def _kept_weights(plan: Plan) -> str:
    """The stage that keeps weights gathered, of those that a pipeline admits (FSDP2 keeps them with reshard false)."""
    if plan.pipeline_parallel > 1:
        return "zero_stage: 1, the highest that a pipeline admits, which keeps the weights whole"
    return "zero_stage: 2, which keeps the weights from forward to backward and for all micro-batches"


def _gradient_dtype(plan: Plan) -> str:
    """Main gradients are wide, or of the type the products compute in."""
    if plan.gradient_dtype in ("fp64", "fp32", plan.precision):
        return plan.gradient_dtype
    return f"{plan.gradient_dtype} with precision {plan.precision}"


def problems(run: Run) -> list[str]:
    """A sentence for each feature the run uses that is not supported."""
    used = [(f.key, _text(f.value(run)), _instead(f, run)) for f in FEATURES if f.value(run) not in f.supported]
    used += [(gap.key, gap.value, gap.instead) for gap in implementation(run.plan.implementation).gaps(run.plan)]
    return [f"{key} {value} is not yet forecast; nearest supported: {instead}" for key, value, instead in used]


def _instead(feature: Feature, run: Run) -> str:
    return feature.instead if isinstance(feature.instead, str) else feature.instead(run)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
