"""`windtunnel program` and `windtunnel import` print what the compiler made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from plan.run import load
from program import expand
from windtunnel.api import compile_run

Call = Callable[..., Any]


def test_text_has_a_line_for_every_instruction(run_file: Call, wt: Call) -> None:
    path = run_file()
    program = compile_run(load(path))
    lines = [line for line in wt("program", path, "--rank", 1).out.splitlines() if not line.startswith("#")]
    assert len(lines) == len(list(expand(program.classes[0])))
    assert any("tp#" in line for line in lines)


def test_json_instructions_are_the_programs(run_file: Call, wt: Call) -> None:
    path = run_file()
    found = wt("program", path, "--json").json
    placed = list(expand(compile_run(load(path)).classes[0]))
    assert [item["id"] for item in found["instructions"]] == [p.id for p in placed]
    assert [tuple(item["waits"]) for item in found["instructions"]] == [p.waits for p in placed]
    assert found["groups"]["tp"] == [0, 1]
    assert found["world"] == 2


def test_overrides_reach_the_compiler(run_file: Call, wt: Call) -> None:
    path = run_file()
    more = wt("program", path, "--set", "plan.global_batch_size=4", "--json").json
    assert more["degrees"]["microbatches"] == 4
    assert more["program_hash"] != wt("program", path, "--json").json["program_hash"]


def test_csv_is_the_schedule_of_all_stages(run_file: Call, wt: Call) -> None:
    path = run_file(
        plan={"tensor_parallel": 1, "sequence_parallel": False, "pipeline_parallel": 2, "global_batch_size": 2}
    )
    called = wt("program", path, "--csv")
    assert called.out.splitlines()[0].startswith("0F0")
    assert len(called.out.splitlines()) == 2
    rows = wt("program", path, "--csv", "--json").json["schedule"]
    assert [",".join(row) for row in rows] == called.out.splitlines()


def test_import_prints_a_run_file_that_loads_to_the_same_run(run_file: Call, wt: Call, tmp_path: Path) -> None:
    path = run_file()
    text = wt("import", path).out
    assert load(yaml.safe_load(text)) == load(path)
    written = wt("import", path, "--output", tmp_path / "deep" / "out.yaml")
    assert written.code == 0
    assert load(tmp_path / "deep" / "out.yaml") == load(path)
    assert load(wt("import", path, "--json").json["run"]) == load(path)


def test_import_into_a_place_that_cannot_be_written(run_file: Call, wt: Call) -> None:
    path = run_file()
    called = wt("import", path, "--output", path / "out.yaml")
    assert called.code == 2
    assert "cannot be written" in called.err


def test_a_run_file_on_standard_input(run_file: Call, wt: Call, monkeypatch: Any) -> None:
    path = run_file()
    with path.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert wt("import", "-").code == 0
