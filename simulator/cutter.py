"""How each symmetry class's program is simulated: its blocks priced and cut, and where its period closes."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.profile import Profile
from program import Block, KernelCall, RankProgram, StepProgram
from program.cluster import Cluster
from simulator.coarsen import Cut, cut, fine_calls, waited_ports
from simulator.costs import Pricer
from simulator.fold import SymmetryClass
from simulator.sharing import Contention


def step_boundary(stage: RankProgram) -> tuple[int, int]:
    """(call, local id) whose end closes a period: the last STEP on the device; in a program without one (the host
    steps) the last compute instruction."""
    compute: tuple[int, int] | None = None
    for index in range(len(stage.calls) - 1, -1, -1):
        instructions = stage.blocks[stage.calls[index].block].instructions
        for local in range(len(instructions) - 1, -1, -1):
            if instructions[local].kind == "STEP" and instructions[local].stream == "compute":
                return index, local
            if compute is None and instructions[local].stream == "compute":
                compute = index, local
    assert compute is not None, "a step computes something"
    return compute


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """How a symmetry class's program is simulated: the cut of each call and of each block, the instruction that closes
    the period, and the groups of roles that merged segments take to be in step."""

    cuts: tuple[Cut, ...]
    of_blocks: tuple[Cut, ...]
    boundary: tuple[int, int]
    roles: tuple[tuple[str, ...], ...]


class Cutter:
    """Prices and cuts the blocks of each symmetry class; symmetry classes alike in program and geometry share the
    result."""

    def __init__(
        self,
        program: StepProgram,
        cluster: Cluster,
        profile: Profile,
        contention: Contention,
        coarse: bool,
        kernels: dict[KernelCall, float],
    ) -> None:
        self.program = program
        self.cluster = cluster
        self.profile = profile
        self.contention = contention
        self.coarse = coarse
        self.pipelined = program.degrees.get("pp", 1) > 1
        self.checks_all = False  # whether some single slows compute and may follow from a transfer (see `segments`)
        self._kernels = kernels
        self._channels: dict[int, tuple[tuple[str, str], ...]] = {}
        self._known: dict[object, ClassPlan] = {}

    def channels(self, number: int) -> tuple[tuple[str, str], ...]:
        """(role, channel) of every communicator a class uses."""
        known = self._channels.get(number)
        if known is None:
            comms = (i.comm for block in self.program.classes[number].blocks for i in block.instructions)
            names = dict.fromkeys((comm.role, comm.channel) for comm in comms if comm is not None)
            known = self._channels[number] = tuple(names)
        return known

    def plan(self, symmetry_class: SymmetryClass) -> ClassPlan:
        """How a symmetry class's program is simulated."""
        kinds = ((role, m.geometry, m.has_peers, m.in_step) for role, m in symmetry_class.group_instances.items())
        key = (symmetry_class.program, *kinds)
        if key not in self._known:
            self._known[key] = self._cut(symmetry_class)
        return self._known[key]

    def _cut(self, symmetry_class: SymmetryClass) -> ClassPlan:
        """The block that closes the period stays uncut, so that its STEP is seen."""
        stage = self.program.classes[symmetry_class.program]
        boundary = step_boundary(stage)
        graph = self.program.execution.graph
        pricer = Pricer(self.profile, symmetry_class, stage, self.cluster, self.pipelined, self._kernels, graph)
        rows = [pricer.block(block) for block in stage.blocks]
        closing = stage.calls[boundary[0]].block
        merge = [self.coarse and index != closing for index in range(len(stage.blocks))]
        ports = waited_ports(stage)
        cuts = [cut(block, rows[i], merge[i], self.contention, ports[i]) for i, block in enumerate(stage.blocks)]
        chosen = [cuts[call.block] for call in stage.calls]
        self.checks_all = self.checks_all or any(map(self._has_slowing_single, stage.blocks, cuts))
        fine: dict[int, Cut] = {}
        for index in fine_calls(stage, cuts, self.contention) if self.coarse else ():
            block = stage.calls[index].block
            if block not in fine:
                fine[block] = cut(stage.blocks[block], rows[block], False, self.contention, ports[block])
            chosen[index] = fine[block]
        roles = dict.fromkeys(
            segment.roles for cut_ in (*cuts, *fine.values()) for segment in cut_.segments if segment.roles
        )
        return ClassPlan(tuple(chosen), tuple(cuts), boundary, tuple(roles))

    def _has_slowing_single(self, block: Block, cut_: Cut) -> bool:
        """Communications of the step's end and beginning follow from no transfer."""
        singles = (segment.rows[0] for segment in cut_.segments if segment.merge is None)
        factors = self.contention.compute
        return any(factors[row.stream] != 1.0 and block.instructions[row.local].phase != "step" for row in singles)
