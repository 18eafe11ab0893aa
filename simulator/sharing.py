"""Work that shares a device or a node: how long it takes depends on what runs beside it, and that changes.

An `Activity` is an amount of work (picoseconds when alone) with a slow-down factor. Whenever the set of active work on
a device or node changes, the factors are found again, the work done so far is settled, and the end is scheduled anew;
the older end event carries an older version and is ignored.

Two causes, both from the profile: measured contention between streams of one device, and processor sharing of a CPU
node's cores among computing ranks and communicating threads. Beside several streams the largest factor counts: factors
are measured pair by pair.

Where contention slows compute alone (`Contention.one_way`, the usual profile) there is no need for activities: a
communication's window on its device is known as soon as it starts, and `slowed_end` says when compute ends among
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibration.profile import Profile
from program import STREAMS
from simulator.clock import Clock

COMPUTE = STREAMS.index("compute")
CPU = STREAMS.index("cpu")
TRANSFER = "transfer"
HOST = len(STREAMS)  # the host stream of a synchronous device, after the program's own streams


def millicores(cores: float) -> int:
    """Cores as whole thousandths."""
    return round(cores * 1000)


class Contention:
    """Slow-down factors between streams of a device: `factors[slow][beside]`.

    `active`: any factor is not 1. `one_way`: only compute is slowed, so that communications keep their durations.
    """

    def __init__(self, factors: list[list[float]]) -> None:
        self.factors = factors
        self.compute = factors[COMPUTE]
        width = range(len(factors))
        self.coupled = [[a != b and (factors[a][b] != 1.0 or factors[b][a] != 1.0) for b in width] for a in width]
        self.active = any(any(row) for row in self.coupled)
        others = (factor for stream, row in enumerate(factors) if stream != COMPUTE for factor in row)
        self.one_way = self.active and all(factor == 1.0 for factor in others)

    @staticmethod
    def of(profile: Profile) -> Contention:
        """What the profile measured (1 on the diagonal: one stream runs one thing at a time).

        Point-to-point streams go by the name `transfer`: what was measured beside collectives, which reduce on the
        device, says nothing about a transfer.
        """
        names = [TRANSFER if name.startswith(("send", "recv")) else name for name in (*STREAMS, "host")]
        pairs = [[(a, b) for b in names] for a in names]
        return Contention(
            [
                [1.0 if i == j else profile.contention(*pair) for j, pair in enumerate(row)]
                for i, row in enumerate(pairs)
            ]
        )


Window = tuple[int, int, float]  # from, until, slow-down of compute


def slowed_end(start: int, work: int, windows: Sequence[Window]) -> int:
    """When `work` picoseconds begun at `start` end, if it is slowed inside windows (by the largest factor where they
    overlap).

    Picoseconds are rounded down, and only where the factor changes is the work done so far settled. The end then
    depends on nothing that happens at it or later: a communication that follows another at this very picosecond is
    known to a merged segment, and not yet to an instruction of its own.
    """
    if not windows:
        return start + work
    cuts = sorted({edge for begin, end, _ in windows for edge in (begin, end) if edge > start})
    time, left, factor = start, float(work), _slowing(start, windows)
    for cut in cuts:
        after = _slowing(cut, windows)
        if after == factor:
            continue
        if int(left * factor) <= cut - time:
            break
        left -= (cut - time) / factor
        time, factor = cut, after
    return time + int(left * factor)


def _slowing(moment: int, windows: Sequence[Window]) -> float:
    return max((factor for begin, end, factor in windows if begin <= moment < end), default=1.0)


class Node:
    """The cores of one CPU node, in millicores (integers add up exactly): `computing` is what active compute and hosts
    ask for.

    Communicating threads sleep most of the time and use little, so that the scheduler lets them in: what compute costs
    them was measured whole (`busy`), and they share cores only where more threads compute than there are cores.
    """

    __slots__ = ("computing", "cores", "devices")

    def __init__(self, cores: int) -> None:
        self.cores = millicores(cores)
        self.computing = 0
        self.devices: list[Device] = []

    def factor(self, site: Site) -> float:
        """Slow-down of work at `site`; `site.busy` is its measured slow-down (>= 1) when all other cores compute."""
        if site.communicates:
            return self._beside_compute(site)
        demand = self.computing + self._communicating()
        spare = self.cores - site.own
        others = min(1.0, max(0.0, demand - site.own) / spare) if spare > 0 else 0.0
        return max(1.0, demand / self.cores) * (1.0 + (site.busy - 1.0) * others)

    def _beside_compute(self, site: Site) -> float:
        load = self.computing / self.cores
        return max(1.0, load) * (1.0 + (site.busy - 1.0) * min(1.0, load))

    def _communicating(self) -> float:
        """Millicores that communicating threads use: their work, spread over the time that it takes them."""
        sites = (site for device in self.devices for _, site in device.active if site.communicates)
        return sum(site.own * site.many / self._beside_compute(site) for site in sites)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a piece of work runs. `own` millicores asked for, `many` ranks doing the same on the node (folding)."""

    device: Device
    stream: int
    own: int = 0
    many: int = 1
    busy: float = 1.0

    @property
    def communicates(self) -> bool:
        """Whether a communicating thread runs it: neither compute nor the host, nor the host's optimizer."""
        return self.stream not in (COMPUTE, HOST, CPU)


class Device:
    """One rank's device: what is active on it."""

    __slots__ = ("active", "contention", "node")

    def __init__(self, contention: Contention, node: Node | None = None) -> None:
        self.contention = contention
        self.node = node
        self.active: list[tuple[Activity, Site]] = []
        if node is not None:
            node.devices.append(self)

    def factor(self, activity: Activity, site: Site) -> float:
        """Slow-down of work at `site` by what else is active."""
        row = self.contention.factors[site.stream]
        factor = max((row[at.stream] for other, at in self.active if other is not activity), default=1.0)
        return factor if self.node is None else factor * self.node.factor(site)


class Activity:
    """An amount of work on one or more sites (a collective's members advance together, at the slowest one's pace)."""

    __slots__ = ("clock", "done", "factor", "remaining", "since", "sites", "until", "version")

    def __init__(self, clock: Clock, sites: tuple[Site, ...], work_ps: int, done: Callable[[], None]) -> None:
        self.clock = clock
        self.sites = sites
        self.remaining = float(work_ps)
        self.done = done
        self.factor = 0.0  # not started
        self.since = self.until = clock.now
        self.version = 0

    def begin(self) -> None:
        """Join the active set now."""
        self.since = self.clock.now
        for site in self.sites:
            site.device.active.append((self, site))
            if site.device.node is not None and not site.communicates:
                site.device.node.computing += site.own * site.many
        self._refresh()

    def _refresh(self) -> None:
        seen: set[int] = set()
        for site in self.sites:
            node = site.device.node
            for device in (site.device,) if node is None else node.devices:
                for activity, _ in device.active:
                    if id(activity) not in seen:
                        seen.add(id(activity))
                        activity.retime()

    def retime(self) -> None:
        """Find the factor again; when it changed, settle what was done and schedule the end anew."""
        factor = max(site.device.factor(self, site) for site in self.sites)
        now = self.clock.now
        if factor == self.factor or (self.factor and now >= self.until):  # what ends at this very moment is not moved
            return
        if self.factor:
            self.remaining = max(0.0, self.remaining - (now - self.since) / self.factor)
        self.since = now
        self.factor = factor
        self.version += 1
        self.until = now + round(self.remaining * factor)
        self.clock.at(self.until, self._ended, self.version)

    def _ended(self, event: object) -> None:
        if event.value != self.version:  # type: ignore[attr-defined]
            return
        for site in self.sites:
            site.device.active.remove((self, site))
            if site.device.node is not None and not site.communicates:
                site.device.node.computing -= site.own * site.many
        self._refresh()
        self.done()
