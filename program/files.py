"""Reading files within bounds, and YAML the way a careful user expects: a repeated key, an empty file or a list at the
top is an error with the place in it, and numbers are the decimal ones of YAML 1.2: `010` is ten and `1:30` or
`2026-01-01` is text, where YAML 1.1 reads eight, ninety and a date.

A text that is read whole holds at most 64 MiB and two million values; what a run recorded is read as a stream, up to
`most_bytes()` after unpacking (1 GiB, unless `reading_up_to` says more). Numbers beyond 10^18, deep nesting and halves
of a character are refused here, for every format alike (`refuse_unreadable`).
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from program.errors import InputError
from program.nearest import LARGEST, TOO_LARGE, kind_of, shown

GIB = 2**30
CHUNK = 1 << 20
MAXIMUM_BYTES = 64 << 20
MAXIMUM_NODES = 1_000_000  # with aliases written out; profiles have some ten thousand
MAXIMUM_MARKS = 2_000_000  # characters that may begin a value: parsed, each takes some hundred bytes
MAXIMUM_DEPTH = 100  # lists and mappings inside each other
_most_bytes: ContextVar[int] = ContextVar("most_bytes", default=GIB)


@contextmanager
def reading_up_to(gib: float) -> Iterator[None]:
    """Within, recorded files are read up to `gib` GiB after unpacking. Raises InputError when that is no size."""
    if not 0 < gib <= 2**20:  # not a number neither
        raise InputError(f"--max-input-gib {gib}: give a size above 0, at most {2**20} GiB")
    token = _most_bytes.set(math.ceil(gib * GIB))
    try:
        yield
    finally:
        _most_bytes.reset(token)


def most_bytes() -> int:
    """How many bytes of a recorded file are read, unpacked."""
    return _most_bytes.get()


def chunks_of(path: Path, packed: bool = False) -> Iterator[bytes]:
    """A recorded file's content in pieces of at most 1 MiB, unpacked when it is `packed` with gzip. Raises InputError
    when it is missing, damaged, or longer than `most_bytes()`: nothing beyond that is unpacked."""
    most, seen = most_bytes(), 0
    if path.exists() and not path.is_file():  # opening a named pipe would wait for whoever writes it
        raise InputError(f"{path} cannot be read: it is no regular file")
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            while content := stream.read(CHUNK):
                seen += len(content)
                if seen > most:
                    raise InputError(_too_long(path, packed, most))
                yield content
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} {'is not a gzipped JSON file' if packed else 'cannot be read'}: {what}") from None
    except ValueError as error:  # a null byte in the name
        raise InputError(f"{str(path)!r} is no file name: {error}") from None


@contextmanager
def parsing(where: str, inside: str) -> Iterator[None]:
    """What a parser of a text cannot bear, as an InputError: nesting (of lists or `inside`) beyond the interpreter's
    stack, and numbers of thousands of digits."""
    try:
        yield
    except RecursionError:
        raise InputError(f"{where} nests lists or {inside} too deeply to be read") from None
    except ValueError as error:
        said = str(error).partition("; use sys.")[0]
        raise InputError(f"{where} holds a value that cannot be read: {said}") from None


def _too_long(path: Path, packed: bool, most: int) -> str:
    size = _size(path.stat().st_size)
    what = f"({size}) unpacks to" if packed else f"is {size},"
    return f"{path} {what} more than the {_size(most)} that are read; --max-input-gib N reads up to N GiB"


def _size(bytes_: int) -> str:
    """`bytes_` in the largest unit that leaves a whole number, roughly."""
    for name, unit in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if bytes_ >= 1 << unit:
            return f"{bytes_ / (1 << unit):.4g} {name}"
    return f"{bytes_} bytes"


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
        rest = stream.seek(0, 2) if stream.seekable() else 0  # 0 of a device too
        found = f" (it has {_size(rest)})" if rest else ""
        raise InputError(f"{where} is larger than {_size(MAXIMUM_BYTES)}, more than any file read here{found}")
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not text: byte {error.start} is not UTF-8") from None


def parse_yaml(text: str, where: str) -> Any:
    """One YAML document. Plain YAML keeps the last of two equal keys, silently; here that is an error."""
    refuse_long(text, where, "-:,[{?\n")
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, ValueError) as error:  # a character that YAML has not, half a surrogate pair
        raise InputError(f"{where} is not valid YAML: {_place(error)}") from None
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node, set())
        _written_out(node, {})
        value = loader.construct_document(node)
        refuse_unreadable(value, where)
        return value
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


def refuse_long(text: str, where: str, marks: str) -> None:
    """Raises InputError for a text with too many values, before it is parsed: `marks` may begin a value in its
    format."""
    found = sum(text.count(mark) for mark in marks) if len(text) > MAXIMUM_MARKS else 0
    if found > MAXIMUM_MARKS:
        raise InputError(f"{where} holds some {found:,} values; at most {MAXIMUM_MARKS:,} are read")


def refuse_unreadable(value: object, where: str) -> None:
    """Raises InputError naming every whole number beyond 10^18, every text that is no UTF-8, and nesting deeper than
    MAXIMUM_DEPTH, by its path."""
    problems = [f"{where}: {problem}" for problem in _unreadable(value, "", 0)]
    if problems:
        raise InputError(problems[:MOST_PROBLEMS])


MOST_PROBLEMS = 20


def _unreadable(value: object, path: str, depth: int) -> Iterator[str]:
    if isinstance(value, dict):
        inner = [(f"{path}.{key}" if path else f"{key}", part) for key, part in value.items()]
        for key in value:
            yield from _unreadable(key, "a key", 0) if isinstance(key, str | int | float | tuple) else ()
    elif isinstance(value, list | tuple | set):
        inner = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
    elif isinstance(value, int):  # what is no whole number is bounded by the rule of its key
        if abs(value) > LARGEST:
            yield f"{path or 'its value'}: {shown(value)} {TOO_LARGE}"
        return
    elif isinstance(value, str):
        if not _encodes(value):
            yield f"{path or 'its value'} is {value[:40]!a}, which is not text: half a surrogate pair stands in it"
        return
    else:
        return
    if depth >= MAXIMUM_DEPTH:
        yield f"{path[:80]}… nests lists or mappings too deeply to be read; at most {MAXIMUM_DEPTH}"
        return
    for name, part in inner:
        yield from _unreadable(part, name, depth + 1)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if problem.startswith("but "):  # the second half of a sentence
        problem = f"{getattr(error, 'context', None) or ''} {problem}".strip()
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
