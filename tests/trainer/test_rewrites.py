"""Which lines replace which: rewritten lines leave what the lines they replace leave, in fp64 and for every rewrite."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from compiler.units import UnitShape, unit_shape
from plan.implementations import IMPLEMENTATIONS
from plan.implementations import rewrites as tables
from plan.run import Run
from program.lines import Apply, Lines, Unit, apply
from program.rewriting import Names, Rewrite, rewritten
from tests.compiler.test_units import units_of
from tests.trainer.lines import VARIANTS, Lined, declared, filled, make_run
from tests.trainer.ranks import GPT

TABLES: dict[str, tuple[Rewrite, ...]] = {
    "head": (tables.HEAD_BY_COLUMNS,),
    "layers": (tables.ALIBI_IN_PRODUCT, *tables.MEGATRON_LAYERS),
    **{f"gradients {name}": table for name, table in tables.ACCUMULATION.items() if table},
}
OWN = [name for name in VARIANTS if not name.startswith("autograd")]  # written as our trainer runs them
UNITS = ("embedding", "layer", "cut", "head")
Values = dict[str, torch.Tensor]


def _after(lined: Lined, run: Run, unit: Unit, number: int) -> Values:
    """Every tensor of a unit after its forward and backward."""
    torch.manual_seed(7)
    given = (n for n in declared(unit) if ":" in n or n in ("tokens", "targets", "x", "d2"))
    values = {n: filled(declared(unit)[n], run) for n in sorted(given)}
    lined.unit, lined.number = unit, number
    with torch.no_grad():
        for part in (*unit.forward, *unit.backward):
            assert isinstance(part, Lines)
            lined.run(part, values)
    return values


@cache
def _own(variant: str) -> tuple[Run, Lined, UnitShape, dict[str, Values]]:
    """A run, and every tensor of its units as they are written."""
    run = make_run(*VARIANTS[variant])
    shape = replace(unit_shape(run.model, run.plan), rewrites=())
    made = units_of(shape)
    lined = Lined(run, made["layer"], 1)
    return run, lined, shape, {name: _after(lined, run, made[name], _number(run, name)) for name in UNITS}


def _number(run: Run, unit: str) -> int:
    return {"embedding": 0, "head": run.model.layers + 1}.get(unit, 1)


def _counted(table: tuple[Rewrite, ...], used: Counter[tuple[str, ...]]) -> tuple[Rewrite, ...]:
    def counted(rewrite: Rewrite) -> Rewrite:
        def into(lines: tuple[Apply, ...], names: Names) -> tuple[Apply, ...]:
            made = rewrite.into(lines, names)
            used[rewrite.ops] += made != lines
            return made

        return Rewrite(rewrite.ops, into)

    return tuple(map(counted, table))


@pytest.mark.parametrize("table", TABLES)
def test_rewritten_lines_leave_what_the_lines_they_replace_leave(table: str) -> None:
    """The gradient of every parameter, the loss, outputs and whatever else both name; and every rewrite is met."""
    used: Counter[tuple[str, ...]] = Counter()
    for variant in OWN:
        run, lined, plain, written = _own(variant)
        made = units_of(replace(plain, rewrites=_counted(TABLES[table], used)))
        for name in UNITS:
            want, found = written[name], _after(lined, run, made[name], _number(run, name))
            # Sums of a cross entropy leave the target out or hold it: what its three rewrites agree on among them.
            shared = sorted(n for n in want.keys() & found.keys() if not n.startswith("sums"))
            assert {n for n in want if n[:2] in ("g:", "s:") or n in ("x2", "d0")} <= set(shared)
            for tensor in shared:
                size = float(want[tensor].double().abs().max())
                near = torch.allclose(found[tensor], want[tensor], rtol=1e-10, atol=1e-12 * (1 + size))
                assert near, (variant, name, tensor)
    assert [rewrite.ops for rewrite in TABLES[table] if not used[rewrite.ops]] == []


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_whatever_an_implementation_rewrites_is_held_here(name: str) -> None:
    held = {rewrite for table in TABLES.values() for rewrite in table}
    for plan in (
        {},
        {"kernels": "triton"},
        {"zero_stage": 1, "data_parallel": 2},
        {"zero_stage": 2, "data_parallel": 2},
    ):
        run = make_run(GPT, plan)
        assert set(IMPLEMENTATIONS[name].engine(run.plan).rewrites) <= held


def test_a_rewrite_takes_lines_in_a_row_and_is_not_applied_to_what_it_made() -> None:
    lines = (apply("scale", "x"), apply("clone", "x", "y"), apply("clone", "y", "z"), apply("scale", "z"))
    pair = Rewrite(("clone", "clone"), lambda taken, names: (apply("clone", taken[0].args[0] or "", "z"),))
    again = Rewrite(("scale",), lambda taken, names: (*taken, *taken))
    names = Names()
    found = rewritten(lines, (pair, again), names)
    assert [line.op for line in found] == ["scale", "scale", "clone", "scale", "scale"]
    assert names.made == {"y", "z"}
