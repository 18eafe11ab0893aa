"""Where tensors are: how every operator places its results, one axis at a time, and whether a unit's lines keep to what
its tensors declare.

    check(unit, "tp")        {"g:@.attn.norm.weight": "P+"}: gradients that still owe a sum over the axis

A tensor is `R` (every rank holds the same), `S<dim>` (sharded along a dimension), `P+` (a sum over ranks is owed) or
`Pmax` (a maximum is). A product over a dimension that both operands are sharded along owes a sum; whoever needs whole
values refuses what is owed, so a dropped all-reduce is found where its result is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from program.lines import Apply, Move, Tensor, Unit, owner

State = str
States = Sequence[State | None]
Placed = tuple[tuple[State, ...], dict[int, State]]
Rule = Callable[[States, Apply], Placed]


class Misplaced(Exception):
    """A line asks for a tensor otherwise than it is placed. The message names the operator and the states."""


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise Misplaced(why)


def _whole(states: States) -> None:
    for state in states:
        _need(state is None or not state.startswith("P"), f"a partial tensor ({state}) where a whole one is asked for")


def _same(states: States) -> State:
    _whole(states)
    found = [state for state in states if state is not None]
    _need(len(set(found)) == 1, f"placements differ: {', '.join(found)}")
    return found[0]


def _row(state: State | None) -> State:
    """Of an operator that needs whole rows."""
    _need(state in ("R", "S0"), f"a row is split or partial: {state}")
    assert state is not None
    return state


def _over_rows(state: State | None) -> State:
    """Of a sum over rows of (rows, width)."""
    _whole((state,))
    assert state is not None
    return {"S0": "P+", "S1": "S0"}.get(state, state)


def _contract(x: State, inner_x: int, y: State, inner_y: int) -> State:
    """Of a product: x's other dimension goes to rows, y's to columns."""
    if f"S{inner_x}" == x or f"S{inner_y}" == y:
        both = x == f"S{inner_x}" and y == f"S{inner_y}"
        _need(both, f"the contracted dimension is sharded on one side alone: {x}, {y}")
        return "P+"
    if "P+" in (x, y):
        _need({x, y} == {"P+", "R"}, f"a partial operand and one that is not whole: {x}, {y}")
        return "P+"
    _whole((x, y))
    _need("R" in (x, y), f"both operands are sharded, along other dimensions: {x}, {y}")
    return "S0" if x != "R" else "S1" if y != "R" else "R"


INNER = {"nt": (1, 1), "nn": (1, 0), "tn": (0, 0)}


def _gemm(states: States, line: Apply) -> Placed:
    x, y = states[:2]
    assert x is not None
    assert y is not None
    inner = INNER[str(dict(line.given).get("variant", "tn"))]
    made = _contract(x, inner[0], y, inner[1])
    if line.op != "gemm":
        return (), {2: made}
    if len(states) > 2 and states[2] is not None:
        _need(states[2] == ("S0" if made == "S1" else "R") and made != "P+", f"a bias {states[2]} on a product {made}")
    return (made,), {}


def _alike(states: States, line: Apply) -> Placed:
    return (_same(states),) * len(line.results), {}


def _of_first(states: States, line: Apply) -> Placed:
    _whole(states)
    assert states[0] is not None
    return (states[0],) * len(line.results), {}


def _to(becomes: Mapping[State, State]) -> Rule:
    def rule(states: States, line: Apply) -> Placed:
        state = _same(states)
        return (becomes.get(state, state),) * len(line.results), {}

    return rule


def _norm(states: States, line: Apply) -> Placed:
    rows = _row(states[0])
    _need(all(s in ("R", None) for s in states[1:]), "a norm's weights are whole on every rank")
    return (rows,) * len(line.results), {}


def _norm_gradient(tensors: int, weight: int | None, residual: int | None, grads: int) -> Rule:
    """`tensors` arguments are rows, then come the weight, the residual gradient, and from `grads` on the gradients."""

    def rule(states: States, line: Apply) -> Placed:
        rows = _same([_row(s) for s in states[:tensors]])
        _need(weight is None or states[weight] == "R", "a norm's weight is whole on every rank")
        if residual is not None and states[residual] is not None:
            _need(states[residual] == rows, f"the residual gradient is {states[residual]}, rows are {rows}")
        return (rows,) * len(line.results), {i: _over_rows(rows) for i in range(grads, len(states))}

    return rule


def _head_norm(states: States, line: Apply) -> Placed:
    heads = _same((states[0], states[2]))
    _need(heads in ("R", "S1"), f"a head is split: {heads}")
    _need(states[1] == "R", "a norm's weight is whole on every rank")
    return (heads,), {2: heads}


def _head_norm_gradient(states: States, line: Apply) -> Placed:
    heads = _same(states[:3])
    _need(heads in ("R", "S1"), f"a head is split: {heads}")
    _need(states[3] == "R", "a norm's weight is whole on every rank")
    return (), {0: heads, 4: "P+" if heads == "S1" else "R"}


def _residual(states: States, line: Apply) -> Placed:
    rows = _same(states[:2])
    _need(len(states) < 3 or states[2] in ("R", None), "a row bias is whole on every rank")
    return (rows,) * len(line.results), {}


def _residual_gradient(states: States, line: Apply) -> Placed:
    rows = _row(states[0])
    return (rows,) * len(line.results), {1: _over_rows(rows)} if states[1] is not None else {}


def _bias(states: States, line: Apply) -> Placed:
    return (), {1: _over_rows(states[0])}


def _look_up(states: States, line: Apply) -> Placed:
    _need(states[0] == "R" and states[1] in ("R", "S0"), f"a table {states[1]} for tokens {states[0]}")
    return ("P+" if states[1] == "S0" else "R",), {}


def _scatter(states: States, line: Apply) -> Placed:
    _need(states[0] == states[1] == "R", f"a gradient {states[0]} of whole rows")
    assert states[2] is not None
    return (), {2: states[2]}


def _positions(states: States, line: Apply) -> Placed:
    _need(states[1] == "R", "positions are whole on every rank")
    return (_row(states[0]),), {}


def _over_columns(made: State, whole: tuple[int, ...] = ()) -> Rule:
    """Of what runs over the columns of its first argument: `made` where they are sharded."""

    def rule(states: States, line: Apply) -> Placed:
        _whole(states[:1])
        _need(all(states[i] == "R" for i in whole), f"{', '.join(str(states[i]) for i in whole)} where whole is asked")
        _need(states[0] in ("R", "S1"), f"logits are {states[0]}")
        return (made if states[0] == "S1" else "R",) * len(line.results), {}

    return rule


def _anything(states: States, line: Apply) -> Placed:
    return tuple(s for s in states[:1] if s is not None) * len(line.results), {}


RULES: dict[str, Rule] = {
    **dict.fromkeys(("gemm", "gemm_add", "gemm_out"), _gemm),
    **dict.fromkeys(
        ("bmm", "bmm_add", "attention_forward", "attention_backward", "swiglu_forward", "swiglu_backward",
         "gelu_forward", "gelu_backward", "geglu_forward", "geglu_backward", "relu_forward", "relu_backward",
         "relu2_forward", "relu2_backward", "softcap_forward", "softcap_backward", "scaled", "softmax_forward",
         "softmax_backward", "drop", "drop_storing", "drop_stored", "clone", "cast", "copy", "rows_of", "fold_heads"),
        _alike,
    ),
    **dict.fromkeys(("rope_forward", "rope_backward", "alibi_add", "scale", "ce_columns"), _of_first),
    **dict.fromkeys(("rmsnorm_forward", "layernorm_forward"), _norm),
    "rmsnorm_backward": _norm_gradient(3, 3, 4, 5),
    "layernorm_backward": _norm_gradient(4, 4, 5, 6),
    "rmsnorm_heads_forward": _head_norm,
    "rmsnorm_heads_backward": _head_norm_gradient,
    "rmsnorm_input_gradient": _norm_gradient(3, 3, None, 4),
    "layernorm_input_gradient": _norm_gradient(4, 4, None, 5),
    "rmsnorm_weight_gradient": _norm_gradient(3, None, None, 3),
    "layernorm_weight_gradient": _norm_gradient(4, None, None, 4),
    **dict.fromkeys(("add", "add_storing"), _residual),
    "add_backward": _residual_gradient,
    "bias_grad": _bias,
    "embedding_forward": _look_up,
    "embedding_backward": _scatter,
    "position_forward": _positions,
    "position_backward": _bias,
    "ce_max": _over_columns("Pmax"),
    "ce_exp": _over_columns("P+", (1, 2)),
    "ce_loss": _over_columns("R", (1, 2, 3)),
    "shift_rows": _over_columns("R", (1,)),
    "exponentiate": _over_columns("P+", (1,)),
    "row_sums": _over_columns("P+"),
    "softmax_loss": _over_columns("R", (1, 2)),
    "flat_heads": _to({"S1": "S0"}),
    "merge_heads": _to({"S0": "S1"}),
    "alibi_scores": lambda states, line: ((states[1] or "R",), {}),
    "add_into": lambda states, line: ((), {0: states[1] or "R"}),
    **dict.fromkeys(("empty", "zeros_like"), _anything),
}  # fmt: skip
MOVES = {"AR": {"P+": "R", "Pmax": "R"}, "AG": {"S0": "R"}, "RS": {"P+": "S0"}}


def check(unit: Unit, axis: str) -> dict[str, State]:
    """Gradients that the unit's lines leave owing a sum over `axis`. Raises Misplaced where a line is given a tensor
    otherwise placed than it needs, or makes one otherwise placed than it is declared."""
    now: dict[str, State] = {}
    owed: dict[str, State] = {}
    for part in (*unit.forward, *unit.backward):
        where = f"{part.phase} {part.kind} {part.piece}"
        if isinstance(part, Move):
            _moved(unit.tensors, part, axis, now, where)
            continue
        for line in part.lines:
            try:
                _applied(unit.tensors, line, axis, now, owed)
            except Misplaced as error:
                raise Misplaced(f"{where}: {line.op}({', '.join(a or '-' for a in line.args)}): {error}") from None
    return owed


def _declared(tensor: Tensor, axis: str) -> State:
    return dict(tensor.at).get(axis, "R")


def _state(tensors: Mapping[str, Tensor], name: str, axis: str, now: Mapping[str, State]) -> State:
    """Where a tensor is by now; a view of what a collective made whole is whole."""
    held = owner(name, tensors)
    return (
        now.get(held, _declared(tensors[held], axis))
        if held == name or now.get(held) == "R"
        else _declared(tensors[name], axis)
    )


def _moved(tensors: Mapping[str, Tensor], move: Move, axis: str, now: dict[str, State], where: str) -> None:
    before = _state(tensors, move.source, axis, now)
    after = MOVES[move.kind].get(before)
    _need(after is not None, f"{where}: {move.kind} of {move.source}, which is {before}")
    _need((move.reduce == "max") == (before == "Pmax"), f"{where}: a {move.reduce or 'gather'} of {before}")
    assert after is not None
    if move.source != move.target:
        declared = _declared(tensors[move.target], axis)
        _need(after == declared, f"{where}: {move.target} is declared {declared} and becomes {after}")
    now[move.target] = after


def _applied(
    tensors: Mapping[str, Tensor], line: Apply, axis: str, now: dict[str, State], owed: dict[str, State]
) -> None:
    states = [
        None if name is None or tensors[name].make is not None else _state(tensors, name, axis, now)
        for name in line.args
    ]
    results, updates = RULES[line.op](states, line)
    for name, made in zip(line.results, results, strict=True):
        if name is not None:
            declared = _declared(tensors[name], axis)
            _need(made == declared, f"{name} is declared {declared} and made {made}")
            now.pop(name, None)
    for place, given in updates.items():
        changed = line.args[place]
        assert changed is not None
        declared = _declared(tensors[changed], axis)
        if changed.startswith("g:") and given == "P+":
            owed[changed] = given
        else:
            _need(given == declared, f"{changed} is declared {declared} and given {given}")
