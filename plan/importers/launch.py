"""Finds the training command in an evaluated script: its flags, and what it says about the size of the job.

A launch is a command that runs a Python file (or anything followed by model flags) under torchrun, deepspeed, srun,
mpirun, accelerate or python. Where a script only builds argument variables and starts nothing, the variables that
nobody else uses are taken, with a warning. A file that is nothing but flags is an argument string.
"""

import re
import shlex
from dataclasses import dataclass

from plan.importers.flags import TRANSLATED
from plan.importers.ledger import Ledger
from plan.importers.script import Command, Script
from plan.importers.shell import PRINTERS
from plan.importers.slurm import slurm_options
from plan.importers.world import Quantity, Statement

MODEL_FLAGS = (
    "--num-layers",
    "--hidden-size",
    "--num-attention-heads",
    "--tensor-model-parallel-size",
    "--micro-batch-size",
    "--model-parallel-size",
)
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
class Launch:
    """The training command: the words before its flags, the flags, its Python file and where it stands."""

    launcher: tuple[str, ...]
    flags: tuple[str, ...]
    program: str
    where: str


def find_launch(script: Script, ledger: Ledger) -> Launch | None:
    """The one training command of a script; None (and a problem) when there is none or there are several."""
    dropped = [command for command in script.commands if command.words[0].startswith("--")]
    candidates = [command for command in script.commands if command not in dropped and _runs_a_model(command)]
    if not candidates and dropped:
        words = tuple(word for command in dropped for word in command.words)
        return Launch((), words, "", "the argument string")
    for command in dropped:
        ledger.warn(
            f"line {command.line} starts with a flag: a backslash is missing at the end of a line before it, so bash"
            f" does not pass {', '.join(word for word in command.words if word.startswith('--'))}; not applied"
        )
    different = {(launch.flags, launch.program): command for command in candidates for launch in [_split(command)]}
    if len(different) > 1:
        ledger.problem(_several(list(different.values())))
        return None
    if candidates:
        command = next((each for each in reversed(candidates) if not each.condition), candidates[-1])
        launchers = {each.words: each for each in candidates}
        if len(launchers) > 1:
            ledger.warn(
                f"lines {_lines(list(launchers.values()))} start the same training under different launchers: line"
                f" {command.line} is taken"
            )
        elif command.condition:
            ledger.warn(
                f"the training command in line {command.line} depends on {command.condition}: it is taken to run"
            )
        return _split(command)
    return _from_variables(script, ledger)


def _several(commands: list[Command]) -> str:
    deciding = "; ".join(dict.fromkeys(each.condition for each in commands if each.condition))
    return (
        f"the script starts {len(commands)} different training commands (lines {_lines(commands)})"
        + (f", and which one runs depends on {deciding}" if deciding else "")
        + "; keep the one to import"
    )


def _lines(commands: list[Command]) -> str:
    return ", ".join(dict.fromkeys(str(command.line) for command in commands))


def _runs_a_model(command: Command) -> bool:
    if command.words[0] in PRINTERS:
        return False
    return any(word.split("=")[0] in MODEL_FLAGS for word in command.words)


def _split(command: Command) -> Launch:
    words = command.words
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if place is None:
        place = next(i for i, word in enumerate(words) if word.split("=")[0] in TRANSLATED) - 1
    return Launch(words[:place], words[place + 1 :], words[place] if place >= 0 else "", f"line {command.line}")


def _from_variables(script: Script, ledger: Ledger) -> Launch | None:
    """Flags of variables that hold flags and are not part of another such variable."""
    holders = {name: _words(value) for name, value in script.expander.variables.items() if _holds_flags(_words(value))}
    inner = {used for name in holders for used in script.made_from.get(name, ())} - {""}
    outer = [name for name in holders if name not in inner] or list(holders)
    words = [word for name in outer for word in holders[name]]
    if not any(word.split("=")[0] in MODEL_FLAGS for word in words):
        if (unknown := _unknown_flags(script)) is not None:
            ledger.problem(unknown)
            return None
        other = next(
            (
                c
                for c in script.commands
                if re.search(r"\.(sh|slurm|sbatch)$", c.words[-1]) and c.words[0] in ("bash", "sh", "sbatch")
            ),
            None,
        )
        hint = f"; line {other.line} runs another script, {other.words[-1]}: give that one" if other else ""
        ledger.problem(
            "the script has no model flags (--num-layers, --hidden-size, --num-attention-heads, ...)"
            f"{hint}; give a script that starts Megatron, or a model with --model"
        )
        return None
    ledger.warn(f"no training command found; flags are taken from the variables {', '.join(outer)}")
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)
    return Launch(
        tuple(words[: max(place, 0)]),
        tuple(words[place + 1 :]),
        words[place] if place >= 0 else "",
        "variables " + ", ".join(outer),
    )


def _unknown_flags(script: Script) -> str | None:
    """Why a command that starts a training program has no flags: they are in a value that is unknown."""
    for command in script.commands:
        program = next((word for word in command.words if re.search(r"(train|pretrain)\w*\.py$", word)), None)
        reasons = [(word, why) for word in command.words for why in script.expander.why(word)[:1]]
        if program is not None and reasons and command.words[0] not in PRINTERS:
            word, why = reasons[-1]
            return (
                f"line {command.line} starts {program} with {script.expander.show(word)}, whose value is unknown:"
                f" {why.sentence()}"
            )
    return None


def _words(value: str | list[str]) -> list[str]:
    if isinstance(value, list):
        return value
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _holds_flags(words: list[str]) -> bool:
    return any(re.match(r"--[A-Za-z]", word) for word in words)


def size_statements(script: Script, launch: Launch | None, sized: bool, ledger: Ledger) -> list[Statement]:
    """Everything in the script that says how many nodes and GPUs run. `sized`: the user says how many nodes anyway."""
    found: list[Statement] = []

    def add(quantity: Quantity, text: str, where: str) -> None:
        if reasons := script.expander.why(text):
            needed = quantity != "gpus_per_node" and not where.startswith("variable")
            if needed and not sized:
                ledger.problem(
                    f"{where} is {script.expander.show(text)}, whose value is unknown: {reasons[0].sentence()}; define"
                    " it in the script, or give --nodes N"
                )
            return
        if ":" in text and quantity == "nodes":
            ledger.problem(f"{where} {text} is an elastic range; give one number of nodes with --nodes")
        elif text.isdigit() and int(text) > 0:
            found.append(Statement(quantity, int(text), where))

    nested = launch is not None and any(
        _name(word) in ("torchrun", "deepspeed", "accelerate") or word.startswith("torch.distributed")
        for word in launch.launcher
    )
    for option, value in slurm_options(script.text):
        if option == "--nodes":
            add("nodes", value.split("-")[0], "#SBATCH --nodes")
        elif option in ("--gres", "--gpus-per-node") and (option != "--gres" or value.startswith("gpu")):
            add("gpus_per_node", value.split(":")[-1], f"#SBATCH {option}")
        elif option == "--gpus":
            add("gpus", value.split(":")[-1], "#SBATCH --gpus")
    for name, option, value in _launcher_options(launch):
        quantity = LAUNCHER_OPTIONS[name].get(option) or ("nodes" if nested else "gpus")
        add(quantity, value, f"{name} {option}")
    for variable, quantity in SIZE_VARIABLES.items():
        text = script.expander.variables.get(variable)
        if isinstance(text, str):
            add(quantity, text, f"variable {variable}")
    return found


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
