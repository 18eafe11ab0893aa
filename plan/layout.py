"""Which pipeline stage holds which units of the model.

Units are 0 (embedding), 1…L (layers) and L+1 (head). The PP · VPP virtual stages take them in order; virtual stage
c·PP + s is chunk c of stage s, so with interleaving a stage holds several separated runs of layers.

- `even`: layers % (PP·VPP) == 0, the same number of layers everywhere; embedding joins the first, head the last
  virtual stage.
- `auto`: an engine that balances its stages goes by what units cost, known to the compiler (`compiler.balance`, which
  puts a list in its place); for all others, `even` where that divides. Otherwise embedding and head count as one
  layer each (Megatron's account_for_embedding/loss_in_pipeline_split; DeepSpeed's `type:transformer|embedding` gives
  BLOOM the same) and the L+2 units are shared out as equally as they go, the first virtual stages getting one more:
  the embedding is cheap in time, the head is not.
- a list: units of each virtual stage.
"""

from plan.implementations import engine
from plan.model import Model
from plan.parallel import Plan
from program.nearest import divisors

Layout = tuple[tuple[tuple[int, ...], ...], ...]


def layout(model: Model, plan: Plan) -> Layout:
    """Units per [stage][chunk], each unit exactly once. The plan must have passed `layout_problems`."""
    counts = unit_counts(model.layers, plan)
    starts = [sum(counts[:i]) for i in range(len(counts))]
    runs = [tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
    return tuple(
        tuple(runs[chunk * plan.pipeline_parallel + stage] for chunk in range(plan.virtual_pipeline))
        for stage in range(plan.pipeline_parallel)
    )


def unit_counts(layers: int, plan: Plan) -> tuple[int, ...]:
    """Units of each virtual stage, in order of the layers."""
    if not isinstance(plan.pipeline_layout, str):
        return plan.pipeline_layout
    stages = plan.stages
    if layers % stages == 0:
        each = layers // stages
        return tuple(each + (stage == 0) + (stage == stages - 1) for stage in range(stages))
    each, more = divmod(layers + 2, stages)
    return tuple(each + (stage < more) for stage in range(stages))


def layout_problems(layers: int, plan: Plan) -> list[str]:
    """Why these layers cannot be laid out like that; empty when they can."""
    stages, units = plan.stages, layers + 2
    split = f"pipeline_parallel {plan.pipeline_parallel} · virtual_pipeline {plan.virtual_pipeline} = {stages} stages"
    if not isinstance(plan.pipeline_layout, str):
        return _list_problems(plan.pipeline_layout, stages, units, split)
    divides = layers % stages == 0
    if plan.pipeline_layout == "even" and not divides:
        quotient = f"{layers} / {stages} = {layers / stages:.4g}"
        return [f"{layers} layers do not divide evenly over {split} ({quotient}); {_remedy(layers, plan)}"]
    if units < stages:
        return [
            f"{layers} layers with embedding and head are {units} units, fewer than {split}; use at most {units} stages"
        ]
    if engine(plan).even_layers and not divides and units % stages:
        rule = f"layers ({layers}) or layers + embedding + head ({units}) to be a multiple of {stages}"
        return [f"{layers} layers over {split}: {plan.implementation} needs {rule}; {_remedy(layers, plan)}"]
    return []


def _list_problems(given: tuple[int, ...], stages: int, units: int, split: str) -> list[str]:
    problems = []
    if len(given) != stages:
        problems.append(f"pipeline_layout lists {len(given)} stages but {split}; list one number of units for each")
    if sum(given) != units:
        forgot = " (the list counts layers only: add 1 to the first for the embedding and 1 to the last for the head)"
        hint = forgot if sum(given) == units - 2 else ""
        problems.append(
            f"pipeline_layout sums to {sum(given)} units; {units - 2} layers + embedding + head are {units}{hint}"
        )
    return problems


def _remedy(layers: int, plan: Plan) -> str:
    """Legal pipeline and virtual degrees near the ones given, and the layout that always works."""
    pipelines = [d // plan.virtual_pipeline for d in divisors(layers) if d % plan.virtual_pipeline == 0]
    virtuals = [d // plan.pipeline_parallel for d in divisors(layers) if d % plan.pipeline_parallel == 0]
    options = []
    if pipelines:
        near = sorted(sorted(pipelines, key=lambda p: abs(p - plan.pipeline_parallel))[:4])
        options.append(f"pipeline_parallel {', '.join(map(str, near))}")
    if virtuals and plan.virtual_pipeline > 1:
        options.append(f"virtual_pipeline {', '.join(map(str, virtuals[:4]))}")
    if (layers + 2) % plan.stages == 0:
        options.append(
            f"pipeline_layout: auto, which counts embedding and head as units ({layers + 2} / {plan.stages})"
        )
    return f"nearest that divide: {'; or '.join(options)}" if options else "give an explicit pipeline_layout"
