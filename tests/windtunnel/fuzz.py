"""Valid files of each kind, and seeded mutations of them: values of other types and sizes, keys and columns lost or
doubled, bytes cut and overwritten. `python -m tests.windtunnel.fuzz KIND FIRST COUNT` prints what each seed does."""

import copy
import gzip
import io
import json
import os
import random
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from plan.run import load
from program.errors import InputError
from tests.windtunnel.fuzz_files import DEEPSPEED, GPU, HUGGINGFACE, NEOX, RUN, TITAN
from tests.windtunnel.run_folders import profile_file, run_folder
from windtunnel import cli

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 2**31, 2**32, 2**63, 10**18, 10**19, -(10**19), 10**400, 0.0, -0.0,
    0.5, 1e-300, 5e-324, 1e18, 1e30, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), "", " ", "1", "-1",
    "1e400",
    "nan", "auto", "none", "²", "٣", "1_0", "5 parsec", "\ue000", "\U000f0000", "\x00", "\x1b[31m", "a b", "${x}", "..",
    "/", "x" * 5000, "9" * 5000, [], {}, [[]], {"": None}, [None], {"preset": "dgx-h100"}, [1, "a"], "\ud800", b"\xff",
    json.loads("[" * 90 + "]" * 90), list(range(50)), "2026-01-01", ["\x85"],
)  # fmt: skip
WORDS = (b"\xff", b"\x00", b"\xed\xa0\x80", b"NaN", b"Infinity", b"1e999", b"9" * 400, b"[" * 50, b"{", b'"', b"'",
         b"*a", b"&a ", b"!!int x", b"\n", b": ", b"\xc2\xb2", b"\xee\x80\x80",
         b"---\n", b"#", b",", b"-")  # fmt: skip
OPTIONS = (
    "forecast --nodes", "program --rank", "forecast --profile", "import --cluster", "import --model", "import --var",
    "compare --top", "check --tolerance", "compare --max-input-gib", "import --set",
)  # fmt: skip
Files = dict[str, bytes]


class Fuzz:
    """One kind of input: files that are right, the command that reads them, and how they are mutated."""

    def __init__(self, files: Callable[[random.Random], tuple[Files, list[str]]]) -> None:
        self.files = files

    def arguments(self, seed: int, folder: Path) -> list[str]:
        """Write the files of a seed into `folder`; the command line that reads them (`@` is the folder)."""
        files, words = self.files(random.Random(seed))
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return [word.replace("@", str(folder), 1) for word in words]


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy of a tree with one to three places changed."""
    root = [copy.deepcopy(value)]
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = draw.choice(list(_places(root)))
        change = draw.random()
        if change < 0.7 or holder is root:
            holder[key] = copy.deepcopy(draw.choice(ODD))
        elif change < 0.8:
            del holder[key]
        elif change < 0.87:
            holder[key] = [holder[key]]
        elif change < 0.94:
            holder[key] = {"a": holder[key]}
        elif isinstance(holder, dict):
            holder[draw.choice(("zz", "", "name", 7, str(key) + "s"))] = copy.deepcopy(holder[key])
        else:
            holder.insert(0, copy.deepcopy(holder[key]))
    return root[0]


def _places(holder: Any) -> Any:
    keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
    for key in keys:
        yield holder, key
        yield from _places(holder[key])


def scratched(content: bytes, draw: random.Random) -> bytes:
    """Bytes cut short, overwritten, doubled, or with a word between them."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(content) + 1)
        to = min(len(content), at + draw.choice((0, 1, 3, 30)))
        change = draw.random()
        if change < 0.15:
            content = content[:at]
        elif change < 0.3:
            content = content[:to] + content[at:to] + content[to:]
        else:
            content = content[:at] + draw.choice(WORDS) + content[to:]
    return content


def _json(tree: Any) -> bytes:
    return json.dumps(tree, default=str).encode()


def _yaml(tree: Any) -> bytes:
    try:
        return yaml.dump(tree, allow_unicode=True, Dumper=getattr(yaml, "CDumper", yaml.Dumper)).encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair
        return yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


def _toml(tree: Any) -> bytes:
    """As much of TOML as a torchtitan file has; what it has no word for is written as JSON has it."""
    lines = []
    for table, keys in tree.items() if isinstance(tree, dict) else [("model", tree)]:
        lines.append(f"[{table}]")
        lines += (
            [f"{key} = {json.dumps(value, default=str)}" for key, value in keys.items()]
            if isinstance(keys, dict)
            else []
        )
    return "\n".join(lines).encode()


def _of(tree: Any, text: Callable[[Any], bytes], draw: random.Random) -> bytes:
    return text(mutated(tree, draw)) if draw.random() < 0.75 else scratched(text(tree), draw)


class Kinds:
    """Every kind by its name, made once in `folder` from files that are right."""

    def __init__(self, folder: Path) -> None:
        self.profile = profile_file(folder / "p.yaml").read_bytes()
        good = run_folder(
            folder / "good", {**RUN, "plan": {**RUN["plan"], "recompute": "none"}}, folder / "p.yaml", steps=3
        )
        self.folder = {str(p.relative_to(good)): p.read_bytes() for p in good.rglob("*") if p.is_file()}
        self.timeline = next(name for name in self.folder if name.endswith(".json.gz"))
        content = json.loads(gzip.decompress(self.folder[self.timeline]))
        self.content = {**content, "columns": {name: column[:40] for name, column in content["columns"].items()}}
        self.priced = {"p.yaml": self.profile}
        self.good = good
        load(RUN)

    def names(self) -> list[str]:
        """Every kind."""
        return [name.removeprefix("of_") for name in dir(self) if name.startswith("of_")]

    def of_run(self, draw: random.Random) -> tuple[Files, list[str]]:
        tree = draw.choice((RUN, RUN, GPU))
        command = draw.choice(("forecast", "program", "import", "train"))
        words = [command, "@/run.yaml"]
        words += ["--profile", "@/p.yaml"] if command == "forecast" and tree is RUN else []
        return {**self.priced, "run.yaml": _of(tree, _yaml, draw)}, words + _shown(draw)

    def of_json_run(self, draw: random.Random) -> tuple[Files, list[str]]:
        return {"run.json": _of(draw.choice((RUN, GPU)), _json, draw)}, ["import", "@/run.json"]

    def of_deepspeed(self, draw: random.Random) -> tuple[Files, list[str]]:
        words = ["--cluster", "dgx-h100", "--nodes", "1", "--model", "gpt2-124m"]
        return {"ds.json": _of(DEEPSPEED, _json, draw)}, [draw.choice(("import", "program")), "@/ds.json", *words]

    def of_huggingface(self, draw: random.Random) -> tuple[Files, list[str]]:
        words = ["--cluster", "dgx-h100", "--nodes", "1"]
        return {"config.json": _of(HUGGINGFACE, _json, draw)}, [
            draw.choice(("import", "forecast")),
            "@/config.json",
            *words,
        ]

    def of_neox(self, draw: random.Random) -> tuple[Files, list[str]]:
        return {"neox.yml": _of(NEOX, _yaml, draw)}, [
            "import",
            "@/neox.yml",
            "--cluster",
            "dgx-a100-80gb",
            "--nodes",
            "1",
        ]

    def of_torchtitan(self, draw: random.Random) -> tuple[Files, list[str]]:
        return {"job.toml": _of(tomllib.loads(TITAN), _toml, draw)}, [
            "import",
            "@/job.toml",
            "--cluster",
            "dgx-h100",
            "--nodes",
            "1",
        ]

    def of_profile(self, draw: random.Random) -> tuple[Files, list[str]]:
        content = _of(yaml.safe_load(self.profile), _yaml, draw)
        return {"p.yaml": content, "run.yaml": _yaml(RUN)}, [
            "forecast",
            "@/run.yaml",
            "--profile",
            "@/p.yaml",
            *_shown(draw),
        ]

    def of_timeline(self, draw: random.Random) -> tuple[Files, list[str]]:
        other = {**self.content, "header": {**self.content["header"], "source": "predicted"}}
        plain = _of(draw.choice((self.content, other)), _json, draw)
        packed = gzip.compress(plain, 1) if draw.random() < 0.85 else scratched(gzip.compress(plain, 1), draw)
        both = {"a.json.gz": gzip.compress(_json(other), 1), "b.json.gz": gzip.compress(_json(self.content), 1)}
        both[draw.choice(list(both))] = packed
        trace = ["--trace", "@/trace.json"] if draw.random() < 0.3 else []
        return both, ["compare", "@/a.json.gz", "@/b.json.gz", *trace, *_shown(draw)]

    def of_column(self, draw: random.Random) -> tuple[Files, list[str]]:
        """One column of the measured timeline lost, doubled, of another type or with an odd entry."""
        content = copy.deepcopy(self.content)
        name = draw.choice(list(content["columns"]))
        column = content["columns"][name]
        change = draw.random()
        if change < 0.1:
            del content["columns"][name]
        elif change < 0.2:
            content["columns"][name] = draw.choice(ODD)
        elif change < 0.3:
            content["columns"][draw.choice(list(content["columns"]))] = list(column)
        else:
            column[draw.randrange(len(column))] = draw.choice(ODD)
        other = {**self.content, "header": {**self.content["header"], "source": "predicted"}}
        both = {"a.json.gz": gzip.compress(_json(other), 1), "b.json.gz": gzip.compress(_json(content), 1)}
        return both, ["compare", "@/a.json.gz", "@/b.json.gz", *_shown(draw)]

    def of_folder(self, draw: random.Random) -> tuple[Files, list[str]]:
        files = dict(self.folder)
        name = draw.choice(("run.yaml", "steps.jsonl", "steps.jsonl", self.timeline))
        if name == self.timeline:
            plain = _of(json.loads(gzip.decompress(files[name])), _json, draw)
            files[name] = gzip.compress(plain, 1)
        elif name == "run.yaml":
            files[name] = _of(yaml.safe_load(files[name]), _yaml, draw)
        else:
            lines = files[name].splitlines()
            place = draw.randrange(len(lines))
            lines[place] = _of(json.loads(lines[place]), _json, draw)
            files[name] = b"\n".join(lines) if draw.random() < 0.7 else scratched(files[name], draw)
        if draw.random() < 0.05:
            del files[name]
        command = ["compare", "@"] if draw.random() < 0.7 else ["check", str(self.good), "@"]
        return files, command + _shown(draw)

    def of_set(self, draw: random.Random) -> tuple[Files, list[str]]:
        keys = [".".join(path) for path in _paths(draw.choice((RUN, GPU)))]
        words: list[str] = []
        for _ in range(draw.choice((1, 2, 3))):
            value = draw.choice(ODD)
            text = draw.choice((str, json.dumps))(value if not isinstance(value, bytes) else "b")
            words += ["--set", f"{draw.choice(keys)}={text}"]
        return {**self.priced, "run.yaml": _yaml(draw.choice((RUN, GPU)))}, [
            draw.choice(("program", "import")),
            "@/run.yaml",
            *words,
        ]

    def of_command(self, draw: random.Random) -> tuple[Files, list[str]]:
        """Numbers and names on the command line."""
        value = str(draw.choice([odd for odd in ODD if not isinstance(odd, bytes | list | dict)]))
        option = draw.choice(OPTIONS)
        command, option = option.split()
        given = {"compare": [str(self.good)], "check": [str(self.good)] * 2}.get(command, ["@/run.yaml"])
        return {"run.yaml": _yaml(draw.choice((RUN, GPU)))}, [command, *given, f"{option}={value}"]


def _shown(draw: random.Random) -> list[str]:
    return ["--json"] if draw.random() < 0.3 else []


def _paths(tree: dict[str, Any]) -> Any:
    for key, value in tree.items():
        yield (key,)
        for path in _paths(value) if isinstance(value, dict) else ():
            yield (key, *path)


def outcome(arguments: list[str]) -> tuple[int, str]:
    """Exit code and message of a command line run in this process."""
    if isinstance(cli.app, typer.Typer):
        cli.app = typer.main.get_command(cli.app)  # type: ignore[assignment]  # made anew each time it takes half of it
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as ended:
            return int(ended.code or 0), err.getvalue()
    raise AssertionError("a command must exit")


class _NoRanks:
    """In the place of the trainer's launcher."""

    @staticmethod
    def launch(*_: Any) -> None:
        raise InputError("here ranks would start")


@contextmanager
def no_ranks() -> Iterator[None]:
    """`train` ends where it would start ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windtunnel.training._enough_devices", lambda run: None)
        patch.setattr("windtunnel.training._trainer", lambda: _NoRanks)
        yield


def faults(kind: str, seeds: range, folder: Path) -> tuple[Counter[int], list[str]]:
    """Exit codes of many seeds of a kind, and what was said by each that is neither 0, 1 nor 2."""
    (folder / "made").mkdir(parents=True)
    kinds, codes, wrong = Kinds(folder / "made"), Counter[int](), []
    with no_ranks():
        for seed in seeds:
            place = folder / str(seed)
            place.mkdir()
            code, said = outcome(Fuzz(getattr(kinds, f"of_{kind}")).arguments(seed, place))
            codes[code] += 1
            if code not in (0, 1, 2) or (code == 2 and not said.strip()):
                wrong.append(f"{kind} {seed}: exit {code}\n{said[-1500:]}")
            shutil.rmtree(place)
    return codes, wrong


def main(kind: str, first: int, count: int) -> None:
    """Print the exit codes of a kind, and every fault."""
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        for start in range(first, first + count, 100):
            codes, wrong = faults(kind, range(start, min(start + 100, first + count)), Path(root) / str(start))
            print(kind, start, dict(codes), *wrong, sep="\n" if wrong else " ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
