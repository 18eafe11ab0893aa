"""Scripts changed at random: read, or refused with a sentence that can be printed; never a traceback.

`WINDTUNNEL_SOAK=1` tries 30,000, otherwise a few hundred; the same ones each time.
"""

import json
import random
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from importers import import_file
from importers.shell import budget, read_script
from program.errors import InputError
from tests.importers.imported import SHAPE
from tests.importers.test_shell_budget import CONSTRUCTS
from tests.soak import soaking

COUNT = 30_000 if soaking() else 400
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = f"pretrain_gpt.py {SHAPE}"
GO = f"torchrun --nproc_per_node 8 {PROGRAM}"
SCRIPTS = [
    *(path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.sh"))),
    f"""set -eu
export ROOT=$(realpath "$1"); shift
KIND=$1; shift
source "$(dirname "$0")/$KIND/params.sh"
if [ "${{QUIET:-0}}" = 1 ]; then ALL+=(--no-save-optim); fi
torchrun --nproc_per_node 8 $ROOT/src/pretrain_gpt.py "${{ALL[@]}}" {SHAPE}
""",
    f"""#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
N=$SLURM_NNODES; G=8; W=$((N*G))
declare -A L=([7b]=32)
M=7b
case $M in 7b) S="--bf16";; *) S=;; esac
for i in {{1..3}}; do A+=($i); done
read -r -d '' F <<E
--seed ${{A[0]}}
E
srun -N $N bash -c "{GO} $S $F --num-layers ${{L[$M]}}"
""",
    f"""cat <<EOT > ds.json
{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 1}}}}
EOT
sed "s/1/2/" ds.json | tee other.json
X=$(cat ds.json | xargs)
D=$(cd "$(dirname "$0")" && pwd)
f() {{ local N=$1; {GO} --deepspeed --deepspeed_config $D/ds.json --tensor-model-parallel-size ${{N:-1}}; }}
f 2
""",
    f"""# windtunnel: cluster.preset=dgx-a100-80gb
P=a/b/c.sh; Q=${{P##*/}}; R=${{P%/*}}; T=${{P/b/z}}${{P:0:3}}${{P^^}}
while [[ $# -gt 0 ]]; do shift; done
let "N=4*2"; ((N++))
[[ $Q == *.sh && -f x ]] || exit 1
{GO} --x $N
""",
    "CONFIG=llama.toml\ntorchrun --nproc_per_node 8 train.py --job.config_file $CONFIG --training.steps=3\n",
    f"deepspeed --hostfile hosts --num_nodes 2 {PROGRAM} --window-size '(1,2)' --lr 1e-4 --train-iters 3\n",
]
HERE = {
    "hosts": "a slots=8\nb slots=8\n",
    "llama.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8\n',
    "own.sh": "TP=2\n",
}
NASTY = [
    *(text for text in CONSTRUCTS.values() if len(text) < 200),
    *"² ٣ \ue000 \ue0000\ue001 \ue001 \ufffe \x00 \x1b \u2028 é 𝟙 \ufeff".split(),
    *"1" * 5, "9" * 400, "9" * 5_000, "1" + "0" * 400, "1e400", "-1", "0x", "1e5", "inf", "nan", "-0", "1.5", "08",
    'X=$(echo "a b")', "$(echo 'a)b')", '"$(echo ")")"', "`echo \\`pwd\\``", "${X:-it's}", "${X:-'}'}", "${X/'/'/y}",
    "${X//\\//}", "${!X}", "${#X[@]}", "${X[9]}", "${X[-9]}", "${X[$Y]}", "${X:1:-1}", "${X: -1}", "${X:²}", "${@:2}",
    "${X?}", "${X:=a}", "${*}", "$@", "$#", "$?", "$!", "$$", "$-", "$", "${", "}", "$(", ")", "$((", "))", "`", '"',
    "'",
    "\\", "\n", "<<E", "<<-'E'\n", "E\n", "<(", ">(", "&&", "||", ";", ";;", "|", "&", "((", "[[", "]]", "[", "]", "{",
    "!",
    "if", "then", "elif", "else", "fi", "for", "in", "do", "done", "while", "until", "case", "esac", "function", "time",
    "eval", "source", "set --", "set -u", "shift", "read", "mapfile", "let", "export", "declare -A X", "unset", "local",
    "source own.sh", ". ./own.sh", "cat own.sh > ds.json", "sed s/a/b/ own.sh > ds.json", "cp own.sh x", "bash -c",
    "ssh a",
    "expr", "$(expr 1 / 0)", "$(expr a)", "$(basename a/b)", "$(readlink -f)", "$(cat)", "$(< own.sh)", "$(seq 3)",
    "[ 1 -eq ² ]", "[ a =~ ( ]", "[[ a == [ ]]", "[[ a == [! ]]", "${X##[}", "${X#[a-}", "${X%%[!]}", "${X##*[]a]}",
    "#SBATCH --nodes=²", "#SBATCH --gres=gpu:9" + "9" * 400, "#SBATCH", "# windtunnel: a.b=c", "# windtunnel: plan=1",
    "# windtunnel: plan.x.y={", "# windtunnel: plan.zero_stage=1e400", "# windtunnel: model.layers=[1]",
    "--deepspeed", "--deepspeed_config own.sh", "--deepspeed_config", "--job.config_file own.sh", "--hostfile own.sh",
    "--num-layers", "--pipeline-model-parallel-layout (t)*9", "--window-size ²", "--zero-stage ²",
    "--model-parallel-size",
    "--rampup-batch-size 1 2 3", "--global-batch-size 0", "--train-samples 1e400", "--split 1",
]  # fmt: skip
TOKEN = re.compile(r"\s+|\w+|.", re.DOTALL)


def mutated(draw: random.Random) -> str:
    """A script with a few changes: characters, swapped and repeated tokens, cuts, parts of others, nasty texts."""
    text = draw.choice(SCRIPTS)
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        kind = draw.randrange(7)
        if kind == 0:
            char = draw.choice((*string.printable, "²", "\ue000", "\ue001", "\x00", "\ud800"))
            text = text[:at] + char + text[at + draw.randrange(2) :]
        elif kind == 1:
            text = text[:at] + text[min(end, at + draw.randrange(40)) :]
        elif kind == 2:
            other = draw.choice(SCRIPTS)
            start = draw.randrange(len(other))
            text = text[:at] + other[start : start + draw.randrange(80)] + text[at:]
        elif kind == 3:
            tokens = TOKEN.findall(text)
            one, two = (draw.randrange(len(tokens)) for _ in range(2)) if tokens else (0, 0)
            if tokens:
                tokens[one], tokens[two] = tokens[two], tokens[one]
            text = "".join(tokens)
        elif kind == 4:
            numbers = list(re.finditer(r"\d+", text))
            if numbers:
                match = draw.choice(numbers)
                text = text[: match.start()] + draw.choice(NASTY) + text[match.end() :]
        else:
            blanks = [match.end() for match in re.finditer(r"[\s=]", text)] or [0]
            at = draw.choice(blanks)
            text = text[:at] + draw.choice(NASTY) + draw.choice((" ", "\n", "")) + text[at:]
    return text


def tried(path: Path, text: str) -> str:
    """What becomes of a script, as the command line would print it; anything but `InputError` passes through."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        result = import_file(path, cluster="dgx-a100-80gb", nodes=1, refuse=False)
    except InputError as error:
        return str(error)
    run = json.dumps(result.run_dict, ensure_ascii=False)
    return "\n".join([*result.notes, *result.warnings, *result.problems, run])


@pytest.mark.scaled
@pytest.mark.timeout(7200 if COUNT > 1000 else 120)
@pytest.mark.parametrize("part", range(4))
def test_a_changed_script_is_read_or_refused(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch, soak_count: Callable[[str, int], None]
) -> None:
    """And what is said of it can be printed and holds no marker of ours."""
    monkeypatch.setattr(budget, "MOST_STEPS", 20_000)  # enough for these, and what hangs ends sooner
    for name, text in HERE.items():
        (tmp_path / name).write_text(text)
    for number in range(part, COUNT, 4):
        text = mutated(random.Random(number))
        try:
            said = tried(tmp_path / "job.sh", text)
            said.encode()
        except Exception as error:
            pytest.fail(f"script {number}: {type(error).__name__}: {error}\n{text[:3000]}")
    soak_count("mutated scripts", len(range(part, COUNT, 4)))


@pytest.mark.parametrize("character", ["²", "٣", "\ue000", "\ue000" + "0" + "\ue001", "𝟙", "\x00", "\ufeff"])
def test_odd_characters_are_plain_text(tmp_path: Path, character: str) -> None:
    """Digits of other scripts are no numbers; private characters, which once meant an unknown value, mean nothing."""
    text = (
        f"X={character}\nN={character} go $X $((X))\n{GO} --save $X --seed {character} --num-layers $X --nodes $NOPE\n"
    )
    for given in (text, text.replace("$((X))", ""), text.replace("--num-layers $X", "")):
        tried(tmp_path / "job.sh", given).encode()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('X=$(echo "a b")', "a b"),
        ("X=$(echo 'a)b')", "a)b"),
        ('X="$(echo "(a" ")b")"', "(a )b"),
        ('X=$(echo "$(echo "c d")")', "c d"),
        ("X=\ue0000\ue001", "\ue0000\ue001"),
        ("Y=\ue000; X=${Y/\ue000/e}", "e"),
    ],
)
def test_quotes_inside_a_substitution(text: str, word: str) -> None:
    """`$(echo "a b")` is `a b`."""
    assert read_script(f'{text}\ngo "$X"').commands[0].words == ("go", word)
