"""Groups follow coordinates: the ranks are a grid of tensor-parallel index, data-parallel index and stage.

A rank's place in its groups says where it stands along each axis. Whoever differs in one axis stands alike in the
others; members come in order of their place; a class's ranks are of its stage. So a shard, a neighbour and a sum belong
to the ranks that the program's placements speak of.
"""

from __future__ import annotations

from program import Group, StepProgram
from program.proofs.error import ProofError

ALONG = {"tp": "tp", "dp": "dp", "pp_next": "pp", "pp_prev": "pp"}  # role -> the axis its members differ in


def prove_grid(program: StepProgram) -> None:
    """Raises ProofError (`collectives`) for a group that no grid of ranks has."""
    places = {role: _places(program, role) for role in ALONG if role in program.groups}
    for role, along in ALONG.items():
        for group in program.groups.get(role, ()):
            _prove_group(program, group, along, places)
    for rank, class_ in enumerate(program.class_of):
        stage = program.classes[class_].stage
        index = places.get("pp_next", {}).get(rank, stage)
        if index != stage:
            raise ProofError("collectives", f"rank {rank} runs stage {stage} but stands at place {index} of its stages")
    _prove_wide(program, places)


def _places(program: StepProgram, role: str) -> dict[int, int]:
    """Every rank's place in its group of a role."""
    return {rank: place for group in program.groups[role] for place, rank in enumerate(group.ranks)}


def _prove_group(program: StepProgram, group: Group, along: str, places: dict[str, dict[int, int]]) -> None:
    ranks, many = group.ranks, program.degrees[along]
    if len(ranks) != many or list(ranks) != sorted(ranks):
        raise ProofError("collectives", f"group {ranks} of role {group.role} should be {many} ranks, in order")
    for role, other in ALONG.items():
        if other != along and len({places.get(role, {}).get(rank, 0) for rank in ranks}) > 1:
            raise ProofError("collectives", f"the ranks {ranks} of role {group.role} stand apart in role {role}")


def _prove_wide(program: StepProgram, places: dict[str, dict[int, int]]) -> None:
    """Groups over several axes: one model's ranks, everybody, the two ends of a ring of stages."""
    rings = {(group.ranks[0], group.ranks[-1]) for group in program.groups.get("pp_next", ()) if group.ranks}
    for role in ("model", "world", "embed"):
        for group in program.groups.get(role, ()):
            copies = {places.get("dp", {}).get(rank, 0) for rank in group.ranks}
            wanted = {"world": program.world, "model": program.degrees["tp"] * program.degrees["pp"]}.get(role, 2)
            apart = (role == "model" and len(copies) > 1) or (role == "embed" and group.ranks not in rings)
            if len(group.ranks) != wanted or apart:
                raise ProofError("collectives", f"group {group.ranks} of role {role} is not {wanted} ranks of one kind")
