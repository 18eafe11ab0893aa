"""A run: everything about one training job, as resolved, and how it is loaded from a file.

    run = load("examples/llama-3-8b.yaml", ["plan.tensor_parallel=4"])
    run.model.parameters(), run.plan.microbatches, run.cluster.gpus

`load` reads a YAML file (or a dict), applies `--set` overrides, fills presets, resolves every `auto` and checks
every rule; what is wrong is reported all together in one `InputError`. `run.to_dict()` is the run as resolved: dump
it as YAML, load it again, get an equal `Run`.

| file | what is in it |
| --- | --- |
| job | the `Run` and its sections |
| loading, resolve | a file becomes a run, with every problem it has |
| schema, reading | what each section may contain (pydantic), and pydantic's errors as sentences |
| assemble | every `auto` decided |
| rules, rules_degrees, rules_options | every rule between values |
| supported | what is right, but not forecast yet |
| stand_ins | what rules say while some values are wrong |
"""

from plan.run.job import Budget, Checkpoint, Data, LrSchedule, Optimizer, Run, Train, canonical_json
from plan.run.loading import load, override, read_yaml

__all__ = [
    "Budget",
    "Checkpoint",
    "Data",
    "LrSchedule",
    "Optimizer",
    "Run",
    "Train",
    "canonical_json",
    "load",
    "override",
    "read_yaml",
]
