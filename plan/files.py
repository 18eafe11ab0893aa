"""Reading YAML the way a careful user expects: a repeated key, an empty file or a list at the top is an error with
the place in it, and numbers are the decimal ones of YAML 1.2: `010` is ten and `1:30` or `2026-01-01` is text, where
YAML 1.1 reads eight, ninety and a date."""

import re
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from plan.errors import InputError
from plan.nearest import kind_of

MAXIMUM_BYTES = 64 << 20
MAXIMUM_NODES = 1_000_000  # with aliases written out; profiles have some ten thousand

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML 1.1 as PyYAML reads it, less its octal, sexagesimal, hexadecimal and binary numbers and its dates."""


_NUMBERS_AND_DATES = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS_AND_DATES]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|[-+]?\.[0-9][0-9_]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)"
        r"|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def text_of(path: Path) -> str:
    """A file's text. Raises InputError when it is missing, a folder, unreadable or not UTF-8."""
    try:
        with path.open("rb") as stream:
            return text_in(stream, str(path))
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))[:8] if path.parent.is_dir() else []
        hint = f"; {path.parent} holds {', '.join(near)}" if near else ""
        raise InputError(f"{path} does not exist{hint}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a null byte in the name
        raise InputError(f"{str(path)!r} is no file name: {error}") from None


def text_in(stream: BinaryIO, where: str) -> str:
    """A stream's text, with line ends as \\n. Raises InputError when it is not UTF-8, or endless (`/dev/zero`)."""
    content = stream.read(MAXIMUM_BYTES + 1)
    if len(content) > MAXIMUM_BYTES:
        raise InputError(f"{where} is larger than {MAXIMUM_BYTES >> 20} MiB, more than any file read here")
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not text: byte {error.start} is not UTF-8") from None


def parse_yaml(text: str, where: str) -> Any:
    """One YAML document. Plain YAML keeps the last of two equal keys, silently; here that is an error."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node, set())
        _written_out(node, {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {_place(error)}") from None
    except RecursionError:
        raise InputError(f"{where} nests lists or mappings too deeply to be read") from None
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:  # `!!int foo`, 5000 digits
        misfit = not isinstance(error, ValueError)
        said = "a tag does not fit its value" if misfit else str(error).partition("; use sys.")[0]
        raise InputError(f"{where} holds a value that cannot be read: {said}") from None
    finally:
        loader.dispose()


def mapping_from_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that must hold a mapping."""
    value = parse_yaml(text_of(path), str(path))
    if value is None:
        raise InputError(f"{path} is empty; a run file needs the sections model, cluster and plan")
    if not isinstance(value, dict):
        raise InputError(
            f"{path} holds {kind_of(value)}; a run file is a mapping with the sections model, cluster and plan"
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


def _written_out(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Nodes with every alias written out. Raises on an alias inside itself, and on more than MAXIMUM_NODES: a few
    aliases of aliases are more than a memory holds."""
    known = sizes.get(id(node))
    if known == 0:
        raise yaml.constructor.ConstructorError(None, None, "an alias stands inside itself", node.start_mark)
    if known is not None:
        return known
    sizes[id(node)] = 0
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    size = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(_written_out(part, sizes) for part in inner))
    if size > MAXIMUM_NODES:
        raise yaml.constructor.ConstructorError(
            None, None, f"aliases written out are more than {MAXIMUM_NODES:,} values", node.start_mark
        )
    sizes[id(node)] = size
    return size


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if problem.startswith("but "):  # the second half of a sentence
        problem = f"{getattr(error, 'context', None) or ''} {problem}".strip()
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
