"""Prices instructions: the only place where a profile is asked for times.

A price depends on the kernel calls of an instruction, its communication and the geometry of its group, and nothing
else; what runs beside it is the business of `simulator.sharing`. There is no constant here: a number that belongs in a
profile must come from one.
"""

from __future__ import annotations

from typing import NamedTuple

from calibration.collectives import CommCost, Geometry
from calibration.profile import Profile
from program import STREAMS, Block, Comm, Instruction, KernelCall, RankProgram
from program.cluster import Cluster
from program.ops import OPERATORS
from simulator.breakdown import wait_class, work_class
from simulator.clock import picoseconds
from simulator.fold import SymmetryClass
from simulator.sharing import millicores

STREAM_INDEX = {name: index for index, name in enumerate(STREAMS)}
COMPUTE_STREAM = STREAM_INDEX["compute"]


class Row(NamedTuple):
    """A priced instruction. `channel` is (role, channel) when other simulated ranks must come, else None; `inner` says
    that nobody is waited for, or only ranks that are in step.

    `work`/`wait` are breakdown classes; `own_millicores` and `busy` say what it takes of a CPU node's cores, and how
    much longer it takes when every (other) core computes.
    """

    local: int
    stream: int
    work_ps: int
    issue_ps: int
    waits: tuple[int, ...]
    channel: tuple[str, str] | None
    inner: bool
    sync: bool
    work: int
    wait: int
    own_millicores: int
    busy: float


def issue_s(profile: Profile, instruction: Instruction, graph: bool) -> float:
    """Host time to issue an instruction, or its part of the launch of a `graph` that replays it."""
    if graph and not instruction.needs_host:
        return profile.replay_s(instruction.body)
    return profile.host_issue_s(instruction.kind, instruction.body)


class Pricer:
    """Prices one symmetry class's instructions from a profile."""

    def __init__(
        self,
        profile: Profile,
        symmetry_class: SymmetryClass,
        stage: RankProgram,
        cluster: Cluster,
        pipelined: bool,
        kernels: dict[KernelCall, float],
        graph: bool = False,
    ) -> None:
        self.profile = profile
        self.symmetry_class = symmetry_class
        self.ranks = sum(symmetry_class.beside.values())  # of its node
        sharers = min(cluster.gpus_per_pcie, self.ranks)
        self.pcie_bytes_per_s = cluster.pcie_gb_s * 1e9 / max(1, sharers)
        self.buffers = stage.buffers
        self.pipelined = pipelined
        self.graph = graph
        self.kernels = kernels  # prices found so far, by whichever symmetry class

    def block(self, block: Block) -> tuple[Row, ...]:
        """Every instruction of a block, priced."""
        return tuple(self._row(local, instruction, block) for local, instruction in enumerate(block.instructions))

    def _row(self, local: int, instruction: Instruction, block: Block) -> Row:
        work_s = self._work_s(instruction, block)
        cost = None if instruction.comm is None else self._comm(instruction.comm)
        own, busy = self._shares(instruction, work_s) if cost is None else self._comm_shares(cost, work_s)
        return Row(
            local=local,
            stream=STREAM_INDEX[instruction.stream],
            work_ps=picoseconds(work_s),
            issue_ps=picoseconds(issue_s(self.profile, instruction, self.graph)),
            waits=instruction.waits,
            channel=self._channel(instruction),
            inner=self._inner(instruction),
            sync=instruction.host_sync,
            work=work_class(instruction),
            wait=wait_class(instruction, self.pipelined),
            own_millicores=own,
            busy=busy,
        )

    def kernel_s(self, call: KernelCall) -> float:
        """Time of a kernel call, looked up once."""
        known = self.kernels.get(call)
        if known is None:
            known = self.kernels[call] = self.profile.kernel_s(call)
        return known

    def _work_s(self, instruction: Instruction, block: Block) -> float:
        if instruction.stream == "cpu":  # all ranks of a node step at once
            return sum(self.profile.host_step_s(call, self.ranks) for call in instruction.body)
        work = sum(self.kernel_s(call) for call in instruction.body)
        if instruction.comm is not None:
            cost = self._comm(instruction.comm)
            work += cost.seconds + cost.delay_s
        elif instruction.stream in ("h2d", "d2h"):
            bytes_ = min(self._bytes(instruction.reads, block), self._bytes(instruction.writes, block))
            work += self.profile.copy_s(instruction.stream, bytes_, self.pcie_bytes_per_s)
        return work

    def _bytes(self, refs: tuple[int, ...], block: Block) -> int:
        return sum(block.buffers[ref].bytes if ref >= 0 else self.buffers[-1 - ref].bytes for ref in refs)

    def _comm(self, comm: Comm) -> CommCost:
        return self.profile.collective(comm.op, comm.bytes, comm.dtype, self.geometry(comm.role), comm.algorithm)

    def geometry(self, role: str) -> Geometry:
        """Where the group of a role sits; a role without a group is a group of one."""
        group_instance = self.symmetry_class.group_instances.get(role)
        return Geometry(1) if group_instance is None else group_instance.geometry

    def _channel(self, instruction: Instruction) -> tuple[str, str] | None:
        comm = instruction.comm
        if comm is None:
            return None
        group_instance = self.symmetry_class.group_instances.get(comm.role)
        return (comm.role, comm.channel) if group_instance is not None and group_instance.has_peers else None

    def _inner(self, instruction: Instruction) -> bool:
        group_instance = (
            None if instruction.comm is None else self.symmetry_class.group_instances.get(instruction.comm.role)
        )
        return not instruction.host_sync and (group_instance is None or group_instance.in_step)

    def _shares(self, instruction: Instruction, work_s: float) -> tuple[int, float]:
        """Millicores of compute, and its slow-down when all other cores compute too: the mean over the kernels,
        weighted by their time."""
        cores = self.profile.cores
        if cores is None:
            return 0, 1.0
        parts = [
            (self.kernel_s(call), cores.busy_slowdown.get(OPERATORS[call.op].kind, 1.0)) for call in instruction.body
        ]
        busy = sum(time * slow for time, slow in parts) / work_s if work_s > 0 and parts else 1.0
        return millicores(cores.threads_per_rank), busy

    def _comm_shares(self, cost: CommCost, work_s: float) -> tuple[int, float]:
        """Millicores of a communicating thread, which uses none while it is delayed, and how much longer it takes when
        every core computes."""
        cores = self.profile.cores
        if cores is None:
            return 0, 1.0
        used = cores.communication_demand * (cost.seconds / work_s if work_s > 0 else 1.0)
        beside_s = cost.seconds + max(cost.delay_beside_s, cost.delay_s)
        return millicores(used), beside_s / work_s if work_s > 0 else 1.0
