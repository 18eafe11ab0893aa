"""Bodies become functions: readable source, views in place, rank's numbers as literals; and trainer/ knows no layer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import trainer
from kernels import registry
from program.lines import Body, Inside, Offset, Step, Stretches
from trainer.link import Standing, link

ROOT = Path(trainer.__file__).parent
STANDING = Standing({"tp": 1, "dp": 2}, {"tp": 2, "dp": 4})
WORDS = (
    "attn", "mlp", "embed.", "embedding", "head.", "gelu", "swiglu", "layernorm", "rmsnorm", "rotary", "rope_", "alibi",
    "gpipe", "1f1b", "zb-h1", "megatron", "deepspeed", "torch-fsdp", "unfused",
)  # fmt: skip


def test_the_trainer_knows_no_unit_piece_norm_schedule_or_implementation() -> None:
    """Neither a name nor a string of its syntax trees holds one of their words; docstrings may speak of anything."""
    found = []
    for path in sorted(ROOT.glob("*.py")):
        tree = ast.parse(path.read_text())
        prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        for node in ast.walk(tree):
            name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                name = node.value
            words = [word for word in WORDS if isinstance(name, str) and word in name.lower()]
            found += [f"{path.name}:{node.lineno} {name}" for _ in words[:1]]  # type: ignore[attr-defined]
    assert found == []


def test_a_body_is_straight_python_that_lets_go_of_what_it_used_last() -> None:
    body = Body(
        lines=(
            ("gemm", (0, 1), (2,), (("variant", "nt"),)),
            ("clone", (3,), (4,), ()),
            ("scale", (4,), (), (("factor", Step("lr")),)),
        ),
        arguments=2,
        results=(4,),
        views=((3, (2, (2, 1), (2, 1), Offset(("tp",), 1))),),
    )
    linked = link(body, vars(registry.bind("eager", "cpu")), STANDING)
    assert linked.source == (
        "def body(t0, t1, b0):\n"
        "    t2 = gemm(t0, t1, variant='nt')\n"
        "    t3 = t2.as_strided((2, 1), (2, 1), 1)\n"
        "    t4 = clone(t3)\n"
        "    t2 = t3 = None\n"
        "    scale(t4, factor=b0)\n"
        "    return (t4,)\n"
    )
    assert linked.bound == (Step("lr"),)
    a, b = torch.arange(4.0).view(2, 2), torch.eye(2)
    (result,) = linked.function(a, b, 10.0)
    assert result.tolist() == [[10.0], [30.0]]


def test_a_view_of_an_argument_begins_where_the_argument_does() -> None:
    body = Body((("clone", (1,), (2,), ()),), 1, (2,), views=((1, (0, (2,), (1,), Offset(("dp",), 2))),))
    flat = torch.arange(20.0)
    (mine,) = link(body, vars(registry.bind("eager", "cpu")), STANDING).function(flat[8:])
    assert mine.tolist() == [12.0, 13.0]


@pytest.mark.parametrize(
    ("axes", "first"), [((), 0), (("tp",), 3), (("dp",), 6), (("dp", "tp"), 15), (("tp", "dp"), 18)]
)
def test_a_shard_begins_where_its_axes_say_outer_to_inner(axes: tuple[str, ...], first: int) -> None:
    assert STANDING.number(Offset(axes, 3)) == first


def test_what_is_inside_a_limit_and_which_stretches_are_cut_to_the_shard() -> None:
    begin = Offset(("tp",), 10)
    assert [STANDING.number(Inside(begin, 10, limit)) for limit in (5, 13, 40)] == [0, 3, 10]
    assert STANDING.number(Stretches(((2, 8), (8, 12), (14, 15), (18, 30)), begin, 10)) == ((0, 2), (4, 5), (8, 10))


def test_an_operator_that_nobody_bound_is_named() -> None:
    with pytest.raises(KeyError, match="conjure"):
        link(Body((("conjure", (0,), (), ()),), 1, ()), {}, STANDING)
