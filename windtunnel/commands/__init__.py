"""The commands, one file a group, each with its line in `windtunnel --help`. These files import typer alone; what a
command does is imported inside it."""

from windtunnel.commands.calibrate import calibrate
from windtunnel.commands.compare import check, compare
from windtunnel.commands.demo import demo
from windtunnel.commands.doctor import doctor
from windtunnel.commands.forecast import forecast
from windtunnel.commands.program import export, import_, program
from windtunnel.commands.train import train
from windtunnel.commands.validate import validate
from windtunnel.edge import Command

COMMANDS: dict[str, tuple[Command, str]] = {
    "demo": (demo, "The whole loop on this machine's CPU, in minutes."),
    "forecast": (forecast, "What a run would take: time, memory, cost."),
    "train": (train, "Train the run, one process a rank."),
    "compare": (compare, "Predicted against measured, by instruction."),
    "check": (check, "Scaling-efficiency regression gate for CI."),
    "calibrate": (calibrate, "Measure this machine into a profile."),
    "program": (program, "Print a rank's step program."),
    "import": (import_, "Turn a launch script or config into a run file."),
    "export": (export, "Turn a run into another framework's launch script."),
    "validate": (validate, "The scoreboard against published measurements."),
    "doctor": (doctor, "What this machine has, and what would not work."),
}
