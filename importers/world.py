"""How many GPUs a launch uses, from everything that says so: SLURM header, launcher options, well-known variables, the
command line.

Statements inside one script must agree: two world sizes are a problem that quotes both. What the user adds on the
command line (`nodes`, `cluster`) is a deliberate what-if: it wins, with a warning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from importers.deepspeed_optimizer import Semantics
from plan import presets
from plan.ledger import Ledger

Quantity = Literal["nodes", "gpus_per_node", "gpus"]
TITLES: dict[str, str] = {
    "nodes": "numbers of nodes",
    "gpus_per_node": "numbers of GPUs per node",
    "gpus": "world sizes",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One claim about the size of the job, and where it stands."""

    quantity: Quantity
    value: int
    where: str


@dataclass(frozen=True, slots=True)
class World:
    """What is known of the size; None where nothing says so. `where` names the deciding statements."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    where: str = ""

    @property
    def size(self) -> int | None:
        """The number of GPUs, when known."""
        if self.gpus is not None:
            return self.gpus
        return self.nodes * self.gpus_per_node if self.nodes and self.gpus_per_node else None


@dataclass(frozen=True, slots=True)
class Request:
    """What the user adds to a file: the cluster, the number of nodes, a model, the DeepSpeed release, overrides."""

    cluster: str | Mapping[str, Any] | None = None
    nodes: int | None = None
    model: str | Mapping[str, Any] | None = None
    semantics: Semantics = "current"
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What `--set` says, by dotted keys."""
    accept_unknown: bool = False
    """Whether unknown flags that may change the model, its precision or its layout are left out with a warning."""
    needs_cluster: bool = True
    script: bool = False

    def of(self, section: str, keys: Sequence[str]) -> dict[str, Any]:
        """What `--set` says of some keys of a section."""
        return {key: self.asked[f"{section}.{key}"] for key in keys if f"{section}.{key}" in self.asked}

    def ranks(self, world: "World") -> int | None:
        """Data-parallel ranks of a file that knows of no other: what --set says of the degrees counts."""
        degrees = self.of("plan", ("tensor_parallel", "pipeline_parallel", "context_parallel"))
        share = prod(degree for degree in degrees.values() if isinstance(degree, int))
        return world.size // share if world.size and share > 0 and world.size % share == 0 else None

    @property
    def sized(self) -> bool:
        """Whether the user says how many nodes or GPUs run."""
        stated = self.cluster if isinstance(self.cluster, Mapping) else {}
        asked = {"nodes", "gpus"} & {*stated, *self.of("cluster", ("nodes", "gpus"))}
        return self.nodes is not None or bool(asked)


def agree(statements: list[Statement], ledger: Ledger) -> World:
    """The world the statements of one script describe together. Contradictions become problems with both values."""
    chosen: dict[str, Statement] = {}
    for statement in statements:
        first = chosen.setdefault(statement.quantity, statement)
        if first.value != statement.value:
            ledger.problem(
                f"two {TITLES[statement.quantity]}: {first.value} ({first.where}) and {statement.value}"
                f" ({statement.where}); make them equal, or delete one"
            )
    nodes, per_node, gpus = (chosen[key].value if key in chosen else None for key in ("nodes", "gpus_per_node", "gpus"))
    if gpus is not None and nodes and per_node and nodes * per_node != gpus:
        if gpus == nodes:  # some schedulers call the number of nodes WORLD_SIZE
            ledger.note(f"{chosen['gpus'].where} = {gpus} is read as the number of nodes, which it equals")
        else:
            ledger.problem(
                f"two world sizes: {gpus} ({chosen['gpus'].where}) and {nodes} nodes × {per_node} GPUs ="
                f" {nodes * per_node} ({chosen['nodes'].where}, {chosen['gpus_per_node'].where}); make them equal"
            )
        gpus = nodes * per_node
    elif gpus is not None and nodes and not per_node and gpus % nodes == 0:
        per_node = gpus // nodes
    elif gpus is not None and per_node and not nodes and gpus % per_node == 0:
        nodes = gpus // per_node
    return World(nodes, per_node, gpus, ", ".join(dict.fromkeys(each.where for each in chosen.values())))


def cluster_section(
    world: World, request: Request, found: Mapping[str, Any], ledger: Ledger
) -> tuple[dict[str, Any], World]:
    """The `cluster:` section and the final world.

    What the `request` says wins; `found` is what the file itself says about the cluster (a preset, links).
    """
    cluster, nodes = request.cluster, request.nodes
    section = _stated(cluster, found, ledger)
    asked = request.of("cluster", ("nodes", "gpus", "gpus_per_node"))
    section |= request.of("cluster", ("preset",)) | asked
    if asked:
        per_node = asked.get("gpus_per_node", world.gpus_per_node)
        nodes = None if "gpus" in asked else asked.get("nodes", nodes)
        world = World(nodes or (None if "gpus" in asked else world.nodes), per_node, asked.get("gpus"), "--set")
        if "gpus" in asked:
            section.pop("nodes", None)
    else:
        world = _overridden(world, nodes, ledger)
    preset = _preset(section, ledger)
    count = nodes or world.nodes or _whole(section.get("nodes"))
    per_node = world.gpus_per_node or _whole(section.get("gpus_per_node")) or _whole(preset.get("gpus_per_node"))
    gpus = _whole(section.get("gpus")) if cluster is not None and section.get("gpus") else world.gpus
    if gpus is not None and (count is None or per_node is None or count * per_node != gpus):
        section |= {"gpus": gpus}
        section.pop("nodes", None)
        count = None
    if count is not None and section:
        section["nodes"] = count
    if world.gpus_per_node and world.gpus_per_node != preset.get("gpus_per_node"):
        section["gpus_per_node"] = world.gpus_per_node
        section |= _cut(section, preset, world, ledger)
    if not section and (count or world.gpus):
        section = {"gpus": world.gpus} if world.gpus and not count else {"nodes": count}
        section |= {"gpus_per_node": world.gpus_per_node} if world.gpus_per_node else {}
    if "preset" not in section and "gpu" not in section and not request.needs_cluster:
        return {}, World(count, per_node, gpus, world.where)
    if "preset" not in section and "gpu" not in section:
        known = ", ".join(name for name in presets.names("clusters") if name != "cpu")
        ledger.problem(f"nothing says which GPUs run this: give --cluster PRESET --nodes N (presets: {known})")
        return section, World(count, per_node, gpus, world.where)
    if count is None and gpus is None and world == World():
        ledger.assume("nodes", f"one of {per_node} GPUs", "--nodes N", "batch, step time and memory")
    if not world.gpus_per_node and per_node and (count or gpus is None) and "gpus_per_node" not in section:
        flag = "--nproc_per_node" if request.script else "--set cluster.gpus_per_node=N"
        ledger.assume("GPUs a node", f"{per_node}, as in {section.get('preset')}", flag, "batch and communication")
    count = count or (None if gpus else _whole(preset.get("nodes")) or 1)
    return section, World(count, per_node, gpus, world.where or ("--cluster" if cluster is not None else ""))


def _cut(section: Mapping[str, Any], preset: Mapping[str, Any], world: World, ledger: Ledger) -> dict[str, Any]:
    """A node that the file cuts to fewer GPUs than the preset's has its share of the NICs; both numbers are said."""
    per_node, whole, nics = world.gpus_per_node, _whole(preset.get("gpus_per_node")), preset.get("nics")
    if not per_node or not whole or world.where == "--set":
        return {}
    sentence = f"a node of {section.get('preset')} has {whole} GPUs, the file starts {per_node} on each ({world.where})"
    count = _whole(nics.get("count")) if isinstance(nics, Mapping) else None
    if per_node > whole or not count or "nics" in section:
        ledger.warn(f"{sentence}; {per_node} are taken")
        return {}
    share = max(1, count * per_node // whole)
    ledger.warn(
        f"{sentence}: nodes of {per_node} GPUs with {share} of the {count} NICs are taken; --set"
        f" cluster.gpus_per_node={whole} takes whole nodes"
    )
    return {"nics": {**nics, "count": share}} if isinstance(nics, Mapping) else {}


def _stated(cluster: str | Mapping[str, Any] | None, found: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The cluster of the command line, else the file's."""
    if cluster is None:
        return dict(found)
    section = {"preset": cluster} if isinstance(cluster, str) else dict(cluster)
    if found and found.get("preset") != section.get("preset"):
        stated = ", ".join(f"{key} {value}" for key, value in found.items())
        ledger.warn(f"the file describes its cluster ({stated}); the one given on the command line is used instead")
    return section


def _overridden(world: World, nodes: int | None, ledger: Ledger) -> World:
    """The file's world under the command line's number of nodes."""
    if nodes is None:
        return world
    if world.nodes is not None and nodes != world.nodes:
        ledger.warn(f"the script says {world.nodes} nodes ({world.where}), the command line {nodes}: {nodes} are used")
        return World(nodes, world.gpus_per_node, None, "--nodes")
    if world.nodes is None and world.gpus is not None and world.gpus_per_node is None:
        ledger.warn(
            f"the script says {world.gpus} GPUs ({world.where}), the command line {nodes} nodes: {nodes} nodes are used"
        )
        return World(nodes, None, None, "--nodes")
    return world


def _preset(section: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    name = section.get("preset")
    if name is None:
        return {}
    try:
        return presets.preset("clusters", str(name))
    except ValueError as error:
        ledger.problem(f"--cluster: {error}")
        return {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
