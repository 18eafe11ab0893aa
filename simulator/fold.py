"""Folding: ranks that provably do the same thing at the same time are simulated once.

Two ranks may share a simulation when nothing in the job can tell them apart: same program, same geometry of every group
they are in, and partners that are in turn alike. That is the coarsest *equitable partition* of the ranks, found by
symmetry class refinement: start from (program class, geometry), split symmetry classes whose groups hold different
symmetry classes, until nothing splits. With TP8 · PP16 · DP8 on whole nodes 1,024 ranks fold into 16, one for each
stage; where some data-parallel rings cross nodes and others do not, or a pipeline edge crosses a node for a few ranks
only, more symmetry classes remain and the result is still exact. A folded group keeps its real size and its load on the
node's NICs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibration.collectives import Geometry, Wires
from program import StepProgram
from program.cluster import Cluster

PIPELINE = ("pp_next", "pp_prev")


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """What a communicator of one symmetry class is: `members` are the simulated symmetry classes that meet on it (one:
    nobody to wait for).

    `in_step`: they would fold to one symmetry class, so they must arrive together.
    """

    geometry: Geometry
    members: tuple[int, ...]
    name: tuple[str, tuple[int, ...]]
    in_step: bool

    @property
    def has_peers(self) -> bool:
        """Whether there is anybody to wait for."""
        return len(self.members) > 1


@dataclass(frozen=True, slots=True)
class SymmetryClass:
    """Ranks simulated as one. `group_instances` by role; `beside` counts the ranks of each symmetry class on its
    node."""

    index: int
    rank: int
    ranks: tuple[int, ...]
    program: int
    group_instances: dict[str, GroupInstance]
    node: int
    beside: dict[int, int]


class _Places:
    """Nodes of ranks and geometry of groups."""

    def __init__(self, program: StepProgram, cluster: Cluster) -> None:
        self.program = program
        self.node = [cluster.node_of(rank) for rank in range(program.world)]
        self.wires = Wires.of(cluster)
        self.group_of: dict[str, list[tuple[int, ...]]] = {}
        self.geometry: dict[str, list[Geometry]] = {}
        for role, groups in program.groups.items():
            self._place(role, [g.ranks for g in groups])

    def _place(self, role: str, groups: Sequence[tuple[int, ...]]) -> None:
        where: list[tuple[int, ...]] = [(rank,) for rank in range(self.program.world)]
        for ranks in groups:
            for rank in ranks:
                where[rank] = ranks
        self.group_of[role] = where
        geometry = self._edges(role, where) if role in PIPELINE else self._rings(groups)
        alone = Geometry(1, 1, 1, 1, self.wires)
        self.geometry[role] = [geometry.get(rank, alone) for rank in range(self.program.world)]

    def _rings(self, groups: Sequence[tuple[int, ...]]) -> dict[int, Geometry]:
        """Groups whose members belong to the same classes run at the same time and share the NICs of a node."""
        spread = [Counter(self.node[rank] for rank in ranks) for ranks in groups]
        kinds = [tuple(sorted({self.program.class_of[rank] for rank in ranks})) for ranks in groups]
        load: Counter[tuple[int, tuple[int, ...]]] = Counter()
        for nodes, kind in zip(spread, kinds, strict=True):
            if len(nodes) > 1:
                load.update((node, kind) for node in nodes)
        found = {}
        for ranks, nodes, kind in zip(groups, spread, kinds, strict=True):
            links = max(load[node, kind] for node in nodes) if len(nodes) > 1 else 1
            geometry = Geometry(len(ranks), len(nodes), max(nodes.values()), links, self.wires)
            found.update(dict.fromkeys(ranks, geometry))
        return found

    def _edges(self, role: str, where: list[tuple[int, ...]]) -> dict[int, Geometry]:
        """The transfer between a rank and its neighbour: ranks of a class that cross nodes do so together."""
        step = 1 if role == "pp_next" else -1
        peers = [neighbour(ring, rank, step) for rank, ring in enumerate(where)]
        classes, node = self.program.class_of, self.node
        out: Counter[tuple[int, int, int]] = Counter()
        into: Counter[tuple[int, int, int]] = Counter()
        for rank, peer in enumerate(peers):
            if node[rank] != node[peer]:
                out[node[rank], classes[rank], classes[peer]] += 1
                into[node[peer], classes[rank], classes[peer]] += 1
        found = {}
        for rank, peer in enumerate(peers):
            kind = (classes[rank], classes[peer])
            crosses = node[rank] != node[peer]
            links = max(out[node[rank], *kind], into[node[peer], *kind]) if crosses else 1
            found[rank] = Geometry(2, 2 if crosses else 1, 1 if crosses else 2, links, self.wires)
        return found


def neighbour(ring: tuple[int, ...], rank: int, step: int) -> int:
    """The rank `step` places after `rank` on its ring of stages."""
    return ring[(ring.index(rank) + step) % len(ring)]


def fold(
    program: StepProgram, cluster: Cluster, unfold: bool = False, shared_nodes: bool = False
) -> tuple[SymmetryClass, ...]:
    """The symmetry classes of a job, in order of their first rank. `unfold`: every rank its own. `shared_nodes`: ranks
    of a node slow each other (a CPU cluster), so what is on a node tells its ranks apart."""
    places = _Places(program, cluster)
    folded = _refine(program, places, shared_nodes)
    labels = list(range(program.world)) if unfold else folded
    ranks: dict[int, list[int]] = {}
    for rank, label in enumerate(labels):
        ranks.setdefault(label, []).append(rank)
    number = {label: index for index, label in enumerate(ranks)}
    symmetry_classes = [number[label] for label in labels]
    beside: dict[int, Counter[int]] = {}
    for rank, symmetry_class in enumerate(symmetry_classes):
        beside.setdefault(places.node[rank], Counter())[symmetry_class] += 1
    return tuple(
        SymmetryClass(
            index=number[label],
            rank=members[0],
            ranks=tuple(members),
            program=program.class_of[members[0]],
            group_instances={
                role: _group_instance(places, symmetry_classes, folded, (role, members[0])) for role in program.groups
            },
            node=places.node[members[0]],
            beside=dict(beside[places.node[members[0]]]),
        )
        for label, members in ranks.items()
    )


def _group_instance(
    places: _Places, symmetry_classes: list[int], folded: list[int], where: tuple[str, int]
) -> GroupInstance:
    role, rank = where
    ranks = places.group_of[role][rank]
    geometry = places.geometry[role][rank]
    if role in PIPELINE:
        peer = neighbour(ranks, rank, 1 if role == "pp_next" else -1)
        edge = (
            (symmetry_classes[rank], symmetry_classes[peer])
            if role == "pp_next"
            else (symmetry_classes[peer], symmetry_classes[rank])
        )
        members: tuple[int, ...] = edge if edge[0] != edge[1] else edge[:1]
        return GroupInstance(geometry, members, ("pp", edge), len(members) == 1)
    members = tuple(sorted({symmetry_classes[r] for r in ranks}))
    return GroupInstance(geometry, members, (role, members), len({folded[r] for r in ranks}) == 1)


def _refine(program: StepProgram, places: _Places, shared_nodes: bool) -> list[int]:
    """Symmetry class refinement to the coarsest equitable partition."""
    roles = list(program.groups)
    kinds = list(zip(program.class_of, *(places.geometry[role] for role in roles), strict=True))
    labels = _renumber(kinds)
    by_node: dict[int, list[int]] = {}
    if shared_nodes:
        for rank, node in enumerate(places.node):
            by_node.setdefault(node, []).append(rank)
    while True:
        views = [[label] for label in labels]
        for role in roles:
            _look(views, labels, role, [g.ranks for g in program.groups[role]])
        if by_node:
            _look_around(views, labels, by_node.values())
        finer = _renumber([tuple(view) for view in views])
        if max(finer) == max(labels):
            return finer
        labels = finer


def _look(views: list[list[int]], labels: list[int], role: str, groups: Sequence[tuple[int, ...]]) -> None:
    """Add to each rank's view the symmetry classes of those it meets in `role`."""
    if role not in PIPELINE:
        _look_around(views, labels, groups)
        return
    step = 1 if role == "pp_next" else -1
    for ranks in groups:
        count = len(ranks)
        for position, rank in enumerate(ranks):
            views[rank].append(labels[ranks[(position + step) % count]])


def _look_around(views: list[list[int]], labels: list[int], groups: Iterable[Sequence[int]]) -> None:
    """Add to each rank's view what symmetry classes its group has: a number, equal for equal symmetry classes. (The
    symmetry classes themselves would be hashed once a rank, which is the square of the world.)"""
    numbers: dict[tuple[int, ...], int] = {}
    for ranks in groups:
        seen = numbers.setdefault(tuple(sorted(labels[rank] for rank in ranks)), len(numbers))
        for rank in ranks:
            views[rank].append(seen)


def _renumber(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
