"""The commands, one file a group, each with its line in `windtunnel --help`. These files import typer alone; what a
command does is imported inside it."""

from windtunnel.commands import calibrate, compare, demo, doctor, forecast, program, train, validate
from windtunnel.edge import Command

COMMANDS: dict[str, tuple[Command, str]] = {
    "demo": (demo.demo, "The whole loop on this machine's CPU, in minutes."),
    "forecast": (forecast.forecast, "What a run would take: time, memory, cost."),
    "train": (train.train, "Train the run, one process a rank."),
    "compare": (compare.compare, "Predicted against measured, by instruction."),
    "check": (compare.check, "Scaling-efficiency regression gate for CI."),
    "calibrate": (calibrate.calibrate, "Measure this machine into a profile."),
    "program": (program.program, "Print a rank's step program."),
    "import": (program.import_, "Turn a launch script or config into a run file."),
    "export": (program.export, "Turn a run into another framework's launch script."),
    "validate": (validate.validate, "The scoreboard against published measurements."),
    "doctor": (doctor.doctor, "What this machine has, and what would not work."),
}
