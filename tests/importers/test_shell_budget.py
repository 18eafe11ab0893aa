"""No construct of the shell makes an import hang or grow: each of these took over 20 s, all memory or a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from importers.shell import budget, read_script
from program.errors import InputError
from tests.importers.imported import SHAPE

GO = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE}"
LONG = "X=" + "a" * 60_000 + "\n"
DOUBLE = "X=abcdefgh\n" + "X=$X$X\n" * 16  # 524,288 characters
MANY = "".join(f"V{i}={i}\n" for i in range(2_000))
UNKNOWN = '[ "$NOPE" = 1 ]'
CONSTRUCTS = {
    # files that grow
    "append to a file in a loop": 'for i in {1..90000}; do echo "xxxxxxxxxxxxxxxx" >> f; done',
    "a file appended to itself": "echo abcdefgh > f\n" + "cat f f > g; cat g g > f\n" * 40,
    "heredocs in loops": "for i in {1..90000}; do cat >> f <<E\n$i $i $i\nE\ndone",
    "a heredoc that doubles": "X=abc\n" + "read -r -d '' X <<E\n$X $X $X $X\nE\n" * 30,
    "redirections in a pipeline": "echo abcdefgh > f\n" + "cat f f f f | tee f\n" * 40,
    "many redirections": "cd x " + ">" * 5_000 + " && pwd\ngo $(cd x " + ">" * 5_000 + " y)",
    "redirections in a substitution": "go $(cd x " + ">a" * 3_000 + " y)",
    "growing sed": "echo aaaaaaaa > f\n" + 'sed "s/a/aaaaaaaa/g" f > f\n' * 30,
    "sed that never matches": "echo a > f\nsed 's/" + "/" * 60_000 + "x' f > g",
    "sed of many commands": DOUBLE + 'echo "$X" > f\nsed "' + "s/a/b/g;" * 8_000 + '" f > g',
    # values that grow
    "doubling": "X=abcdefgh\n" + "X=$X$X\n" * 60,
    "tripled appends": "X=a\nfor i in {1..90000}; do X+=$X; done",
    "long appends": "for i in {1..90000}; do X+=abcdefghabcdefgh; done",
    "array appends": "for i in {1..90000}; do A+=(x); done",
    "array elements": "for i in {1..90000}; do A[99999]=$i; done",
    "arrays doubled": "A=(x y)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
    "set doubled": "set -- a b\n" + 'set -- "$@" "$@"\n' * 40,
    "shifts of a long list": "set -- {1..3}\n" + 'set -- "$@" "$@"\n' * 14 + "for i in {1..90000}; do shift; done",
    "a replacement that grows": "X=aaaaaaaa\n" + "X=${X//a/aaaaaaaa}\n" * 30,
    "a pattern that grows": "X=aaaaaaaa\n" + "X=${X//?/aaaaaaaa}\n" * 30,
    "upper case that grows": "X=ßßßßßßßß\n" + "X=${X^^}${X,,}ß\n" * 60,
    "maps": "declare -A M\nfor i in {1..90000}; do M[$i]=$i; N=${M[@]}; done",
    # patterns
    "trimming with stars": DOUBLE + "X=${X##*a*b*c*d*z}\nX=${X%%*a*b*c*d*z*}\n" * 50,
    "trimming one by one": DOUBLE + "for i in {1..90000}; do X=${X#?}; done",
    "replacing with stars": DOUBLE + "X=${X//a*b*c*z/y}\n" * 50,
    "replacing that never matches": "X=" + "a" * 50_000 + "\nX=${X//a*a*a*a*b/y}",
    "a condition with stars": LONG + "if [[ $X == " + "*a" * 400 + "*b ]]; then X=1; fi",
    "a case with stars": LONG + "case $X in " + "*a" * 400 + "*b) X=1;; esac",
    "a pattern of sets": LONG + "X=${X##" + "[a-cx-z]*" * 100 + "q}",
    "a long pattern": LONG + "P=" + "a*" * 20_000 + "\nX=${X##$P}",
    # arithmetic
    "a power": "X=$((2**99999999))",
    "powers of powers": "X=$((9**9**9**9))",
    "a huge literal": "X=$((" + "9" * 100_000 + "))",
    "a huge hexadecimal": "X=$((0x" + "f" * 100_000 + "))",
    "products": "X=3\n" + "X=$((X*X))\n" * 60,
    "shifts": "X=1\n" + "X=$((X<<62<<62))\n" * 60,
    "refers to itself": "A=B+B; B=A+A; X=$((A))",
    "refers to many": "".join(f"A{i}=A{i + 1}+A{i + 1}\n" for i in range(40)) + "A40=1\nX=$((A0))",
    "a long sum": "X=$((1" + "+1" * 90_000 + "))",
    "deep brackets": "X=$((" + "(" * 20_000 + "1" + ")" * 20_000 + "))",
    "many signs": "X=$((" + "-" * 50_000 + "1))",
    "many questions": "X=$((" + "1?" * 30_000 + "1" + ":1" * 30_000 + "))",
    "not an integer": "X=²; Y=$((X)); Z=$((²)); shift ²; A[²]=1; echo ${X:²:1}",
    # loops and nesting
    "loops in loops": "for i in {1..1000}; do " * 20 + "go" + "; done" * 20,
    "a function that calls itself": "f() { f; f; }\nf",
    "a function with two ways": f"f() {{ if {UNKNOWN}; then f; else f; fi; }}\nf",
    "functions that double": "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + "f0",
    "nested evaluation": "X='eval $X'\neval $X",
    "nested shells": 'X=\'bash -c "$X"\'\nbash -c "$X"',
    "a file that runs itself": "echo 'bash f; bash f' > f\nbash f",
    "evaluation in a loop": LONG + 'for i in {1..90000}; do eval "$X"; done',
    "deep substitutions": "X=" + "$(echo " * 20_000 + "a" + ")" * 20_000,
    "deep expansions": "X=" + "${Y:-" * 20_000 + "a" + "}" * 20_000,
    "deep quotes": 'X="' + '$(echo "' * 15_000 + "a" + '")' * 15_000 + '"',
    "deep groups": "(" * 30_000 + "go" + ")" * 30_000,
    "deep ifs": "if true; then " * 9_000 + "go" + "; fi" * 9_000,
    "many elifs": f"if {UNKNOWN}; then X=1\n" + f"elif {UNKNOWN}; then X=2\n" * 4_000 + "fi",
    "many substitutions": "for i in {1..90000}; do X=$(echo $(echo $(echo a))); done",
    "many tests": "[ a " + "-o a " * 30_000 + "]",
    "many negations": "[ " + "! " * 60_000 + "a ]",
    "many alternatives": "case x in " + "|".join(f"a{i}" for i in range(20_000)) + ") go;; esac",
    # branches
    "conditions times variables": MANY + "".join(f"if {UNKNOWN}; then V{i}=x; fi\n" for i in range(2_000)),
    "conditions that change all": MANY
    + (f"if {UNKNOWN}; then " + "; ".join(f"V{i}=x" for i in range(2_000)) + "; fi\n") * 5,
    "conditions in conditions": f"if {UNKNOWN}; then\n" * 50 + "X=1\n" + "fi\n" * 50,
    "conditions in loops": MANY + f"for i in {{1..90000}}; do if {UNKNOWN}; then X=$i; fi; done",
    "a function that prints what it prints": "f() { echo $(f)$(f); }\nX=$(f)",
    "a function that prints much": "f() { for i in {1..9000}; do echo $X; done; }\nX=abc\nwhile :; do X=$(f); done",
    "a loop that counts without an end": "for ((i=0; i>=0; i++)); do X=$X$i; done",
    "a while of whiles": "while ((I++ < 900)); do J=0; while ((J++ < 900)); do X=$J; done; done",
    "a regular expression over much": f"X={'a' * 99}\nfor i in {{1..9000}}; do [[ $X =~ a*a*b ]]; done",
    "unknown values in loops": "for i in {1..90000}; do X+=$(date +$i); done",
    "an unknown list": "for i in {1..90000}; do A+=($NOPE$i); done; for i in ${A[@]}; do X=$i; done",
    # what is made of it
    "many commands": "for i in {1..90000}; do go --x $i; done",
    "many flags": GO + "".join(f" --zz{i} {i}" for i in range(9_000)),
    "many lines of flags": "--x\n" * 40_000 + GO,
    "one long flag": GO + " --" + "x" * 100_000,
    "many launches": "".join(f"{GO} --seed {i}\n" for i in range(1_000)),
    "many sources": "for i in {1..90000}; do source /nowhere/$i; done",
    "a layout that grows": f"{GO} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 't*99999999'",
    "a layout of brackets": f"{GO} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '"
    + "(" * 50
    + "t"
    + ")*99" * 50
    + "'",
    "as many stages as layers": f"{GO} --num-layers 999999999 --pipeline-model-parallel-size 999999999"
    " --decoder-first-pipeline-num-layers 1",
    "a program of many trains": "python mimo/" + "train" * 20_000 + "! --num-layers 4",
    "empty lines": "\n" * 150_000 + GO,
    "blank comments": "#" + " " * 150_000 + "windtunnel",
    "a long script": "go --x\n" * 25_000,
    "a long word": "X=" + "é" * 190_000 + "\ngo " + "\ue000" * 1_000,
}
BY_FILE = {f"{number:02}.sh": name for number, name in enumerate(CONSTRUCTS)}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What became of each construct, under limits of its own."""
    folder = tmp_path_factory.mktemp("constructs")
    for file, name in BY_FILE.items():
        (folder / file).write_text(text if GO in (text := CONSTRUCTS[name]) else f"{text}\n{GO}\n", encoding="utf-8")
    command = [sys.executable, "-m", "tests.importers.limited", str(folder)]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root)
    assert result.returncode == 0, result.stderr
    return {BY_FILE[file]: said for file, said in json.loads(result.stdout).items()}


@pytest.mark.timeout(600)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are Linux's")
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct_ends_within_its_limits(verdicts: dict[str, list[str]], name: str) -> None:
    """It is read or refused, in 2 s of processor time and 100 MB."""
    ended, said = verdicts[name]
    assert ended in ("read", "refused"), (ended, said)


@pytest.mark.parametrize(
    ("name", "ran_out"),
    [
        ("many commands", r"line 1: the script takes 100,00\d steps, more than the 100,000 allowed"),
        ("long appends", r"line 1: the script makes 20,0\d\d,\d{3} bytes of text, more than the 20,000,000 allowed"),
        ("doubling", r"line 18: the script makes a value of 1,048,576 characters, more than the 1,000,000 allowed"),
        ("nested evaluation", r"line 2: the script nests 41 deep \(scripts inside scripts\), more than the 40 allowed"),
        ("deep substitutions", "line 1: brackets and quotes nest 61 deep; at most 60 are read"),
        ("a long pattern", "line 3: the script has a pattern of 40,000 characters, more than the 1,000 allowed"),
    ],
)
def test_what_ran_out_is_said_with_both_numbers_and_the_line(name: str, ran_out: str) -> None:
    """Steps and bytes are counted, so that the same script ends at the same place everywhere."""
    with pytest.raises(InputError, match=ran_out):
        read_script(CONSTRUCTS[name])


def test_a_slow_machine_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time stands behind the steps."""
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.0)
    with pytest.raises(InputError, match=r"line \d+: the script takes 0\.\d\d s of processor time, more than the 0 s"):
        read_script("go\n" * 200)


def test_reading_files_counts(tmp_path: Path) -> None:
    """A file read again and again takes its bytes each time."""
    (tmp_path / "large").write_text("x" * 900_000)
    with pytest.raises(InputError, match="bytes of text, more than the 20,000,000 allowed"):
        read_script("for i in {1..50}; do cat large > copy$i; done", path=tmp_path / "run.sh")
