"""Blocks and calls, the program of one rank class made of them, and the step program of the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from program.buffers import Bucket, Buffer, Param
from program.instruction import Instruction
from program.kinds import OFF_DEVICE, Role


@dataclass(frozen=True, slots=True)
class PortIn:
    """A way into a block. `buffer` is the local buffer that stands for the bound one (None: a wait only)."""

    name: str
    buffer: int | None


@dataclass(frozen=True, slots=True)
class PortOut:
    """A way out of a block: `instruction` is who must have finished, `buffer` what is handed over (None: a token)."""

    name: str
    instruction: int
    buffer: int | None


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions compiled once. `net_bytes` is what a call leaves allocated, `peak_bytes` the highest it adds on the
    way (allocator buffers and transients, in host issue order)."""

    name: str
    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    ports_in: tuple[PortIn, ...]
    ports_out: tuple[PortOut, ...]
    net_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One placing of a block. `base` is the global id of its first instruction: stable under edits of other blocks."""

    block: int
    micro: int
    base: int
    bindings: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The step of one class of ranks: one pipeline stage. Holds no rank-dependent number."""

    stage: int
    blocks: tuple[Block, ...]
    calls: Sequence[Call]  # a tuple, or where a steady state repeats `program.calls.Repeated`
    buffers: tuple[Buffer, ...]
    params: tuple[Param, ...]
    buckets: tuple[Bucket, ...]

    @property
    def resident_bytes(self) -> int:
        """Rank-wide bytes on the device: weights, gradients, optimizer state and fixed slots (views count with their
        base)."""
        return sum(b.bytes for b in self.buffers if b.base is None and b.pool not in OFF_DEVICE)


@dataclass(frozen=True, slots=True)
class Group:
    """Members (global ranks, in order) that share the communicators of a role."""

    role: Role
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Execution:
    """Who executes the instructions: the part of a step that no single instruction says.

    `kernels` answer every kernel call: eager, compiled or triton. `graph`: the step is captured once as a CUDA graph,
    then replayed. `own_host_code`: our executor issues the instructions (a profile's host times are of it), else
    another framework does.
    """

    kernels: str = "compiled"
    graph: bool = False
    own_host_code: bool = True


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The whole job's step. `class_of[rank]` indexes `classes`; `groups[role]` lists every group of that role.

    A pipeline neighbour is `pp_next`/`pp_prev` of a rank: the group of role `pp_next` is the ring of stages, in order.
    `execution` says who executes it. `rules` records the implementation's choices in words; `hash` covers all but
    them, and ranks compare it.
    """

    classes: tuple[RankProgram, ...]
    class_of: tuple[int, ...]
    groups: dict[str, tuple[Group, ...]]
    degrees: dict[str, int]  # tp, dp, pp, vpp, microbatches, micro_batch_size, seq_length [, layer_period]
    execution: Execution = Execution()
    rules: dict[str, str] = field(default_factory=dict)
    hash: str = ""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.class_of)
