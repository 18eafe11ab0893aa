"""Turns the stamps of recorded steps into measured timelines, one file a step and rank.

Stamps stay in memory until the run ends (or fails): writing a file between two steps would delay this rank, and every
rank that waits for it.
"""

from __future__ import annotations

import errno
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from program import expand
from program.timeline import Clock, Header, Timeline, save
from trainer.executor import Executor, StepResult
from trainer.streams import Stamp

TIMES = ("issued_s", "ready_s", "start_s", "end_s")


class Recorder:
    """Keeps what recorded steps stamped on one rank, and writes it."""

    def __init__(self, executor: Executor, clocks: Mapping[int, Clock], probe: Mapping[str, float]) -> None:
        self.executor, self.clocks, self.probe = executor, clocks, probe
        self._kept: list[tuple[int, float, Mapping[int, Stamp]]] = []
        self._placed = {placed.id: placed for placed in expand(executor.mine)}

    def keep(self, step: int, result: StepResult) -> None:
        """Keep a recorded step."""
        self._kept.append((step, result.time_s, result.stamps))

    def timeline(self, step: int, time_s: float, stamps: Mapping[int, Stamp]) -> Timeline:
        """One recorded step of this rank, on the first rank's clock."""
        rank, offset = self.executor.rank, self.clocks[self.executor.rank].offset_s
        columns: dict[str, list[Any]] = {
            name: []
            for name in ("phase", "kind", "micro", "unit", "piece", "stream", "bytes", "group", "channel", "seq")
        }
        for number in stamps:
            placed = self._placed[number]
            instruction, comm = placed.instruction, placed.instruction.comm
            columns["micro"].append(placed.micro)
            columns["seq"].append(placed.seq)
            columns["bytes"].append(0 if comm is None else comm.bytes)
            columns["group"].append("" if comm is None else comm.role)
            columns["channel"].append("" if comm is None else comm.channel)
            for name in ("phase", "kind", "unit", "piece", "stream"):
                columns[name].append(getattr(instruction, name))
        times = {name: [getattr(stamp, name) - offset for stamp in stamps.values()] for name in TIMES}
        many = {"rank": [rank] * len(stamps), "id": list(stamps), "step": [step] * len(stamps)}
        return Timeline.from_columns(self._header(step, time_s), columns | times | many)

    def _header(self, step: int, time_s: float) -> Header:
        program, rank = self.executor.program, self.executor.rank
        return Header(
            source="measured",
            program_hash=program.hash,
            device=_device(self.executor.device),
            run=dict(self.executor.job.run),
            versions={"python": platform.python_version(), "torch": torch.__version__},
            clocks={rank: self.clocks[rank]},
            machine_probe=dict(self.probe),
            groups={role: tuple(g.ranks for g in groups) for role, groups in program.groups.items()},
            steps=(step,),
            step_times_s=(time_s,),
        )

    def write(self, folder: Path) -> list[Path]:
        """Write every kept step as step-NNNNNN.rank-NNNN.json.gz and forget it. Raises OSError when the disk is full or
        `folder` was removed."""
        paths = []
        if self._kept and not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "was removed", str(folder))
        for step, time_s, stamps in self._kept:
            path = folder / f"step-{step:06d}.rank-{self.executor.rank:04d}.json.gz"
            try:
                save(self.timeline(step, time_s, stamps), path)
            except OSError as error:
                path.unlink(missing_ok=True)  # half a timeline is none
                raise OSError(error.errno, error.strerror, str(path)) from None
            paths.append(path)
        self._kept.clear()
        return paths


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {sys.platform})"
