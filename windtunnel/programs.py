"""What `windtunnel program` and `windtunnel import` print: a rank's instructions, the pipeline's schedule, a
foreign file as a run file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plan.errors import InputError
from plan.program import Placed, StepProgram, expand, label
from plan.run import Run
from windtunnel import output
from windtunnel.source import RunSource


def program_command(source: RunSource, rank: int, csv: bool, as_json: bool) -> int:
    """Print the program of `rank` as text, CSV (the schedule of all stages) or JSON."""
    from plan.program.text import program_text, schedule_csv
    from windtunnel.flight import compile_run

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


def program_json(program: StepProgram, rank: int) -> dict[str, Any]:
    """A rank's program as plain data: where it stands, its blocks, and its instructions in host issue order."""
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


def import_command(source: RunSource, target: str | None, as_json: bool) -> int:
    """Print, or write, the run file that RUN means, as resolved."""
    run = source.load()
    if as_json:
        output.emit_json({"run": run.to_dict(), "notes": source.notes, "warnings": source.warnings, "written": target})
    if target:
        _write(Path(target), run_yaml(run, source))
        output.note(f"wrote {target}")
    elif not as_json:
        output.emit(run_yaml(run, source))
    _notes(source)
    return 0


def export_command(source: RunSource, framework: str, target: str | None, as_json: bool) -> int:
    """Print, or write, the run as the launch script of another framework (today Megatron-LM)."""
    from plan.exporters import megatron_script

    script = megatron_script(source.load())
    if target:
        _write(Path(target), script)
        output.note(f"wrote {target}")
    if as_json:
        output.emit_json({"framework": framework, "script": script, "written": target})
    elif not target:
        output.emit(script)
    _notes(source)
    return 0


def run_yaml(run: Run, source: RunSource) -> str:
    """The run as a YAML run file that loads to an equal run; the importer's notes stand above it as comments."""
    import yaml

    head = [
        f"# from {Path(source.path).name}",
        *(f"# {line}" for note in (*source.warnings, *source.notes) for line in note.splitlines()),
    ]
    plain = json.loads(json.dumps(run.to_dict()))
    body = yaml.safe_dump(plain, sort_keys=False, width=110, default_flow_style=None, allow_unicode=True)
    return "\n".join(head) + "\n" + body


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None


def _notes(source: RunSource) -> None:
    for text in source.warnings:
        output.note(f"warning: {text}")
    for text in source.notes:
        output.note(f"note: {text}")
