"""What is read is bounded before it is held: recorded files as a stream, texts by their values, with both numbers."""

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from importers.torchtitan import read as read_toml
from plan.lenient_json import read_json
from program.errors import InputError
from program.files import MAXIMUM_MARKS, parse_yaml, reading_up_to
from program.timeline import Header, Row, Timeline, load, save
from reports.measured import read_steps

HEADER = Header(source="measured", program_hash="ab", device="cpu", steps=(1,), step_times_s=(0.5,))
ROW = Row(0, 3, "F", "F", 0, 1, "mlp.in", "compute", 0.0, 0.0, 0.0, 1.0, step=1)


def stored(path: Path, **changed: Any) -> Path:
    """A timeline file with top-level keys changed."""
    save(Timeline.from_rows(HEADER, [ROW]), path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(content | changed).encode()))
    return path


def columns(path: Path) -> dict[str, Any]:
    save(Timeline.from_rows(HEADER, [ROW]), path)
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["columns"]
    return found


BOMBED = """
import resource, sys, numpy, program.timeline.timeline_schema
from program.errors import InputError
from program.files import reading_up_to
from program.timeline import load
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
for path in sys.argv[1:]:
    with reading_up_to(1 / 64):
        try: load(path)
        except InputError as error: print(error)
"""


def test_a_small_file_that_unpacks_to_much_takes_no_memory(tmp_path: Path) -> None:
    """Each would be several times 256 MB of objects, or the whole of it unpacked, when held."""
    paths = []
    for number, unit in enumerate((b" ", b"[", b"[],", b'"ab",', b"0.1,", b"9")):
        paths.append(tmp_path / f"{number}.json.gz")
        with gzip.open(paths[-1], "wb", compresslevel=1) as stream:
            stream.write(b'{"columns":{"id":[' if number > 3 else b'{"words":[')
            for _ in range(24):
                stream.write(unit * ((1 << 20) // len(unit)))
    done = subprocess.run([sys.executable, "-c", BOMBED, *paths], capture_output=True, text=True, timeout=300)
    assert [line.count(".json.gz") for line in done.stdout.splitlines()] == [1] * 6, done.stderr[-500:]


def test_the_limit_is_said_with_both_numbers_and_raised_by_the_option(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.json.gz")
    size = path.stat().st_size
    with (
        reading_up_to(300 / 2**30),
        pytest.raises(InputError, match=rf"\({size} bytes\) unpacks to more than the 300 b"),
    ):
        load(path)
    with reading_up_to(1):
        assert len(load(path)) == 1
    log = tmp_path / "steps.jsonl"
    log.write_text('{"step_time_s": 1.0}\n' * 20)
    with (
        reading_up_to(300 / 2**30),
        pytest.raises(InputError, match=r"is 420 bytes, more than the 300 bytes that are read"),
    ):
        read_steps(log)
    assert len(read_steps(log)) == 20


@pytest.mark.parametrize("gib", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none(gib: float) -> None:
    with pytest.raises(InputError, match="--max-input-gib"), reading_up_to(gib):
        pass


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("id", None, "has no column id"),
        ("id", ["a"], "'a' stands in a list of numbers"),
        ("id", [True], "true stands in a list of numbers"),
        ("id", [1.5], "column id holds 1.5 in row 0; it must be whole"),
        ("id", [10**18 + 1], "it must be from 0 to 1000000000000000000"),
        ("id", [10**40], r"10\^1?\d+ is no number of 64 bits|is no number of 64 bits"),
        ("bytes", [-1], "column bytes holds -1 in row 0"),
        ("rank", [2**31], "column rank holds 2147483648"),
        ("start_s", [None], "column start_s holds nan"),
        ("end_s", [1e300], "at most 4e[+]09 s from zero"),
        ("end_s", [-1.0], "ends at -1.0 s, not after its start"),
        ("end_s", [], "columns of different lengths"),
        ("piece", [9], "column piece names words outside its table"),
        ("zz", [1], "unknown column 'zz'"),
    ],
)
def test_a_column_of_another_type_is_named(name: str, value: Any, said: str, tmp_path: Path) -> None:
    found = columns(tmp_path / "t.json.gz")
    changed = {key: column for key, column in found.items() if key != name} | ({} if value is None else {name: value})
    with pytest.raises(InputError, match=said):
        load(stored(tmp_path / "t.json.gz", columns=changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source": "guessed"}, "header.source is 'guessed'"),
        ({"steps": ["a"]}, "header.steps.0 is 'a'"),
        ({"step_times_s": [-1.0]}, "header.step_times_s.0 is -1.0"),
        ({"clocks": {"0": {"offset": 1}}}, "unknown key header.clocks.0.offset"),
        ({"groups": {"tp": [[-1]]}}, "header.groups.tp.0.0 is -1"),
        ({"run": []}, r"header.run is \[\]"),
        ({"machine_probe": {"gemm_s": 10**400}}, r"header|beyond every number"),
    ],
)
def test_a_header_of_another_type_is_named(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    header = {"source": "measured", "program_hash": "ab", "device": "cpu"} | changed
    with pytest.raises(InputError, match=said):
        load(stored(tmp_path / "t.json.gz", header=header))


def test_no_header_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="header is null: "):
        load(stored(tmp_path / "t.json.gz", header=None))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 2 has no step_time_s"), ("[1]", "line 2 holds a list"), ('{"step_time_s": NaN}', "finite number"),
        ('{"step_time_s": "1"}', "step_time_s is '1'"), ('{"step_time_s": -1}', "greater than 0"), ("{", "is not JSON"),
        ('{"step_time_s": 1, "loss": []}', r"loss is \[\]"), ("[" * 10**5, "too deeply"),
        ('{"a": "\\ud800"}', "surrogate"),
    ],
)  # fmt: skip
def test_a_line_of_a_log_that_is_none(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"step_time_s": 1}\n' + line)
    with pytest.raises(InputError, match=said):
        read_steps(tmp_path / "steps.jsonl")


@pytest.mark.parametrize(
    ("read", "text"), [(parse_yaml, "[{}]"), (read_json, '{{"a": [{}]}}'), (read_toml, "a = [{}]")]
)
def test_a_text_with_too_many_values_is_refused_before_it_is_parsed(read: Any, text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=rf"some 2,000,\d+ values; at most {MAXIMUM_MARKS:,} are read"):
        read(text.format("1," * (MAXIMUM_MARKS + 1)), "x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


@pytest.mark.parametrize(
    ("read", "text"), [(parse_yaml, "a: [{}]"), (read_json, '{{"a": [{}]}}'), (read_toml, "a = [{}]")]
)
@pytest.mark.parametrize(
    ("value", "said"), [("1" + "0" * 400, r"a\[0\]: 10\^400 is beyond"), ("[" * 120 + "]" * 120, "too deeply")]
)
def test_a_number_or_nesting_beyond_all_use_is_named_by_its_place(read: Any, text: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(text.format(value), "x")


def test_half_a_surrogate_pair_is_not_text() -> None:
    with pytest.raises(InputError, match=r"a\.b is '.ud800', which is not text"):
        read_json('{"a": {"b": "\\ud800"}}', "x")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [load, read_steps])
def test_a_named_pipe_is_no_recorded_file(tmp_path: Path, read: Any) -> None:
    """Opening one would wait for whoever writes it."""
    os.mkfifo(tmp_path / "recorded")
    with pytest.raises(InputError, match="it is no regular file"):
        read(tmp_path / "recorded")
