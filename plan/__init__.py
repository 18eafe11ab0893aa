"""The language: what a run is, the rules it obeys, the step program compiled from it, its proofs, and the timeline.

| room | what is in it |
| --- | --- |
| `model`, `cluster`, `parallel` | the three sections of a run that decide a program: numbers, frozen |
| `run/` | a run file becomes a `Run`: its keys, its `auto`s, every rule, what is not forecast yet |
| `importers/`, `shell/`, `exporters` | other frameworks' files as runs; scripts are evaluated, never executed |
| `layout`, `schedules` | what rules and compiler ask: a stage's units, their order |
| `implementations/` | whose engine runs the step, and every choice it makes otherwise than ours |
| `ops`, `flops` | the operators and what each costs in bytes and FLOPs |
| `units/` | what a unit of the model computes, operator by operator: priced and executed |
| `program/` | the step program: instructions, blocks, calls; as text, as a hash |
| `compile/` | a run becomes a program |
| `prove/` | a program is sound; `sound` compiles and proves |
| `timeline/` | what happened when, predicted or measured |
| `errors`, `files`, `nearest`, `numbers`, `presets`, `uncollected` | helpers of all of them |

Start at `plan.run.load`, which turns a run file into a `Run`. Import what a room's docstring names from the room itself
(`from program import Instruction`). Nothing in this package imports torch.
"""
