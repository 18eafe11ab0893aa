"""Communication across rank classes: transfers match, collectives are joined alike, and nobody waits in a circle.

Ranks of a class run the same program, so a communication inside a class is the same on all its members. What spans
classes (pipeline neighbours, `embed`, `model`, `world`, and any group a straggler has split) is compared here as
sequences, and then merged: the k-th communication of a channel is one *meeting* of all its classes. If the meetings
can be passed one by one, every class taking its own in host order, then host order is acyclic over all communicators
that share a GPU, which is what NCCL asks. A program that fails there is examined again as streams and waits see it
(`program.proofs.deadlock`), to say whether it would really deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

from program import Comm, StepProgram
from program.proofs.deadlock import stuck
from program.proofs.error import Named, Proof, ProofError, name

MIRROR = {"send": "recv", "recv": "send"}
Lane = tuple[str, str]  # role, channel
Meetings = tuple[
    list[list[int]], list[int]
]  # of each class, its meetings in host order; of each meeting, how many classes


class Entry(NamedTuple):
    """A communication of a class with others: its call and local id, and what must agree."""

    call: int
    local: int
    comm: Comm
    micro: int
    unit: int
    phase: str


def prove_order(program: StepProgram) -> None:
    """Raises ProofError (transfers, collectives, deadlock or rendezvous)."""
    spanning = _spanning(program)
    _prove_membership(program)
    lanes = [_lanes(program, class_, spanning) for class_ in range(len(program.classes))]
    for earlier, later in sorted(_neighbours(program)):
        _prove_transfers(program, (earlier, later), lanes)
    for role, components in spanning.items():
        for classes in components:
            _prove_collectives(program, role, classes, lanes)
    orders, need = _meetings(program, spanning, lanes)
    blocked = pass_all(orders, need)
    if blocked:
        _refuse(program, blocked, orders, lanes)


def _spanning(program: StepProgram) -> dict[str, list[tuple[int, ...]]]:
    """For every role but the pipeline's, the sets of classes that its groups join (only those of more than one
    class).
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for role, groups in program.groups.items():
        if role in ("pp_next", "pp_prev"):
            continue
        sets = {frozenset(program.class_of[rank] for rank in group.ranks) for group in groups}
        joined = [tuple(sorted(classes)) for classes in _unite(sets) if len(classes) > 1]
        if joined:
            found[role] = sorted(joined)
    return found


def _unite(sets: set[frozenset[int]]) -> list[frozenset[int]]:
    """Sets that overlap, united."""
    united: list[frozenset[int]] = []
    for one in sets:
        for other in [u for u in united if u & one]:
            united.remove(other)
            one |= other
        united.append(one)
    return united


def _neighbours(program: StepProgram) -> set[tuple[int, int]]:
    """Pairs of classes that are neighbours on some ring of stages, the earlier first."""
    pairs = set()
    for group in program.groups.get("pp_next", ()):
        if len(group.ranks) > 1:
            classes = [program.class_of[rank] for rank in group.ranks]
            pairs |= set(pairwise([*classes, classes[0]]))
    return pairs


def _prove_membership(program: StepProgram) -> None:
    """Every communication's role has a group for every rank of the class."""
    members = {role: {rank for group in groups for rank in group.ranks} for role, groups in program.groups.items()}
    outside = {
        role: {program.class_of[rank] for rank in range(program.world) if rank not in ranks}
        for role, ranks in members.items()
    }
    everybody = set(range(len(program.classes)))
    for class_, stage in enumerate(program.classes):
        for number, block in enumerate(stage.blocks):
            for local, instruction in enumerate(block.instructions):
                comm = instruction.comm
                if comm is not None and class_ in outside.get(comm.role, everybody):
                    call = next((c for c, placed in enumerate(stage.calls) if placed.block == number), None)
                    named = [] if call is None else [name(stage, class_, call, local)]
                    raise ProofError("collectives", f"no group of role {comm.role} holds every rank that joins", named)


def _lanes(program: StepProgram, class_: int, spanning: dict[str, list[tuple[int, ...]]]) -> list[Entry]:
    """A class's communications with other classes, in host order."""
    roles = {"pp_next", "pp_prev"} | {r for r, sets in spanning.items() if any(class_ in s for s in sets)}
    stage = program.classes[class_]
    entries = [
        [(k, i.comm, i.unit, i.phase) for k, i in enumerate(block.instructions) if i.comm and i.comm.role in roles]
        for block in stage.blocks
    ]
    return [
        Entry(here, local, comm, call.micro, unit, phase)
        for here, call in enumerate(stage.calls)
        for local, comm, unit, phase in entries[call.block]
    ]


def _by_channel(entries: list[Entry], role: str) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.comm.role == role:
            found[entry.comm.channel].append(entry)
    return found


def _prove_transfers(program: StepProgram, pair: tuple[int, int], lanes: list[list[Entry]]) -> None:
    """What the earlier stage exchanges with its next must mirror what the later exchanges with its previous."""
    mine, theirs = _by_channel(lanes[pair[0]], "pp_next"), _by_channel(lanes[pair[1]], "pp_prev")
    for channel in sorted(mine.keys() | theirs.keys()):
        ours, others = mine.get(channel, []), theirs.get(channel, [])
        for a, b in zip(ours, others, strict=False):
            difference = _transfer_difference(a, b)
            if difference:
                named = [_named(program, pair[0], a), _named(program, pair[1], b)]
                raise ProofError("transfers", f"on channel {channel}, {difference}", named)
        if len(ours) != len(others):
            _refuse_length(program, "transfers", channel, (pair[0], ours), (pair[1], others))


def _transfer_difference(a: Entry, b: Entry) -> str:
    x, y = a.comm, b.comm
    if MIRROR.get(x.op, x.op) != y.op:
        return f"a {x.op} meets a {y.op}"
    if x.bytes != y.bytes or x.dtype != y.dtype:
        return f"{x.bytes} bytes of {x.dtype} meet {y.bytes} bytes of {y.dtype}"
    if x.op == "exchange":  # each side is named after what it sends: opposite directions, different micro-batches
        return "" if a.phase != b.phase else f"two exchanges of phase {a.phase} meet: both send the same way"
    if a.micro != b.micro:
        return f"micro-batch {a.micro} meets micro-batch {b.micro}"
    if b.unit - a.unit != 1:
        return f"the edge behind unit {a.unit} meets the edge before unit {b.unit}"
    return ""


def _prove_collectives(program: StepProgram, role: str, classes: tuple[int, ...], lanes: list[list[Entry]]) -> None:
    """All classes of a component join the same collectives on every channel."""
    first = classes[0]
    mine = _by_channel(lanes[first], role)
    for other in classes[1:]:
        theirs = _by_channel(lanes[other], role)
        for channel in sorted(mine.keys() | theirs.keys()):
            ours, others = mine.get(channel, []), theirs.get(channel, [])
            for a, b in zip(ours, others, strict=False):
                if _what(a.comm) != _what(b.comm):
                    named = [_named(program, first, a), _named(program, other, b)]
                    reason = f"on {role}#{channel}, {_what(a.comm)} meets {_what(b.comm)}"
                    raise ProofError("collectives", reason, named)
            if len(ours) != len(others):
                _refuse_length(program, "collectives", f"{role}#{channel}", (first, ours), (other, others))


def _what(comm: Comm) -> str:
    op = "transfer" if comm.op in MIRROR else comm.op
    return f"{op} of {comm.bytes} bytes {comm.dtype} {comm.reduce}".rstrip()


def _refuse_length(
    program: StepProgram, proof: Proof, channel: str, one: tuple[int, list[Entry]], two: tuple[int, list[Entry]]
) -> None:
    (class_, longer), (other, shorter) = (one, two) if len(one[1]) > len(two[1]) else (two, one)
    reason = (
        f"on channel {channel}, class {class_} communicates {len(longer)} times and class {other} {len(shorter)} times"
    )
    raise ProofError(proof, reason, [_named(program, class_, longer[len(shorter)])])


def _meetings(program: StepProgram, spanning: dict[str, list[tuple[int, ...]]], lanes: list[list[Entry]]) -> Meetings:
    """Numbers every meeting; a pipeline's by the edge between stages it crosses."""
    stages = max(stage.stage for stage in program.classes) + 1
    numbers: dict[tuple[object, ...], int] = {}
    orders: list[list[int]] = []
    need: list[int] = []
    for class_, entries in enumerate(lanes):
        stage = program.classes[class_].stage
        edges: dict[str, object] = {"pp_next": stage, "pp_prev": (stage - 1) % stages}
        edges |= {
            role: (role, next(s for s in sets if class_ in s))
            for role, sets in spanning.items()
            if any(class_ in s for s in sets)
        }
        seen: dict[Lane, int] = defaultdict(int)
        order = []
        for entry in entries:
            lane = (entry.comm.role, entry.comm.channel)
            number = numbers.setdefault((edges[lane[0]], lane[1], seen[lane]), len(numbers))
            seen[lane] += 1
            if number == len(need):
                need.append(0)
            need[number] += 1
            order.append(number)
        orders.append(order)
    return orders, need


def pass_all(orders: list[list[int]], need: list[int]) -> dict[int, int]:
    """Let every class take its meetings in order; a meeting passes when all are there. Returns who is left (class →
    its place in its order).
    """
    place = [0] * len(orders)
    waiting: dict[int, list[int]] = defaultdict(list)
    ready = list(range(len(orders)))
    while ready:
        class_ = ready.pop()
        if place[class_] == len(orders[class_]):
            continue
        number = orders[class_][place[class_]]
        waiting[number].append(class_)
        if len(waiting[number]) == need[number]:
            for member in waiting.pop(number):
                place[member] += 1
                ready.append(member)
    return {class_: at for class_, at in enumerate(place) if at < len(orders[class_])}


def _refuse(program: StepProgram, blocked: dict[int, int], orders: list[list[int]], lanes: list[list[Entry]]) -> None:
    really = stuck(program, orders, lanes)
    if really:
        reason = "these wait for each other in a circle, whatever the streams do"
        raise ProofError("deadlock", reason, really)
    named = [_named(program, class_, lanes[class_][at]) for class_, at in _circle(blocked, orders)]
    reason = (
        "the host orders of these communications form a circle: NCCL may hang although streams and waits alone do not"
    )
    raise ProofError("rendezvous", reason, named)


def _circle(blocked: dict[int, int], orders: list[list[int]]) -> list[tuple[int, int]]:
    """Classes that wait for one another in a ring, with the place each stands at."""
    class_ = min(blocked)
    path: list[int] = []
    while class_ not in path:
        path.append(class_)
        number = orders[class_][blocked[class_]]
        class_ = next(c for c in blocked if c != class_ and number in orders[c][blocked[c] + 1 :])
    ring = path[path.index(class_) :]
    return [(c, blocked[c]) for c in ring]


def _named(program: StepProgram, class_: int, entry: Entry) -> Named:
    return name(program.classes[class_], class_, entry.call, entry.local)
