"""Where ranks stand on the axes of a plan, and the groups that communicate."""

from __future__ import annotations

from plan.model import Model
from plan.parallel import Plan
from program import Group


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """tp, cp, dp and pp index of a global rank; `rank_order` names axes from the fastest to the slowest."""
    sizes = _axes(plan)
    found = {}
    for axis in plan.rank_order.split("-"):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def _axes(plan: Plan) -> dict[str, int]:
    return {
        "tp": plan.tensor_parallel,
        "cp": plan.context_parallel,
        "ep": 1,  # expert parallelism re-uses data-parallel ranks
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
    }


def groups(model: Model, plan: Plan) -> dict[str, tuple[Group, ...]]:
    """Every group of every role, members in the order of the axis they differ in."""
    where = [coordinates(plan, rank) for rank in range(plan.world)]

    def along(role: str, *axes: str) -> tuple[Group, ...]:
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, at in enumerate(where):
            found.setdefault(tuple(n for axis, n in at.items() if axis not in axes), []).append(rank)
        ordered = [sorted(ranks, key=lambda r: [where[r][axis] for axis in reversed(axes)]) for ranks in found.values()]
        return tuple(Group(role, tuple(ranks)) for ranks in ordered)  # type: ignore[arg-type]

    made = {
        "tp": along("tp", "tp"),
        "dp": along("dp", "dp"),
        "pp_next": along("pp_next", "pp"),
        "pp_prev": along("pp_prev", "pp"),
        "model": along("model", "tp", "pp"),
        "world": along("world", "tp", "cp", "ep", "dp", "pp"),
    }
    if model.tied_embeddings and plan.pipeline_parallel > 1:
        made["embed"] = tuple(Group("embed", (g.ranks[0], g.ranks[-1])) for g in made["pp_next"])
    return made
