"""A command line called in this process: `wt("forecast", "run.yaml", "--json")` gives exit code, stdout and stderr."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from windtunnel.cli import main

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq_length": 32, "vocab_multiple": 16},
    "cluster": "cpu",
    "plan": {"precision": "fp32", "tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 0},
}


@dataclass(frozen=True)
class Called:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as JSON."""
        return json.loads(self.out)


@pytest.fixture
def wt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Call the command line; whatever it does, it must exit, and never with a traceback."""

    def call(*arguments: object) -> Called:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err + seen.out
        return Called(int(ended.value.code or 0), seen.out, seen.err)

    return call


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """A tiny run file with sections changed: run_file(plan={"tensor_parallel": 4})."""

    def write(name: str = "run.yaml", **sections: Any) -> Path:
        merged = {
            key: {**value, **sections.pop(key, {})} if isinstance(value, dict) else sections.pop(key, value)
            for key, value in TINY.items()
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(merged | sections))
        return path

    return write
