"""What the `#SBATCH` header of a script says: options, and the environment variables SLURM will set from them."""

import re

from importers.shell.arithmetic import whole
from importers.shell.values import Value


def slurm_options(text: str) -> list[tuple[str, str]]:
    """The `#SBATCH` options of a script in order, as ("--nodes", "24"); short names are spelled out."""
    short = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-C": "--constraint", "-p": "--partition"}
    found: list[tuple[str, str]] = []
    for row in re.findall(r"^[ \t]*#SBATCH[ \t]+(.*)$", text, re.MULTILINE):
        words = row.split(" #")[0].replace("=", " ", 1).split()
        if words:
            found.append((short.get(words[0], words[0]), " ".join(words[1:])))
    return found


def slurm_variables(text: str) -> dict[str, Value]:
    """The environment variables SLURM sets from the header: node and task counts."""
    values: dict[str, Value] = {}
    for option, value in slurm_options(text):
        if option == "--nodes":
            nodes = value.split("-")[0]
            values |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
        elif option == "--ntasks-per-node":
            values["SLURM_NTASKS_PER_NODE"] = value
        elif option in ("--gpus-per-node", "--gres") and whole(value.split(":")[-1]) is not None:
            values["SLURM_GPUS_ON_NODE"] = value.split(":")[-1]
    return values
