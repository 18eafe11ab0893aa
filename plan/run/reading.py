"""Reading one section of a run file through its spec, with every problem as a sentence.

    spec, problems = read_section(PlanSpec, {"tensor_paralel": 8}, "plan")
    problems == ["unknown key plan.tensor_paralel: did you mean 'tensor_parallel'?"]

All wrong keys and values are reported at once, each with its dotted path, the value given and the nearest legal one.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from plan.run.schema import Spec
from program.nearest import did_you_mean, nearest_name, shown

S = TypeVar("S", bound=Spec)


def nested_spec(annotation: Any) -> type[Spec] | None:
    """The Spec inside an annotation such as `RopeSpec | None`, if there is one."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Spec) else None
    return next((found for part in get_args(annotation) if (found := nested_spec(part))), None)


def correct_keys(spec: type[Spec], raw: Mapping[Any, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """`raw` with every unknown key moved to the nearest known one (or dropped), and a sentence about each.

    Moving it lets the rest of the checks see what the user probably meant; the load still fails.
    """
    known = list(spec.model_fields)
    result: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in raw.items():
        name: str | None = str(key)
        if name not in spec.model_fields:
            spelt = key if isinstance(key, str) else shown(key)
            problems.append(f"unknown key {where}.{spelt}: {did_you_mean(str(key), known)}")
            name = nearest_name(str(key), known)
            if name is None or name in raw or name in result:
                continue
        assert name is not None
        inner = nested_spec(spec.model_fields[name].annotation)
        if inner is not None and isinstance(value, Mapping):
            value, more = correct_keys(inner, value, f"{where}.{name}")
            problems += more
        result[name] = value
    return result, problems


def read_section(spec: type[S], raw: object, where: str) -> tuple[S | None, list[str]]:
    """One section as its spec (None when a value is unusable), and every problem in it."""
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        return None, [
            f"{where} is {shown(raw)}; it must be a mapping with keys such as {', '.join(list(spec.model_fields)[:4])}"
        ]
    corrected, problems = correct_keys(spec, raw, where)
    try:
        return spec.model_validate(corrected), problems
    except ValidationError as error:
        return None, problems + _sentences(error, where, corrected)


def _sentences(error: ValidationError, where: str, raw: Mapping[str, Any]) -> list[str]:
    """Pydantic's errors as our sentences; the branches of a union are merged into one."""
    by_path: dict[str, list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = keys_of(detail, raw)
        by_path.setdefault(".".join([where, *path]), []).append(detail)
    return [_sentence(path, details) for path, details in by_path.items() if not _other_branch(path, details, by_path)]


def _other_branch(path: str, details: list[Any], by_path: Mapping[str, list[Any]]) -> bool:
    """Whether these complain that a mapping or a list is no word, where its own inside is what is wrong."""
    inside = any(other.startswith(f"{path}.") for other in by_path)
    return inside and all(isinstance(detail["input"], Mapping | list) for detail in details)


def keys_of(detail: Any, raw: Mapping[str, Any]) -> list[str]:
    """Where in a section one of pydantic's errors is."""
    return [str(part) for part in detail["loc"] if _is_key(part, raw, detail["loc"])]


def _is_key(part: object, raw: Mapping[str, Any], loc: tuple[Any, ...]) -> bool:
    """False for the union-branch labels that pydantic puts in a location ('literal[...]', a class name,
    'list[...]')."""
    text = str(part)
    return isinstance(part, int) or not (
        text.endswith("Spec") or "[" in text or text in ("int", "float", "str", "bool")
    )


OTHER_FORMS = {
    "plan.recompute": ", or {layers: n}",
    "plan.pipeline_layout": ", or a list with the number of units of each stage",
    "plan.schedule": ", FILE.csv, or a list with the rows of one",
    "model.rope.scaling": ", or a mapping with kind and factor",
    "model.window": ", a number of positions, or a mapping with size and full_every",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least {0}; the nearest is {0}"),
    "greater_than": ("gt", "above {0}"),
    "less_than_equal": ("le", "at most {0}; the nearest is {0}"),
    "less_than": ("lt", "below {0}"),
}


def _sentence(path: str, details: list[Any]) -> str:
    detail = details[0]
    given, kind = detail["input"], detail["type"]
    if kind == "missing":
        return f"{path} is missing"
    allowed = [d["ctx"]["expected"] for d in details if d["type"] == "literal_error"]
    if allowed:
        options = allowed[0].replace(" or ", ", ").replace("'", "").split(", ")
        near = nearest_name(str(given), options)
        hint = f"; the nearest is {near!r}" if near else ""
        return f"{path} is {shown(given)}; it must be one of {', '.join(options)}{OTHER_FORMS.get(path, '')}{hint}"
    if kind in BOUNDS:
        bound, sentence = BOUNDS[kind]
        return f"{path} is {shown(given)}; it must be {sentence.format(detail['ctx'][bound])}"
    if kind.startswith("bool"):
        return f"{path} is {shown(given)}; it must be true or false"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return (
        f"{path}: {message}"
        if kind == "value_error"
        else f"{path} is {shown(given)}: {message[0].lower()}{message[1:]}"
    )
