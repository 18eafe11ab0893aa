"""What one stream does once: an instruction, the kernel calls that are costed, its communication, its text form."""

from __future__ import annotations

from dataclasses import dataclass

from program.declared import Values
from program.kinds import CommOp, KernelCall, Phase, Reduce, Role, Stream
from program.lines import Body


@dataclass(frozen=True, slots=True)
class Comm:
    """A communication. `bytes` counts the full logical tensor: all-reduce its tensor, reduce-scatter its input,
    all-gather its output, a transfer its payload. (rank, role, channel) names the communicator; members match by their
    order on it, which `expand` counts in host order."""

    op: CommOp
    role: Role
    bytes: int
    dtype: str
    channel: str
    reduce: Reduce = ""
    algorithm: str = "auto"


@dataclass(frozen=True, slots=True)
class Instruction:
    """What one stream does once. (phase, kind, micro-batch, unit, piece) is unique in a rank's step.

    `values` says what its buffers hold, where those are values of a unit. `lines` is what it computes and `body`
    the kernel calls of it: what is executed and what is priced. `reads`/`writes` are positional: the arguments and
    results of the lines. A buffer in both is updated in place. `frees` are released once this instruction was
    issued; it stands only on the owner stream (compute), after every access. `transient_bytes` live only while it
    runs. `host_sync` blocks the host until it has finished.
    """

    phase: Phase
    kind: str
    unit: int
    piece: str
    stream: Stream
    body: tuple[KernelCall, ...] = ()
    comm: Comm | None = None
    waits: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    transient_bytes: int = 0
    priority: int = 0
    host_sync: bool = False
    lines: Body | None = None
    values: Values | None = None

    @property
    def needs_host(self) -> bool:
        """Whether the host has a part in it that a replayed graph (`plan.cuda_graph`) cannot have: numbers that change
        from step to step, work of its own, or waiting for it."""
        return self.kind in ("STEP", "LOSS") or self.stream in ("cpu", "disk") or self.host_sync


def label(phase: str, kind: str, micro: int, unit: int, piece: str) -> str:
    """The text form of an instruction: `B RS2.5 attn.in` (micro-batch 2, unit 5); step instructions have no
    micro-batch.
    """
    where = f"{micro}.{unit}" if micro >= 0 and phase != "step" else f"{unit}"
    return f"{phase} {kind}{where} {piece}"
