"""Compiles a run into its step program: every strategy is decided here, once.

    plan.load → Run → compile → StepProgram → (simulator | trainer)

`plan.pieces` says what a unit does, `plan.schedules` in what order a stage computes, `plan.compile.stage` puts both
into blocks and calls; this file lays out ranks and groups and joins the stages. It never looks at a cost.
"""

from plan.compile.compiler import compile_plan, compile_run, coordinates, groups, stage_of

__all__ = ["compile_plan", "compile_run", "coordinates", "groups", "stage_of"]
