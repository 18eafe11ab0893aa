"""`windtunnel program RUN` prints the step program, `windtunnel import FILE` the run file that a foreign file means,
`windtunnel export RUN` the launch script of another framework.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from program.errors import InputError
from windtunnel.commands import options as o

if TYPE_CHECKING:
    from collections.abc import Mapping

    from program import Placed, StepProgram
    from windtunnel.source import RunSource


def program(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, metavar="R", help="Whose program.")] = 0,
    csv: Annotated[
        bool, typer.Option("--csv", help="The pipeline schedule of all stages in PyTorch's CSV form.")
    ] = False,
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    accept_unknown: o.AcceptUnknown = False,
    as_json: o.Json = False,
) -> int:
    """Print the step program of a rank: every instruction, in host issue order, with waits and kernel calls."""
    from program.text import program_text, schedule_csv
    from windtunnel import output
    from windtunnel.simulating import compile_run
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read), accept_unknown)
    program = compile_run(source.load())
    if not 0 <= rank < program.world:
        raise InputError(f"--rank {rank}: the run has ranks 0 to {program.world - 1}")
    _notes(source)
    if csv:
        table = schedule_csv(program)
        lines = [line.split(",") for line in table.splitlines()]
        output.emit_json({"program_hash": program.hash, "schedule": lines}) if as_json else output.emit(table)
    elif as_json:
        output.emit_json(program_json(program, rank))
    else:
        output.emit_lines(program_text(program, rank))
    return 0


def import_(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    accept_unknown: o.AcceptUnknown = False,
    output: o.Output = "",
    as_json: o.Json = False,
) -> int:
    """Print the run file that a launch script or another framework's configuration means."""
    from windtunnel import output as say
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read), accept_unknown, False)
    plain, target = source.translated(), output or None
    if as_json:
        about: dict[str, Any] = {"assumptions": [asdict(each) for each in source.assumptions]}
        about |= {"notes": source.notes, "warnings": source.warnings}
        say.emit_json({"run": plain, **about, "written": target})
    if target:
        _write(Path(target), run_yaml(plain, source))
        say.note(f"wrote {target}")
    elif not as_json:
        say.emit(run_yaml(plain, source))
    _notes(source)
    return 0


class Framework(StrEnum):
    """Whose file to write."""

    megatron = "megatron"
    slurm = "slurm"
    deepspeed = "deepspeed"
    torchtitan = "torchtitan"


def export(
    run: o.RunFile,
    to: Annotated[Framework, typer.Option(help="Whose file to write.")] = Framework.megatron,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    accept_unknown: o.AcceptUnknown = False,
    output: o.Output = "",
    as_json: o.Json = False,
) -> int:
    """Print the file that starts this run under another framework; what it cannot say is refused or listed."""
    from compiler import laid_out
    from importers.exporters import megatron_script
    from importers.written import deepspeed_json, slurm_script, torchtitan_toml
    from windtunnel import output as say
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read), accept_unknown)
    target = output or None
    loaded, unsaid = laid_out(source.load()), list[str]()
    if to in (Framework.megatron, Framework.slurm):
        script = (megatron_script if to is Framework.megatron else slurm_script)(loaded)
    else:
        script, unsaid = (deepspeed_json if to is Framework.deepspeed else torchtitan_toml)(loaded)
    if target:
        _write(Path(target), script)
        say.note(f"wrote {target}")
    if as_json:
        say.emit_json({"framework": to.value, "script": script, "written": target})
    elif not target:
        say.emit(script)
    source.warnings += unsaid
    _notes(source)
    return 0


def program_json(program: StepProgram, rank: int) -> dict[str, Any]:
    """A rank's program as plain data: where it stands, its blocks, and its instructions in host issue order."""
    from program import expand

    number = program.class_of[rank]
    stage = program.classes[number]
    return {
        "program_hash": program.hash,
        "rank": rank,
        "world": program.world,
        "stage": stage.stage,
        "degrees": program.degrees,
        "rules": program.rules,
        "groups": {
            role: list(group.ranks)
            for role, groups in program.groups.items()
            for group in groups
            if rank in group.ranks
        },
        "resident_bytes": stage.resident_bytes,
        "blocks": [
            {"name": b.name, "instructions": len(b.instructions), "net_bytes": b.net_bytes, "peak_bytes": b.peak_bytes}
            for b in stage.blocks
        ],
        "instructions": [_instruction(placed) for placed in expand(stage)],
    }


def _instruction(placed: Placed) -> dict[str, Any]:
    from program import label

    what = placed.instruction
    return {
        "id": placed.id,
        "label": label(what.phase, what.kind, placed.micro, what.unit, what.piece),
        "phase": what.phase,
        "kind": what.kind,
        "micro": placed.micro,
        "unit": what.unit,
        "piece": what.piece,
        "stream": what.stream,
        "waits": list(placed.waits),
        "body": [asdict(call) for call in what.body],
        "comm": None if what.comm is None else asdict(what.comm) | {"seq": placed.seq},
        "transient_bytes": what.transient_bytes,
    }


def run_yaml(run: Mapping[str, Any], source: RunSource) -> str:
    """The sections of a run as a YAML run file that loads to an equal run, below the importer's notes as comments."""
    import yaml

    head = [
        f"# from {Path(source.path).name}",
        *(f"# {line.removeprefix('note: ')}" for said in source.said() for line in said.splitlines()),
    ]
    plain = json.loads(json.dumps(run))
    body = yaml.safe_dump(plain, sort_keys=False, width=110, default_flow_style=None, allow_unicode=True)
    return "\n".join(head) + "\n" + body


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None


def _notes(source: RunSource) -> None:
    from windtunnel import output

    for text in source.said():
        output.note(text)
