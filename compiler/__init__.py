"""Compiles a run into its step program: every strategy is decided here, once. It never looks at a cost.

    plan.run.load → Run → compile_run → StepProgram → (simulator | trainer)

`compiler.units` says what a unit does, `plan.pipeline` in what order a stage computes, `compiler.schedules` when it
sends and receives. In the order of reading:

| file | what it makes |
| --- | --- |
| compiler, rank_groups, header | the program of all stages; ranks and groups; what the program's header says |
| balance | which layers `pipeline_layout: auto` gives each stage |
| stage_context, parameters, partition, recompute | a stage's units, flat buckets, what ZeRO partitions, what is kept |
| block_builder | one block: instructions with their waits, frees and memory |
| chunk, passes | a chunk's units in a block; its forward and its backward |
| slot_allocator, shards, offload | slots; ZeRO-2 and 3; the host |
| open_close, edges | the step's opening and close; what crosses stages, sends and receives |
| stage, call_placer | the blocks of a stage; their calls in host order |
"""

from compiler.balance import laid_out
from compiler.compiler import compile_plan, compile_run, stage_of
from compiler.rank_groups import coordinates, groups

__all__ = ["compile_plan", "compile_run", "coordinates", "groups", "laid_out", "stage_of"]
