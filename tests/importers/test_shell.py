"""The shell evaluator: what a script would run is learnt, nothing is run, and what cannot be known keeps its reason."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.shell import read_script
from importers.shell.script import Script
from program.errors import InputError


def words(script: Script, number: int = 0) -> list[str]:
    """The words of one command as a user may read them."""
    return [script.expander.show(word) for word in script.commands[number].words]


def run(text: str) -> list[str]:
    """The words of the only command of a script."""
    script = read_script(text)
    script.commands = [command for command in script.commands if command.words[0] != "cat"]
    assert len(script.commands) == 1
    return words(script)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N=96; go --n $N ${N}", ["go", "--n", "96", "96"]),
        ("go ${N:-8} ${M:=4} $M ${N:+x}", ["go", "8", "4", "4"]),
        ("G=8; B=4; go $(( ${G} * B + 2 ** 3 ))", ["go", "40"]),
        ("go $((7 / 2)) $((-7 / 2)) $((7 % 3)) $((1 < 2 ? 5 : 6))", ["go", "3", "-3", "1", "5"]),
        ("go a \\\n  b \\\n  c", ["go", "a", "b", "c"]),
        ("A=\" --x 1 \\\n --y 'p|q' \"; go $A", ["go", "--x", "1", "--y", "'p|q'"]),
        ("A='one two'; go \"$A\" $A 'x $A'", ["go", "one two", "one", "two", "x $A"]),
        ('A=" "; A=" --d ${A}"; A=" --n ${A}"; go $A', ["go", "--n", "--d"]),
        ('A=(--s "p q" 3); go "${A[@]}" ${#A[@]} ${A[1]}', ["go", "--s", "p q", "3", "3", "p", "q"]),
        ("A=(1); A+=(2 3); go ${A[*]}", ["go", "1", "2", "3"]),
        ("A=x; A+=y; go $A", ["go", "xy"]),
        ("P=a/b/c.sh; go ${P##*/} ${P%/*} ${P/b/z} ${P:0:3}", ["go", "c.sh", "a/b", "a/z/c.sh", "a/b"]),
        ("go `pwd`/x.py $(pwd)", ["go", "./x.py", "."]),
        ("go $(echo 3) $(expr 2 \\* 5)", ["go", "3", "10"]),
        ("N=2; M=N; go ${!M}", ["go", "2"]),
        ("export A=5 B=6; declare C=7; go $A $B $C", ["go", "5", "6", "7"]),
        ("go a # b\n", ["go", "a"]),
        ("go a#b", ["go", "a#b"]),
        ("go x > log 2>&1", ["go", "x"]),
        ('bash -c "go $((1+1)) x"', ["go", "2", "x"]),
        ("C='go --n 1'; eval $C", ["go", "--n", "1"]),
        ("f() { go $1 $2; }\nf a b", ["go", "a", "b"]),
        ("for i in 1; do go $i; done", ["go", "1"]),
        ("case b in a) go 1;; b|c) go 2;; esac", ["go", "2"]),
        ("((N = 3)); ((N++)); go $N", ["go", "4"]),
        ("A=1; A=$((A+1)); go $A", ["go", "2"]),
        ("cat > r.sh <<E\ngo 7\nE\nbash r.sh", ["go", "7"]),
        ("N=3; read -r -d '' C <<E\n--n $N\n--m 4\nE\ngo $C", ["go", "--n", "3", "--m", "4"]),
        ("N=3; A=$(cat <<E\n--n $N \\\n  --m 4\nE\n)\ngo $A", ["go", "--n", "3", "--m", "4"]),
        ("N=3; A=\"$(cat <<-'E'\n\t--n $N\n\tE\n)\"\ngo $A x", ["go", "--n", "$N", "x"]),
        ("go $(cat <<E\nE\n) x", ["go", "x"]),
        ("\ufeffgo x\r\n", ["go", "x"]),
        ("X=1 env Y=2 go a", ["env", "Y=2", "go", "a"]),
        ("go {a,b} *.py ~/x", ["go", "{a,b}", "*.py", "~/x"]),
        ("[ -d x ] || exit 1\ngo 1", ["go", "1"]),
        ("cd x && go 1 || go 2", ["go", "1"]),
        ('declare -A L=([7b]=32 ["13b"]=40)\nM=13b\ngo ${L[$M]} ${L[7b]}', ["go", "40", "32"]),
        ("declare -A L\nL[a]=1\nL[b]=2\ngo ${L[@]}", ["go", "1", "2"]),
        ('A=(1 2 3)\nA[1]=x\nA[3]=y\ngo "${A[@]}"', ["go", "1", "x", "3", "y"]),
        ("go $'a\\tb' $\"c d\" $[2*3]", ["go", "a\tb", "c d", "6"]),
        ('let "N=4*2"\ngo $N', ["go", "8"]),
        ('set -- a b\ngo $2 $# "$@"', ["go", "b", "2", "a", "b"]),
        ("A=1; while [[ $# -gt 0 ]]; do A=$1; shift; done\ngo $A", ["go", "1"]),
        ("A=1; until true; do A=2; done\ngo $A", ["go", "1"]),
        ("for i in {1..3}; do A+=$i; done\ngo $A", ["go", "123"]),
    ],
)
def test_words_a_command_receives(text: str, expected: list[str]) -> None:
    """Expansion, quoting and splitting as bash does them."""
    assert run(text) == expected


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ('[ -z "$N" ]', True),
        ('[ -n "$N" ]', False),
        ('[ "$N" ]', False),
        ('[ "x$N" = x ]', True),
        ('[[ $N != "" ]]', False),
        ('set -eo pipefail; [ -z "$N" ]', True),
        ('set -u; set +u; [ -z "$N" ]', True),
        ("[ 4 -gt 3 ]", True),
        ("[ a = b ]", False),
        ("[[ $X == *7b* ]]", True),
        ("[[ 1 -eq 1 && a != b ]]", True),
        ("[ ! 1 -eq 1 ]", False),
        ("(( 3 > 4 ))", False),
        ("test 1 -le 1", True),
    ],
)
def test_conditions(condition: str, taken: bool) -> None:
    """Known conditions choose a branch; whether an undefined variable is empty is known."""
    assert run(f"X=llama-7b-hf\nif {condition}; then V=yes; else V=no; fi\ngo $V") == ["go", "yes" if taken else "no"]


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ("A=1; if [ -f x ]; then A=2; exit; fi; go $A", "1", False),
        ("A=1; for i in 1 2; do [ -f x ] && break; A=$i; done; go $A", "", True),
        ("A=1; for i in 1 2; do if [ -f x ]; then continue; fi; B=$i; done; go $A", "1", False),
        ("f() { A=1; [ -f x ] && return; A=2; }; f; go $A", "", True),
        ("f() { A=1; if [ -f x ]; then return; fi; B=2; }; f; go $A", "1", False),
        ("A=1; if [ -f x ]; then A=2; exit 1; else A=3; fi; go $A", "3", False),
        ("usage() { exit 1; }; [ $# -eq 2 ] || usage; go 5", "5", False),
        ("if [ $# -lt 1 ]; then echo usage; exit 1; fi; go 5", "5", False),
        ("f() { local A=2; exit 1; }; A=1; if [ -f x ]; then f; fi; go $A", "1", False),
        ("f() { exit 1; }; A=1; [ -f x ] && f; return; A=2; go $A", "2", False),
        ("f() { exit 1; }; set -- 7; [ -f x ] && f 8; go $1", "7", False),
    ],
)
def test_a_way_that_leaves_under_an_unknown_condition(text: str, known: str, unknown: bool) -> None:
    """`exit` takes its variables with it; `break` and `return` meet the other way behind the loop or the call. Whoever
    asks for arguments that were not given goes on as if they were."""
    script = read_script(text)
    word = script.commands[-1].words[1]
    assert bool(script.expander.why(word)) == unknown
    assert unknown or word == known


def test_what_leaves_with_an_error_is_said() -> None:
    """Nothing after it is started."""
    script = read_script("N=8\nif [ $N -ne 4 ]; then\n  exit 1\nfi\ngo")
    assert not script.commands
    assert script.warnings == ["line 3: the script ends here with an error, by exit"]


def test_an_unknown_condition_makes_what_it_changes_unknown() -> None:
    """Both branches are followed; what they leave equal stays known."""
    script = read_script("if [ -f x ]; then A=1; B=2; else A=1; B=3; fi\ngo $A $B")
    assert script.commands[0].words[1] == "1"
    (reason,) = script.expander.why(script.commands[0].words[2])
    assert "the condition in line 1" in reason.sentence()


@pytest.mark.parametrize(
    "condition",
    [
        '[ "$N" = 1 ]',
        "[ $N -gt 1 ]",
        "[[ $N == 1 ]]",
        '[[ "$N" != debug && 1 = 1 ]]',
        "(( N > 1 ))",
        'set -u; [ -z "$N" ]',
        'set -euo pipefail; [ -z "$N" ]',
        'set -o nounset; [ "$N" ]',
        "test $N = 1",
    ],
)
def test_what_an_undefined_variable_decides_is_unknown(condition: str) -> None:
    """Its value was to come from outside; whoever needs the result is told the variable's name."""
    script = read_script(f"if {condition}; then V=yes; else V=no; fi\ngo $V")
    (reason,) = script.expander.why(script.commands[-1].words[1])
    assert "the condition in line 1, where the variable $N is not defined in the script" in reason.sentence()


def test_arguments_of_the_script_may_be_given() -> None:
    """As variables of the names 1, 2, …; what asks for one says so."""
    text = 'if [ "$1" = big ]; then V=8; else V=1; fi\ngo $V $# "$@"'
    given = read_script(text, {"1": "big", "2": "x"})
    assert given.commands[0].words == ("go", "8", "2", "big", "x")
    without = read_script(text)
    (reason,) = without.expander.why(without.commands[0].words[1])
    assert "the condition in line 1, which asks for the script's argument $1" in reason.sentence()


def test_a_default_makes_a_test_of_an_undefined_variable_known() -> None:
    """`${N:-0}` says what is meant."""
    assert run('if [ "${N:-0}" = 1 ]; then V=yes; else V=no; fi\ngo $V') == ["go", "no"]
    assert run('set -u\n[ "${N:-0}" = 0 ] && V=yes\ngo $V') == ["go", "yes"]


def test_a_chain_and_a_case_name_the_variable_they_ask() -> None:
    """`[ … ] && …` and `case $X in` as `if`."""
    script = read_script('A=1\n[ "$N" = 1 ] && A=2\ncase $M in x) B=1;; *) B=2;; esac\ngo $A $B')
    reasons = [script.expander.why(word)[0].sentence() for word in script.commands[0].words[1:]]
    assert "the test before &&, where the variable $N is not defined" in reasons[0]
    assert "the case in line 3, where the variable $M is not defined" in reasons[1]


def test_comments_inside_an_array_and_stray_backslashes() -> None:
    """A commented flag with a trailing backslash does not swallow the next line of an array."""
    text = "A=(\n  #  --log 1 \\\n    --eval 10 \\\n    #--save $P \\\n    --no-load\n)\ngo ${A[@]}"
    assert run(text) == ["go", "--eval", "10", "--no-load"]


def test_a_commented_flag_ends_a_continued_command() -> None:
    """Outside an array bash stops at the comment: the flags after it belong to no command."""
    script = read_script("go --a 1 \\\n # --b 2 \\\n --c 3\n")
    assert [list(command.words) for command in script.commands] == [["go", "--a", "1"], ["--c", "3"]]


def test_heredoc_becomes_a_file_with_variables_filled_in() -> None:
    """`cat <<EOT > name` writes a file; a quoted delimiter keeps variables as they are."""
    script = read_script('B=4\ncat <<EOT > a.json\n{"b": $B, "q": "it\'s"}\nEOT\ncat > b.json <<\'E\'\n$B\nE\n')
    assert script.files == {"a.json": '{"b": 4, "q": "it\'s"}\n', "b.json": "$B\n"}


def test_reasons_of_unknown_values_name_their_cause() -> None:
    """Undefined variables, arguments and commands each say what they are."""
    script = read_script("go $NOPE $1 $(nvidia-smi -L) $((NOPE * 2))")
    reasons = [script.expander.why(word)[0].sentence() for word in script.commands[0].words[1:]]
    assert "the variable $NOPE is not defined" in reasons[0]
    assert "argument $1" in reasons[1]
    assert "nvidia-smi -L" in reasons[2]
    assert "the variable $NOPE is not defined" in reasons[3]


def test_slurm_header_sets_slurm_variables() -> None:
    """`#SBATCH --nodes=24` is what $SLURM_NNODES will be."""
    assert run("#SBATCH --nodes=24\n#SBATCH --gres=gpu:8\ngo $SLURM_NNODES $SLURM_GPUS_ON_NODE") == ["go", "24", "8"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    """Commands, substitutions and redirections leave the machine alone."""
    target = tmp_path / "made"
    read_script(f"touch {target}\necho $(touch {target}) > {target}\n`touch {target}`\neval touch {target}\n")
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("go 'open", "line 1: the ' opened here is never closed"),
        ('x\ngo "open', 'line 2: the " opened here'),
        ("A=(1 2", "the array opened here has no closing )"),
        ("cat <<EOT\nx", "never closed by EOT"),
        ("if true; then go", "this if needs 'fi'"),
        ("go $((1/0))", "division by zero"),
        ("go $((1.5*2))", "not integer arithmetic"),
        ("f() { f; }\nf", "calls itself"),
        ("cat <<A <<B\n1\nA\n2\nB\n", "line 1: two heredocs in one line are not read"),
        ("x\ngo --<<E\na ${X}\nE\n", "line 2: "),
        ("x\ny )", "line 2: unexpected ')' in the script"),
        ("x\nfi", "line 2: unexpected 'fi' in the script"),
        ("A=(" * 60_000, "opened here is never closed"),
        ("<" * 200_000, "line 1: unexpected"),
        ("f() " * 50_000, "is never closed"),
        ("go $((36#?))", "is not integer arithmetic"),
        ("go $((8#9))", "9 is no number of base 8"),
        ("A=A; go $((A))", "refers to itself"),
        (
            "A=xxxxxxxxxx\n" + "A=$A$A$A$A\n" * 20,
            "line 10: the script makes a value of 1,310,720 characters, more than",
        ),
        ("f() { f; f; }\nf", "calls itself"),
        ("for i in 1 2 3 4 5 6 7 8 9; do " * 8 + "go" + "; done" * 8, "steps, more than the 100,000 allowed"),
    ],
)
def test_what_cannot_be_read_names_the_place(text: str, complaint: str) -> None:
    """Syntax errors are input errors with a line and what was left open."""
    with pytest.raises(InputError) as error:
        read_script(text)
    assert complaint in str(error.value)


@given(st.text(alphabet="aN=\"'$(){}[]\\\n#;|&<>`- 1*/if", max_size=60))
def test_any_text_is_read_or_refused(soak_count: Callable[..., None], text: str) -> None:
    """No text makes the evaluator fail in another way than an InputError."""
    soak_count("fuzzed inputs")
    try:
        read_script(text)
    except InputError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N=16; (N=24); go $N", "16"),
        ("N=16; (N=24; go $N)", "24"),
        ("N=16; { N=24; }; go $N", "24"),
        ("N=16; f() { local N=24; }; f; go $N", "16"),
        ("N=16; f() { local N; N=24; }; f; go $N", "16"),
        ("f() { local N=24; go $N; }; f", "24"),
        ("N=16; f() { N=24; }; f; go $N", "24"),
        ("N=16; N=24 & wait; go $N", "16"),
        ("N=16; { N=24; } | cat; go $N", "16"),
        ("for i in 1 2 3; do [ $i = 2 ] && break; A+=$i; done; go $A", "1"),
        ("for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; A+=$i; done; go $A", "13"),
        ("for j in 1 2; do for i in 1 2 3; do [ $i = 2 ] && break 2; A+=$i; done; done; go $A", "1"),
        ("for j in 1 2; do for i in 1 2 3; do [ $i = 2 ] && continue 2; A+=$i; done; done; go $A", "11"),
        ("f() { A=1; return; A=2; }; f; go $A", "1"),
        ("f() { return 1; }; f && A=1 || A=2; go $A", "2"),
        ("f() { return 0; }; f && A=1 || A=2; go $A", "1"),
        ("f() { for i in 1 2; do return $i; done; }; f && A=1 || A=2; go $A", "2"),
        ("(exit 1) || A=2; (exit 0) && A=${A}3; go $A", "23"),
        ("N=1; bash -c 'exit 1'; go $N", "1"),
        ("go 7; exit; go 8", "7"),
        ("declare -i X=3*4; X+=2; go $X", "14"),
        ("f() { local -i X=2*8; go $X; }; f", "16"),
        ("X='a*b*c'; go ${X#*'*'}", "b*c"),
        ("X='a*b'; go ${X/\"*\"/-}", "a-b"),
        ('X=ab; [[ $X == "a*" ]] && A=1 || A=2; go $A', "2"),
        ("X='a*'; [[ $X == \"a*\" ]] && A=1 || A=2; go $A", "1"),
        ("case ab in \"*\") A=1;; 'a'*) A=2;; esac; go $A", "2"),
        ("case a in a) A+=1 ;& b) A+=2 ;; c) A+=3;; esac; go $A", "12"),
        ("case a in a) A+=1 ;;& b) A+=2 ;; a*) A+=3;; esac; go $A", "13"),
        ("if [[ 010 -eq 8 ]]; then A=1; else A=2; fi; go $A", "1"),
        ("if [ 010 -eq 10 ]; then A=1; else A=2; fi; go $A", "1"),
        ("N=5; M=N; if [[ M -eq 5 ]]; then A=1; else A=2; fi; go $A", "1"),
        ("if [ -n ]; then A=1; else A=2; fi; go $A", "1"),
        ("i=3; ((++i)); go $i", "4"),
        ("i=0; ((i++)) && A=1 || A=2; go $A$i", "21"),
        ("i=3; ((i<<=2)); ((i%=5)); go $i", "2"),
        ("A[5]=x; A[2]=y; go ${#A[@]}$A${A[5]}${A[0]}", "2x"),
        ("go $((16#20))", "32"),
        ("go $((2#101 + 16#fF))", "260"),
        ("go `echo \\`echo a\\``", "a"),
        ("go $'\\x36\\101\\u0062\\''", "6Ab'"),
        ('A=(1 2 3); go "${A[*]:1:1}"', "2"),
        ('set -- a b c; go "$*"', "a b c"),
        ('set -- a b c; IFS=:; go "$*"', "a:b:c"),
        ('IFS=", "; A="a , b  c,,d, "; set -- $A; go $#$4$5', "5d"),
        ("IFS=,; A=,a,; set -- x$A y; go $#$2", "3a"),
        ("IFS=; A='a b'; set -- $A; go $#", "1"),
        ('IFS=,; for X in 4,16,8; do N=$X; done; go "$N"', "4,16,8"),
        ("A=a,b; IFS=, true; set -- $A; go $#", "1"),
        ("cat x | while read X; do N=$X; done; go ${N:-16}", "16"),
        ("N=16; f() { local N=8; g; }; g() { N=24; }; f; go $N", "16"),
        ("N=116; go ${N/#1/}", "16"),
        ("N=1611; go ${N/%1/}", "161"),
        ("N=1611; go ${N/%1*/4}", "4"),
        ("N=216; go ${N/#1/}", "216"),
        ("N=16; go ${N/#/1}", "116"),
        ("N=16; go ${N/%/1}", "161"),
    ],
)
def test_a_value_is_the_one_that_bash_gives(text: str, expected: str) -> None:
    """Subshells and `local` keep their variables to themselves; an anchored replacement stays at its end."""
    assert run(text) == ["go", expected]


COUNTED = [
    ("X=3; go $((X++ + X)) $X", "7 4"),
    ("X=3; go $((++X)) $X", "4 4"),
    ("X=3; go $((8 + X--)) $X", "11 2"),
    ("X=3; go $((X ++)) $((-- X))", "3 3"),
    ("X=3; go $((X - -2)) $((0 && (X=9))) $X", "5 0 3"),
    ("X=3; go $((X > 2 ? (X=7) : (X=9))) $X $((Y = 2, X += Y)) $X", "7 7 9 9"),
    ("N=0; for ((i=0; i<4; i++)); do N=$((N+2)); done; go $N $i", "8 4"),
    ("for ((i=1, j=9; i<j; i+=2, j--)); do if ((i > 3)); then break; fi; done; go $i $j", "5 7"),
    ("N=; for ((i=0; i<5; i++)); do ((i == 2)) && continue; N+=$i; done; go $N", "0134"),
    ("N=0; while [ $N -lt 5 ]; do N=$((N+1)); done; go $N", "5"),
    ("N=0; until ((N >= 3)); do let N+=1; done; go $N", "3"),
    ("set -- --tp 8 -q 4; while [[ $# -gt 0 ]]; do case $1 in --tp) T=$2; shift 2;; *) shift;; esac; done; go $T", "8"),
    ("X=gpt-8b; [[ $X =~ ^gpt-([0-9]+)b$ ]] && go ${BASH_REMATCH[1]} || go none", "8"),
    ("X=a.b; if [[ $X =~ a\\.b ]]; then go yes; else go no; fi", "yes"),
    ("X=axb; if [[ $X =~ a\\.b ]]; then go yes; else go no; fi", "no"),
    ("printf -v N '%s-%03d' run 7; go $N", "run-007"),
    ("go $(printf '%d ' 1 2 3)", "1 2 3"),
    ("read A B <<< '3 8 9'; go $A $B", "3 8 9"),
    ("IFS=, read -r A B <<< '3,8'; go $B $A", "8 3"),
    ("IFS=x read -ra A <<< '8x3x5'; go ${A[2]} ${#A[@]}", "5 3"),
    ("for i in $(seq 2 2 8); do N=$i; done; go $N $(seq -s, 3)", "8 1,2,3"),
    ("while getopts 'n:' o; do case $o in n) N=$OPTARG;; esac; done; go ${N:-4}", "4"),
    ("f() { local n=$1; echo $((n * 2)); }; N=$(f 4); go $N ${n:-none}", "8 none"),
    ("f() { X=9; printf '%d-%s' $1 b; }; X=1; go $(f 3) $X", "3-b 1"),
    ("go $(echo '4*2' | bc) $(echo a_b_c | cut -d_ -f2) $(seq 5 | tail -n 1) $(printf '1\\n2\\n' | wc -l)", "8 b 5 2"),
    ("A=(--a 1); A+=(--b 2); go \"${A[@]}\"", "--a 1 --b 2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), COUNTED)
def test_what_bash_counts_is_counted(text: str, words: str) -> None:
    """Loops, arithmetic that changes its variable, and what reads and prints: as bash has it (checked below)."""
    assert " ".join(run(text)[1:]) == words


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_what_bash_counts_is_what_bash_says() -> None:
    """The table above, run by bash itself."""
    for text, words in COUNTED:
        printed = subprocess.run(["bash", "-c", f'go() {{ echo "$@"; }}; {text}'], capture_output=True, text=True)
        assert printed.stdout.strip() == words, text


@pytest.mark.parametrize(
    "text",
    [
        "while true; do go 8; done",
        "while true; do X=$((X+1)); go 8; done",
        "while [ -f x ]; do go 8; done",
        "until [ -f x ]; do go 8; done",
        "for ((;;)); do go 8; done",
        "X=aaaa; [[ $X =~ (a+)+$ ]]; go 8",
        "X=aaaa; [[ $X =~ (a|a)*b$ ]]; go 8",
        "cat f | while read L; do X=$L; done; go 8",
    ],
)
def test_what_nobody_knows_to_end_is_read(text: str) -> None:
    """The command in it is found, once at least, and the budget is kept."""
    assert any(command.words == ("go", "8") for command in read_script(text).commands)
