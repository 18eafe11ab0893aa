"""What moving bytes between ranks costs: alpha-beta closed forms, measured tables, and which wires a group may use.

A collective on n ranks does `steps(op, n)` latencies and puts `wire_factor(op, n)` x bytes on every rank's link
(ring; the bytes are those of the full logical tensor). Inside a node the time is a measured table by size and ranks
where there is one. Across nodes the slower of two wires counts: the node's NICs, *all* of them for every group and
shared by the `links` groups that use them at once, and the NVLinks inside. A latency-bound all-reduce across nodes
goes up and down a tree of nodes instead of round the ring.

Sources: ring and tree volumes are the NCCL tests' "bus bandwidth" definitions; the all-NICs rule is what measured
multi-node bandwidths show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from calibration.lookup import Curve
from program.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Wires:
    """Data-sheet links of one node, from the cluster: what `nvlink: {...}` and `nics: {...}` of a run say. Bytes/s
    and seconds."""

    gpu_link_bytes_per_s: float
    nic_bytes_per_s: float
    nics: int
    nic_latency_s: float

    @staticmethod
    def of(cluster: Cluster) -> Wires:
        """The wires of a cluster's node type."""
        nics = cluster.nics
        return Wires(cluster.nvlink.bandwidth_gb_s * 1e9, nics.bandwidth_gb_s * 1e9, nics.count, nics.latency_us * 1e-6)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a group's ranks sit. `links`: groups that load the node's NICs at the same time (folded multiplicity);
    `ranks_per_node` 0 means ranks / nodes; `wires` None means the node the profile was measured on."""

    ranks: int
    nodes: int = 1
    ranks_per_node: int = 0
    links: int = 1
    wires: Wires | None = None


@dataclass(frozen=True, slots=True)
class CommCost:
    """Latency first, then `transfer_s` of work on a link that may be shared; `bus_bytes` is what crosses a rank's
    link. `delay_s` (ranks wait) or `delay_beside_s` (ranks compute) comes on top: time in which the collective's
    threads wait for a core and use none."""

    latency_s: float
    transfer_s: float
    bus_bytes: float
    delay_s: float = 0.0
    delay_beside_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time alone on the links, undelayed."""
        return self.latency_s + self.transfer_s

    def scaled(self, factor: float) -> CommCost:
        """The same with every time multiplied by `factor`."""
        times = (self.delay_s * factor, self.delay_beside_s * factor)
        return CommCost(self.latency_s * factor, self.transfer_s * factor, self.bus_bytes, *times)


PAIRS = ("send", "recv", "exchange")


def wire_factor(op: str, ranks: int) -> float:
    """Bytes on each rank's link per byte of the full tensor, on a ring: 2(n-1)/n, (n-1)/n, or 1 for a transfer."""
    if op in PAIRS:
        return 1.0
    once = (ranks - 1) / ranks
    return 2.0 * once if op == "all_reduce" else once


def steps(op: str, ranks: int) -> int:
    """Latencies in a row on a ring: 2(n-1), (n-1), or 1 for a transfer."""
    if op in PAIRS:
        return 1
    return 2 * (ranks - 1) if op == "all_reduce" else ranks - 1


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """One operation on `ranks` ranks of a node: total seconds by bytes, and the latency of one step."""

    op: str
    dtype: str
    ranks: int
    step_latency_s: float
    curve: Curve
    sigma: float
    delay_s: float = 0.0
    delay_beside_s: float = 0.0
    source: str = ""

    def cost(self, op: str, bytes_: int, ranks: int) -> CommCost:
        """This table's answer for `op` on `ranks`: the same link bandwidth, the latencies and wire bytes of the asked
        ring."""
        total = self.curve.seconds(bytes_)
        own_latency = min(total, self.step_latency_s * steps(self.op, self.ranks))
        latency = own_latency * steps(op, ranks) / steps(self.op, self.ranks)
        transfer = (total - own_latency) * wire_factor(op, ranks) / wire_factor(self.op, self.ranks)
        return CommCost(latency, transfer, wire_factor(op, ranks) * bytes_, self.delay_s, self.delay_beside_s)


@dataclass(frozen=True, slots=True)
class Network:
    """Between nodes. `efficiency`: share of the NICs' data-sheet rate a ring reaches; `step_latency_s` per ring step
    across NICs and `tree_latency_s` per level of a tree of nodes (None: the cluster's NIC latency); `pair_nics`: NICs
    one transfer can use. `tree_pipeline`: what cutting a message into chunks for the tree costs, in geometric means
    of levels and transfer (0: nothing; 2: the best that equal chunks can do)."""

    efficiency: float
    step_latency_s: float | None
    tree_latency_s: float | None
    tree_pipeline: float
    pair_nics: float
    reference: Wires
    sigma: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """Every collective time of a profile."""

    tables: tuple[CollectiveTable, ...]
    network: Network | None

    def cost(self, op: str, bytes_: int, dtype: str, geometry: Geometry, algorithm: str = "auto") -> CommCost:
        """Cost of one collective or transfer of `bytes_` (full tensor) alone on its links."""
        if bytes_ <= 0 or (geometry.ranks <= 1 and op not in PAIRS):
            return CommCost(0.0, 0.0, 0.0)
        if geometry.nodes <= 1 or self.network is None:
            return self._inside(op, bytes_, dtype, geometry, geometry.ranks)
        return self._across(self.network, op, bytes_, dtype, geometry, algorithm)

    def error_term(self, op: str, dtype: str, geometry: Geometry) -> tuple[str, float]:
        """(source, relative standard deviation) of what prices `op` on a group."""
        if geometry.nodes > 1 and self.network is not None:
            return self.network.source, self.network.sigma
        table = self.table(op, dtype, geometry.ranks)
        return ("", 0.0) if table is None else (table.source, table.sigma)

    def table(self, op: str, dtype: str, ranks: int) -> CollectiveTable | None:
        """The nearest table: same operation first, then a ring of the same kind; same dtype first; nearest number of
        ranks."""
        order = [op, "send", "all_gather"] if op in PAIRS else [op, "all_gather", "reduce_scatter", "all_reduce"]
        for name in order:
            same = [t for t in self.tables if t.op == name]
            same = [t for t in same if t.dtype == dtype] or [t for t in same if t.dtype == "*"] or same
            if same:
                return min(same, key=lambda t: (abs(math.log(t.ranks / max(ranks, 2))), -t.ranks))
        return None

    def _inside(self, op: str, bytes_: int, dtype: str, geometry: Geometry, ranks: int) -> CommCost:
        table = self.table(op, dtype, ranks)
        if table is None:
            return CommCost(0.0, 0.0, wire_factor(op, ranks) * bytes_)
        cost = table.cost(op, bytes_, ranks)
        if geometry.wires is None or self.network is None:
            return cost
        slower = self.network.reference.gpu_link_bytes_per_s / geometry.wires.gpu_link_bytes_per_s
        return replace(cost, transfer_s=cost.transfer_s * slower)

    def _across(
        self, network: Network, op: str, bytes_: int, dtype: str, geometry: Geometry, algorithm: str
    ) -> CommCost:
        wires = geometry.wires or network.reference
        node_rate = wires.nics * wires.nic_bytes_per_s * network.efficiency / max(1, geometry.links)
        step_s = wires.nic_latency_s if network.step_latency_s is None else network.step_latency_s
        bus = wire_factor(op, geometry.ranks) * bytes_
        if op in PAIRS:
            rate = min(node_rate, network.pair_nics * wires.nic_bytes_per_s * network.efficiency)
            return CommCost(step_s, bytes_ / rate, bytes_)
        per_node = geometry.ranks_per_node or max(1, geometry.ranks // geometry.nodes)
        inside = self._inside(op, bytes_, dtype, geometry, per_node) if per_node > 1 else CommCost(0.0, 0.0, 0.0)
        # The ring passes every rank, so the wire inside the node carries the whole group's volume.
        volume = wire_factor(op, geometry.ranks) / wire_factor(op, per_node) if per_node > 1 else 0.0
        transfer = max(bus / node_rate, inside.transfer_s * volume)
        within = steps(op, geometry.ranks) - steps(op, geometry.nodes)
        hop = inside.latency_s / steps(op, per_node) if per_node > 1 else 0.0
        ring = steps(op, geometry.nodes) * step_s + within * hop
        if op != "all_reduce" or algorithm == "ring":
            return CommCost(ring, transfer, bus)
        level_s = wires.nic_latency_s if network.tree_latency_s is None else network.tree_latency_s
        levels = 2 * math.ceil(math.log2(geometry.nodes)) * level_s
        tree = inside.latency_s + levels + network.tree_pipeline * math.sqrt(levels * transfer)
        return CommCost(tree if algorithm in ("tree", "hierarchical") else min(ring, tree), transfer, bus)
