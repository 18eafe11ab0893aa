"""What a launch script says about the size of its job: the SLURM header, the launcher's options, DeepSpeed's file of
hosts and variables of well-known names.
"""

import re
from dataclasses import dataclass

from importers.launch import Launch
from importers.shell.arithmetic import whole
from importers.shell.files import found as found_file
from importers.shell.opaque import OPAQUE
from importers.shell.script import Script
from importers.shell.slurm import slurm_options
from importers.world import Quantity, Statement
from plan.ledger import Ledger

SIZE_VARIABLES: dict[str, Quantity] = {
    "NNODES": "nodes",
    "NUM_NODES": "nodes",
    "N_NODES": "nodes",
    "NODES": "nodes",
    "NUM_WORKERS": "nodes",
    "GPUS_PER_NODE": "gpus_per_node",
    "GPUS_PER_WORKER": "gpus_per_node",
    "NPROC_PER_NODE": "gpus_per_node",
    "N_GPUS_PER_NODE": "gpus_per_node",
    "NUM_GPUS_PER_NODE": "gpus_per_node",
    "NUM_GPUS_PER_WORKER": "gpus_per_node",
    "GPN": "gpus_per_node",
    "WORLD_SIZE": "gpus",
    "NUM_GPUS": "gpus",
    "N_GPUS": "gpus",
    "TOTAL_GPUS": "gpus",
}
LAUNCHER_OPTIONS: dict[str, dict[str, Quantity]] = {
    "torchrun": {"--nnodes": "nodes", "--nproc_per_node": "gpus_per_node", "--nproc-per-node": "gpus_per_node"},
    "deepspeed": {"--num_nodes": "nodes", "--num_gpus": "gpus_per_node"},
    "accelerate": {"--num_machines": "nodes", "--num_processes": "gpus"},
    "srun": {"--nodes": "nodes", "-N": "nodes", "--gpus-per-node": "gpus_per_node"},
    "mpirun": {"--npernode": "gpus_per_node", "-npernode": "gpus_per_node"},
}
TASKS = {"srun": ("--ntasks", "-n"), "mpirun": ("-np", "-n", "--np")}
"""Options that count processes: GPUs when they start Python directly, nodes when they start another launcher."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What was found so far. `sized`: the user says how many nodes anyway, so that an unknown number does no harm."""

    script: Script
    sized: bool
    ledger: Ledger
    found: list[Statement]

    def add(self, quantity: Quantity, text: str, where: str) -> None:
        """A statement, if its text is a number; what else a launcher's option may be is a problem or a note."""
        variable = where.startswith("variable")
        if self.script.expander.why(text):
            if quantity != "gpus_per_node" and not variable and not self.sized:
                self._unknown(text, where)
        elif ":" in text and quantity == "nodes":
            self.ledger.problem(f"{where} {text} is an elastic range; give one number of nodes with --nodes")
        elif number := whole(text):
            self.found.append(Statement(quantity, number, where))
        elif text in ("gpu", "auto") and quantity == "gpus_per_node":
            self.ledger.note(f"{where} {text}: one process for each GPU that a node of the cluster has")
        elif not variable:
            self.ledger.problem(f"{where} is {text!r}, but must be a whole number of at least 1")

    def _unknown(self, text: str, where: str) -> None:
        expander = self.script.expander
        self.ledger.problem(
            f"{where} is {expander.show(text)}, whose value is unknown: {expander.why(text)[0].sentence()}; define it"
            " in the script, or give --nodes N"
        )


def size_statements(script: Script, launch: Launch | None, sized: bool, ledger: Ledger) -> list[Statement]:
    """Everything in the script that says how many nodes and GPUs run. `sized`: the user says how many nodes anyway."""
    sizes = _Sizes(script, sized, ledger, [])
    _of_slurm(sizes)
    sizes.found.extend(_of_hostfile(script, launch, sized, ledger))
    nested = launch is not None and any(map(_starts_processes, launch.launcher))
    for name, option, value in _launcher_options(launch):
        quantity = LAUNCHER_OPTIONS[name].get(option) or ("nodes" if nested else "gpus")
        sizes.add(quantity, value, f"{name} {option}")
    for variable, quantity in SIZE_VARIABLES.items():
        text = script.expander.variables.get(variable)
        if isinstance(text, str):
            sizes.add(quantity, text, f"variable {variable}")
    word = _unknown_options(script, launch) if launch and not sized else None
    if word is not None and not any(each.quantity != "gpus_per_node" for each in sizes.found):
        ledger.problem(
            f"the launcher's options contain {script.expander.show(word)}, whose value is unknown:"
            f" {script.expander.why(word)[0].sentence()}; they may say how many GPUs run. Define it, or give --nodes N"
        )
    return sizes.found


def _of_slurm(sizes: _Sizes) -> None:
    """What the SLURM header says."""
    for option, value in slurm_options(sizes.script.text):
        if option == "--nodes":
            sizes.add("nodes", value.split("-")[0], "#SBATCH --nodes")
        elif option in ("--gres", "--gpus-per-node") and (option != "--gres" or value.startswith("gpu")):
            sizes.add("gpus_per_node", value.split(":")[-1], f"#SBATCH {option}")
        elif option == "--gpus":
            sizes.add("gpus", value.split(":")[-1], "#SBATCH --gpus")


def _starts_processes(word: str) -> bool:
    """Whether a word of a launcher is itself one that starts a process for each GPU of a node."""
    return _name(word) in ("torchrun", "deepspeed", "accelerate") or word.startswith("torch.distributed")


def _unknown_options(script: Script, launch: Launch) -> str | None:
    """A word among the launcher's options that is unknown as a whole and not the value of an option."""
    pairs = zip(("", *launch.launcher), launch.launcher, strict=False)
    return next((word for before, word in pairs if OPAQUE.fullmatch(word) and not before.startswith("-")), None)


def _of_hostfile(script: Script, launch: Launch | None, sized: bool, ledger: Ledger) -> list[Statement]:
    """What DeepSpeed's `--hostfile` says: a line `name slots=8` for each node."""
    words = [part for word in (launch.launcher if launch else ()) for part in word.split("=", 1)]
    place = next(
        (i for i, word in enumerate(words[:-1]) if word in ("--hostfile", "-H") and "deepspeed" in words), None
    )
    if place is None:
        return []
    shown = script.expander.show(words[place + 1])
    text = found_file(script, words[place + 1])
    if text is None:
        if not sized:
            ledger.problem(
                f"--hostfile {shown} is not beside the script, so the number of nodes is unknown: give --nodes N"
            )
        return []
    slots = re.findall(r"^[ \t]*[^#\s]\S*[ \t]+slots=([0-9]{1,9})\b", text, re.MULTILINE)
    found = [Statement("nodes", len(slots), f"--hostfile {shown}")] if slots else []
    return found + [Statement("gpus_per_node", int(each), f"--hostfile {shown}") for each in dict.fromkeys(slots)]


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _launcher_options(launch: Launch | None) -> list[tuple[str, str, str]]:
    """(launcher, option, value) for each size option before the program."""
    found: list[tuple[str, str, str]] = []
    current = ""
    words = list(launch.launcher) if launch else []
    for number, word in enumerate(words):
        name = "torchrun" if word in ("torch.distributed.run", "torch.distributed.launch") else _name(word)
        if name in LAUNCHER_OPTIONS or name == "mpiexec":
            current = "mpirun" if name == "mpiexec" else name
            continue
        option, equals, value = word.partition("=")
        if glued := re.fullmatch(r"(-[Nn])(\d+)", word):  # srun -N2 -n16
            option, equals, value = glued[1], "=", glued[2]
        if current and (option in LAUNCHER_OPTIONS[current] or option in TASKS.get(current, ())):
            found.append((current, option, value if equals else (words[number + 1] if number + 1 < len(words) else "")))
    return found


GPU_NAMES = (("h200", "dgx-h200"), ("h100", "dgx-h100"), ("a100", "dgx-a100-80gb"))


def cluster_hints(script: Script, ledger: Ledger) -> dict[str, object]:
    """A cluster preset from the SLURM header's GPU type (`--gres=gpu:a100:8`, `--constraint=h100`)."""
    for option, value in slurm_options(script.text):
        if option not in ("--gres", "--gpus-per-node", "--gpus", "--constraint"):
            continue
        for gpu, preset in GPU_NAMES:
            if gpu in value.lower():
                preset = "dgx-a100-40gb" if gpu == "a100" and re.search(r"40\s*g", value.lower()) else preset
                ledger.warn(f"#SBATCH {option}={value} is read as nodes like {preset}; use --cluster to say otherwise")
                return {"preset": preset}
    return {}
