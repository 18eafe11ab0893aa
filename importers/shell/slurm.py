"""What the `#SBATCH` header of a script says: options, and the environment variables SLURM will set from them."""

import re

from importers.shell.arithmetic import whole
from importers.shell.values import Value

SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-C": "--constraint", "-p": "--partition",
         "-c": "--cpus-per-task", "-J": "--job-name"}  # fmt: skip


def slurm_options(text: str) -> list[tuple[str, str]]:
    """The `#SBATCH` options of a script in order, as ("--nodes", "24"); short names are spelled out."""
    found: list[tuple[str, str]] = []
    for row in re.findall(r"^[ \t]*#SBATCH[ \t]+(.*)$", text, re.MULTILINE):
        words = row.split(" #")[0].replace("=", " ", 1).split()
        if words:
            found.append((SHORT.get(words[0], words[0]), " ".join(words[1:])))
    return found


def slurm_variables(text: str) -> dict[str, Value]:
    """The environment variables SLURM sets from the header: nodes, tasks and GPUs, each way it counts them."""
    options = dict(slurm_options(text))
    nodes = whole(options.get("--nodes", "").split("-")[0])
    each = whole(options.get("--ntasks-per-node", ""))
    tasks = whole(options.get("--ntasks", "")) or (nodes * each if nodes and each else None)
    local = whole(options.get("--gpus-per-node", options.get("--gres", "")).split(":")[-1])
    gpus = whole(options.get("--gpus", "").split(":")[-1]) or (nodes * local if nodes and local else None)
    numbers = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_GPUS_ON_NODE": local,
        "SLURM_GPUS_PER_NODE": local,
        "SLURM_GPUS": gpus,
        "SLURM_CPUS_PER_TASK": whole(options.get("--cpus-per-task", "")),
    }
    named = {"SLURM_JOB_NAME": options.get("--job-name"), "SLURM_JOB_PARTITION": options.get("--partition")}
    return {name: str(value) for name, value in (numbers | named).items() if value is not None}
