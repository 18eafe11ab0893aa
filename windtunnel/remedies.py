"""What to change in a run that does not fit, each change forecast as the user would run it.

    told = remedied(source, simulated, forecast)     # the forecast with `remedies` and `advice`

A change is a few `--set`: the run is loaded anew from the user's own file, compiled and simulated like any other.
Closed forms (`plan.remedies.estimate`) choose which; how many follows from the size of their programs and not from a
clock, so that the answer is the same on every machine and takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from plan.remedies import (
    Changes,
    Remedy,
    applied,
    combined,
    estimate,
    less_offload,
    remedies,
    states_bytes,
    whole_states_bytes,
)
from program.errors import InputError
from program.gc_paused import gc_paused
from windtunnel.words import FOLLOWS, in_words

if TYPE_CHECKING:
    from plan.run import Run
    from reports.forecast import Forecast
    from reports.forecast import Remedied as Found
    from windtunnel.simulating import SimulatedRun
    from windtunnel.source import RunSource

GIB = 2.0**30
EFFORT, KEPT_BACK = 30, 12
"""What is compiled at most, in units of about 50 ms on a core; some is kept for the nearest plan."""
OF_ACTIVATIONS = ("micro-batch", "recompute", "sequence parallel", "partitioned")
SLACK = 1.1
"""Estimates above the card by less than this are simulated all the same."""


def remedied(source: RunSource, simulated: SimulatedRun, forecast: Forecast) -> Forecast:
    """A forecast that does not fit, with what to change."""
    search = _Search(source, simulated)
    found = [each for each in map(search.best, search.kinds()) if each is not None]
    if not any(each.fits for each in found) or states_bytes(search.parts) > search.room:
        found += [each for each in [search.nearest()] if each is not None]
    return replace(forecast, remedies=tuple(found), advice=tuple(_advice(search, found)))


@dataclass(slots=True)
class _Search:
    """Changes of one run, tried until `EFFORT` is spent."""

    source: RunSource
    simulated: SimulatedRun
    spent: int = 0
    most: int = EFFORT - KEPT_BACK

    @property
    def run(self) -> Run:
        return self.simulated.run

    @property
    def parts(self) -> dict[str, float]:
        """What the fullest stage holds at its peak, by part."""
        return dict(max(self.simulated.simulation.memory, key=lambda stage: stage.peak_reserved_bytes).parts)

    @property
    def room(self) -> float:
        """Bytes of a card that the allocator may hold."""
        return self.run.cluster.gpu_memory_gib * GIB - self.simulated.profile.allocator.context_bytes

    def kinds(self) -> list[list[Remedy]]:
        """Changes that can help, by kind, the mildest of a kind first."""
        if sum(self.parts.values()) <= self.room:  # it is the host that holds too much
            return [list(less_offload(self.run))]
        useless = OF_ACTIVATIONS if states_bytes(self.parts) > self.room else ()
        grouped = groupby(remedies(self.run), key=lambda remedy: remedy.kind)
        return [list(group) for kind, group in grouped if kind not in useless]

    def best(self, kind: list[Remedy]) -> Found | None:
        """The mildest change of a kind that fits; else its strongest, which does not."""
        likely = [each for each in kind if self.estimated(each) <= SLACK * self.room]
        cheap = [each for each in kind[-1:] if _cost(applied(self.run, each.changes)) <= EFFORT / 4]
        last = None
        for remedy in likely or cheap:
            last = self.tried(remedy) or last
            if last is not None and last.fits:
                break
        return last

    def nearest(self) -> Found | None:
        """The fewest changes together, in the order of the kinds, that fit."""
        last, self.most = None, EFFORT
        for remedy in combined(self.run):
            if self.estimated(remedy) <= SLACK * self.room:
                last = self.tried(remedy)
                if last is not None and last.fits:
                    return last
        return None

    def estimated(self, remedy: Remedy) -> float:
        """Bytes by closed forms."""
        return estimate(self.run, applied(self.run, remedy.changes), self.parts)

    def tried(self, remedy: Remedy) -> Found | None:
        """The change, forecast; None where the rules refuse it, or when enough was compiled."""
        from compiler import compile_run
        from reports.forecast import Remedied
        from reports.forecast_report import memory_of
        from simulator.simulation import simulate

        cost = _cost(applied(self.run, remedy.changes))
        if self.spent and self.spent + cost > self.most:
            return None
        try:
            run, sets = self.loaded(remedy)
            self.spent += cost
            profile = self.simulated.profile
            with gc_paused():
                simulation = simulate(compile_run(run), run.cluster, profile)
                memory = memory_of(run, profile, simulation)
        except (InputError, OverflowError):  # refused by the rules, or longer than any time
            return None
        return Remedied(
            change=remedy.what,
            set=sets,
            words=in_words(self.source.format, {key: remedy.changes[key] for key in _keys(sets)}, run),
            peak_gib=memory.peak_reserved_gib + memory.context_gib,
            step_time_s=simulation.step_time_s,
            fits=memory.fits,
            borderline=memory.borderline,
        )

    def loaded(self, remedy: Remedy) -> tuple[Run, tuple[str, ...]]:
        """The changed run and the shortest `--set` that gives it. Raises InputError where the rules refuse it."""
        asked, plan = dict(remedy.changes), applied(self.run, remedy.changes).plan
        try:
            short = {key: value for key, value in asked.items() if key not in FOLLOWS}
            run, sets = self._with(short)
            same = (run.plan.data_parallel, run.plan.global_batch_size)
            if same == (plan.data_parallel, plan.global_batch_size):
                return run, sets
        except InputError:
            if len(short) == len(asked):
                raise
        return self._with(asked)

    def _with(self, changes: Changes) -> tuple[Run, tuple[str, ...]]:
        sets = tuple(f"{key}={_yaml(value)}" for key, value in changes.items())
        overrides = (*self.source.overrides, *sets)
        return replace(self.source, overrides=overrides, notes=[], warnings=[], assumptions=[]).load(), sets


def _cost(run: Run) -> int:
    """Effort of compiling and simulating a run: blocks for each stage, and events of stages that wait for others."""
    stages = run.plan.stages
    return 1 + stages + stages**2 // 16


def _keys(sets: Iterable[str]) -> list[str]:
    return [text.partition("=")[0] for text in sets]


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _advice(search: _Search, found: list[Found]) -> list[str]:
    """What holds whatever is changed, and what fits."""
    run, said = search.run, []
    states, room, total = states_bytes(search.parts), search.room, run.model.parameters()
    if states > room:
        said.append(
            f"states alone exceed the card: {states / GIB:.1f} GiB of weights, gradients and optimizer a rank of "
            f"{room / GIB:.1f}; no smaller micro-batch and no recompute makes them less"
        )
    alone = [each for each in found if {"plan.micro_batch_size"} == {*_keys(each.set)} - {*FOLLOWS}]
    if alone and alone[0].fits:
        said.append(f"the largest micro-batch that fits is {alone[0].set[0].partition('=')[2]}")
    elif states <= room and run.plan.micro_batch_size == 1:
        said.append("the micro-batch is 1, the smallest: fewer tokens at once need a shorter sequence, or what follows")
    if fitting := [each for each in found if each.fits]:
        fastest = min(fitting, key=lambda each: each.step_time_s)
        said.append(f"the fastest of these that fits: {fastest.change}")
    else:
        whole = whole_states_bytes(run, search.parts)
        said.append(
            f"nothing that was tried fits {total / 1e9:.3g} B parameters on {run.cluster.gpus} of these cards: the "
            f"states are {whole / GIB:,.0f} GiB in all, which {math.ceil(whole / room)} of them hold at the least"
        )
    return said
