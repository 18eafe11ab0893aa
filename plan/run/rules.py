"""Every rule between model, cluster and plan, in one place.

Each rule is a function from a `Run` to sentences; a sentence names the values, the rule and a nearest value that
obeys it. `check` runs them all and keeps two lists apart: what is *illegal* (no machine can run it) and what is
merely *unsupported* (`plan.run.supported`). A new rule is a new function in RULES.
"""

from collections.abc import Callable, Iterator

from plan.run import rules_degrees as degrees
from plan.run import rules_options as options
from plan.run import supported
from plan.run.job import Run

RULES: tuple[Callable[[Run], Iterator[str]], ...] = (
    degrees.size,
    degrees.world_size,
    degrees.batch,
    degrees.heads,
    degrees.positions,
    degrees.norms,
    degrees.tensor_parallel,
    degrees.sequence_parallel,
    degrees.layers,
    degrees.virtual_pipeline,
    degrees.schedule,
    options.zero_with_pipeline,
    options.own,
    options.attention,
    options.recompute,
    options.zero,
    options.loss,
    options.optimizer,
    options.kernels,
    options.graph,
)


def check(run: Run) -> tuple[list[str], list[str]]:
    """(illegal, unsupported): every sentence of every rule."""
    return [problem for rule in RULES for problem in rule(run)], supported.problems(run)
