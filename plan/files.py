"""Reading YAML the way a careful user expects: a repeated key, an empty file or a list at the top is an error with
the place in it."""

from pathlib import Path
from typing import Any

import yaml

from plan.errors import InputError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_of(path: Path) -> str:
    """A file's text. Raises InputError when it is missing, a folder, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))[:8] if path.parent.is_dir() else []
        hint = f"; {path.parent} holds {', '.join(near)}" if near else ""
        raise InputError(f"{path} does not exist{hint}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def parse_yaml(text: str, where: str) -> Any:
    """One YAML document. Plain YAML keeps the last of two equal keys, silently; here that is an error."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node, set())
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {_place(error)}") from None
    finally:
        loader.dispose()


def mapping_from_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that must hold a mapping."""
    value = parse_yaml(text_of(path), str(path))
    if value is None:
        raise InputError(f"{path} is empty; a run file needs the sections model, cluster and plan")
    if not isinstance(value, dict):
        raise InputError(
            f"{path} holds a {type(value).__name__}; a run file is a mapping with the sections model, cluster and plan"
        )
    return value


def _refuse_repeated_keys(node: yaml.Node, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item, seen)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice", key.start_mark
                    )
                keys.add(key.value)
            _refuse_repeated_keys(value, seen)


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
