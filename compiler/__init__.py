"""Compiles a run into its step program: every strategy is decided here, once. It never looks at a cost.

    plan.run.load → Run → compile_run → StepProgram → (simulator | trainer)

`compiler.units` says what a unit does, `plan.pipeline` in what order a stage computes, `compiler.schedules` when it
sends and receives. In the order of reading:

| file | what it makes |
| --- | --- |
| compiler, ranks, words | the program of all stages; ranks and groups; the header's words |
| balance | which layers `pipeline_layout: auto` gives each stage |
| held, parameters, partition, recompute | what a stage holds: units, flat buckets, what ZeRO partitions, what is kept |
| builder | one block: instructions with their waits, frees and memory |
| chunk, passes | a chunk's units in a block; its forward and its backward |
| rings, shards, fresh, offload, edges | slots; ZeRO-2 and 3; DeepSpeed's gradients; the host; what crosses stages |
| step, transfers | the step's opening and close; sends and receives |
| stage, calls | the blocks of a stage; their calls in host order |
"""

from compiler.balance import laid_out
from compiler.compiler import compile_plan, compile_run, stage_of
from compiler.ranks import coordinates, groups

__all__ = ["compile_plan", "compile_run", "coordinates", "groups", "laid_out", "stage_of"]
