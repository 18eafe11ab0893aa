"""A run's program, compiled and proved: what everything that simulates or trains a run asks for.

The rules have accepted the run, so an unsound program is the compiler's fault and not the user's: it ends as a fault of
Windtunnel does. (`program.proofs` alone judges programs from anywhere, edited ones too, and says no more than what it
found.)
"""

from __future__ import annotations

from compiler import compile_run
from plan.run import Run
from program import StepProgram
from program.errors import UnsoundProgram
from program.proofs import ProofError, prove


def compile_checked(run: Run) -> StepProgram:
    """The step program of a run. Raises UnsoundProgram, naming the instructions, when a proof fails."""
    program = compile_run(run)
    try:
        prove(program)
    except ProofError as error:
        said = "the rules accept this plan, but the program compiled for it is not sound"
        raise UnsoundProgram(f"{said}: {error}") from error
    return program
