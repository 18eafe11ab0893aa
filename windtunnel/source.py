"""RUN on a command line: a run file, or a foreign file with what it does not say (`--cluster`, `--nodes`,
`--model`) beside it.

    source = RunSource("train.sh", ("plan.recompute=full",), cluster="dgx-a100-80gb", nodes=128)
    run = source.load()          # raises InputError
    source.notes                 # what the importer wants the user to know, after load
    source.assumptions           # what the file leaves open, and how it was decided
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plan.ledger import Assumption
from plan.run import Run, load, override
from program.errors import InputError
from windtunnel.assumed import left_open

YAML = (".yaml", ".yml")
SECTIONS = {"model", "cluster", "plan"}
FOREIGN = {"trainer", "model_config", "ddp", "mixed_precision", "fsdp_config", "max_duration"}
"""Sections of other frameworks' files, beside a `model` of theirs."""


@dataclass(slots=True)
class RunSource:
    """Where a run comes from. `notes`, `warnings` and `assumptions` are filled by `load`."""

    path: str
    overrides: tuple[str, ...] = ()
    cluster: str = ""
    nodes: int | None = None
    model: str = ""
    variables: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    accept_unknown: bool = False
    needs_cluster: bool = True
    words: Mapping[str, str] = field(default_factory=dict)
    """A foreign file's words for keys of a run; filled by `load`, as `notes` are."""
    format: str = "run"
    """What kind of file it is, after load."""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)

    def load(self) -> Run:
        """The run as resolved. Raises InputError with every problem of the file, the options and the rules."""
        raw = override(self.sections(), self.overrides)
        self._say_about_config(raw.get("model"))
        run = self._loaded(raw)
        if self.format == "run":
            self.assumptions += left_open(raw, run)
        return run

    def _loaded(self, raw: Mapping[str, Any]) -> Run:
        """The run; what is wrong with it is said in the words of its file."""
        try:
            return load(raw)
        except InputError as error:
            if not self.words:
                raise
            from importers.table import reworded

            raise type(error)(reworded(problem, self.words) for problem in error.problems) from None

    def translated(self) -> dict[str, Any]:
        """The resolved run as plain data; without a cluster, the sections that a foreign file means."""
        raw = override(self.sections(), self.overrides)
        self._say_about_config(raw.get("model"))
        return raw if self.format != "run" and "cluster" not in raw else self._loaded(raw).to_dict()

    def said(self) -> list[str]:
        """What a foreign file leaves open, warnings and notes, a line each; for a run file the defaults are its
        language's."""
        open_ = self.assumptions if self.format != "run" else []
        return [
            *(f"assumed: {each.subject} {each.value}; {each.flag} changes it ({each.moves})" for each in open_),
            *(f"warning: {text}" for text in self.warnings),
            *(f"note: {text}" for text in self.notes),
        ]

    def _say_about_config(self, model: object) -> None:
        """What a config.json in the place of the model says besides the model; `load` says what is wrong with it."""
        from plan.huggingface import in_model
        from plan.ledger import Ledger

        ledger = Ledger()
        with suppress(InputError):
            in_model(model, ledger)
        self.notes += ledger.notes
        self.warnings += ledger.warnings
        self.assumptions += ledger.assumptions

    def sections(self) -> dict[str, Any]:
        """The sections of a run file that RUN and the options mean, before `--set`."""
        if self.nodes is not None and self.nodes < 1:
            raise InputError(f"--nodes {self.nodes}: give at least 1")
        is_run = self.path == "-" or Path(self.path).suffix.lower() in YAML
        if self.variables and is_run:
            raise InputError(f"--var {self.variables[0]}: only a launch script has variables, and {self.path} is none")
        if self.path == "-":
            return self._with_options(_from_stdin())
        if Path(self.path).suffix.lower() in YAML:
            from plan.run import read_yaml

            raw = read_yaml(self.path)
            ours = SECTIONS & raw.keys() and not FOREIGN & raw.keys()
            if ours and len(SECTIONS & (raw.keys() | self._given())) > 1:
                return self._with_options(raw)
        return self._imported()

    def _given(self) -> set[str]:
        """Sections that the options bring."""
        return {name for name in ("model", "cluster") if getattr(self, name)}

    def _with_options(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The options replace the sections of the same name; `--nodes` alone replaces one key."""
        if self.model:
            raw["model"] = self.model
        if self.cluster:
            raw["cluster"] = {"preset": self.cluster}
        if self.nodes:
            given = raw.get("cluster")
            if given is None:
                raise InputError(f"--nodes {self.nodes}: {self.path} names no cluster; add --cluster PRESET")
            section = {"preset": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
            raw["cluster"] = {key: value for key, value in section.items() if key != "gpus"} | {"nodes": self.nodes}
        return raw

    def _imported(self) -> dict[str, Any]:
        from importers import import_file

        try:
            imported = import_file(
                self.path,
                cluster=self.cluster or None,
                nodes=self.nodes,
                model=self.model or None,
                variables=self._variables(),
                allow_read=self._folders(),
                overrides=self.overrides,
                accept_unknown=self.accept_unknown,
                needs_cluster=self.needs_cluster,
            )
        except InputError as error:
            raise type(error)(_with_remedy(problem) for problem in error.problems) from None
        self.words, self.format = imported.words, imported.format
        self.notes += imported.notes
        self.warnings += imported.warnings
        self.assumptions += imported.assumptions
        return dict(imported.run_dict)

    def _variables(self) -> dict[str, str]:
        pairs = [text.partition("=") for text in self.variables]
        wrong = [
            f"--var {name!r}: write NAME=VALUE, or 1=VALUE for the script's first argument"
            for name, equals, _ in pairs
            if not equals or not (name.isidentifier() or re.fullmatch(r"[0-9]{1,6}", name))
        ]
        if wrong:
            raise InputError(wrong)
        return {name: value for name, _, value in pairs}

    def _folders(self) -> list[Path]:
        """The folders of `--allow-read`."""
        wrong = [f"--allow-read {name}: there is no such folder" for name in self.allow_read if not Path(name).is_dir()]
        if wrong:
            raise InputError(wrong)
        return [Path(name) for name in self.allow_read]


def _with_remedy(problem: str) -> str:
    """The option that mends what an importer found missing."""
    undefined = "is not defined in the script" in problem or "are not defined in the script" in problem
    argument = re.search(r"the script's argument \$(\d+)", problem)
    if argument and not undefined:
        return f"{problem}; --var {argument[1]}=VALUE gives it"
    return f"{problem}; --var NAME=VALUE defines it" if undefined else problem


def _from_stdin() -> dict[str, Any]:
    from program.files import parse_yaml, text_in

    value = parse_yaml(text_in(sys.stdin.buffer, "standard input"), "standard input")
    if not isinstance(value, dict):
        raise InputError("standard input holds no run file: a mapping with the sections model, cluster and plan")
    return value
