"""The flag tables and how a command's words are grouped into flags and values."""

from pathlib import Path

import pytest

from importers import import_file
from importers import megatron_table as flags
from importers.arguments import Arguments
from importers.shell.expand import Expander
from importers.table import table
from plan.ledger import Ledger
from program.errors import InputError
from tests.importers.imported import imported, said, script


def parse(*words: str) -> Arguments:
    """Arguments of literal words."""
    return Arguments.parse(words, Expander(), Ledger())


def test_every_flag_stands_in_one_table() -> None:
    """A flag that were in two tables would be accounted for twice, or wrongly."""
    assert not flags.FLAGS.keys() & flags.RENAMED.keys()
    with pytest.raises(AssertionError, match="stands twice"):
        table(read="whole 1 | a b", idle="text | a")


def test_renamed_flags_lead_to_known_ones() -> None:
    """Every old name is rewritten into flags that are translated or without effect."""
    for new, _ in flags.RENAMED.values():
        assert flags.FLAGS[new.split()[0]].effect == "read"


def test_both_forms_and_negative_values() -> None:
    """`--flag value` and `--flag=value` are the same; -1 is a value."""
    arguments = parse("--num-layers=96", "--hidden-size", "64", "--seed", "-1", "--bf16")
    assert arguments.whole("--num-layers") == 96
    assert arguments.whole("--hidden-size") == 64
    assert arguments.given["--seed"] == "-1"
    assert arguments.has("--bf16")


@pytest.mark.parametrize(
    ("old", "key", "value"),
    [
        ("--batch-size 7", "micro_batch_size", 7),
        ("--model-parallel-size 4", "tensor_parallel", 4),
        ("--checkpoint-activations", "recompute", "full"),
        ("--recompute-activations", "recompute", "selective"),
    ],
)
def test_old_names_are_translated_with_a_note(tmp_path: Path, old: str, key: str, value: object) -> None:
    """Old flags mean what they meant, and the note says the new name."""
    result = imported(tmp_path, script(old).replace("--micro-batch-size 1 " if "batch" in old else "@", ""))
    assert result.run_dict["plan"][key] == value
    assert said(result, old.split()[0])
    assert not result.problems


def test_unknown_flag_names_the_nearest(tmp_path: Path) -> None:
    """A misspelt flag is a warning with the nearest name, a problem when strict."""
    result = imported(tmp_path, script("--tensor-model-paralel-size 2"))
    assert said(result, "--tensor-model-paralel-size", "did you mean --tensor-model-parallel-size?")
    assert result.run_dict["plan"]["tensor_parallel"] == 1
    assert (
        "--tensor-model-paralel-size"
        in imported(tmp_path, script("--tensor-model-paralel-size 2"), strict=True).problems[0]
    )


def test_flags_without_effect_are_listed(tmp_path: Path) -> None:
    """Data and logging flags are named in one note."""
    result = imported(tmp_path, script("--data-path /d/x 1.0 /d/y --log-interval 10 --save /c --mock-data"))
    assert said(result, "no effect on the forecast", "--data-path", "--log-interval", "--save", "--mock-data")


def test_flags_left_out_of_the_forecast_are_warnings(tmp_path: Path) -> None:
    """A flag that changes the real step but not the forecast says so."""
    assert said(
        imported(tmp_path, script("--no-masked-softmax-fusion")), "--no-masked-softmax-fusion", "keeps the fused kernel"
    )


def test_a_flag_given_twice(tmp_path: Path) -> None:
    """The last value counts, as in argparse, and both are reported."""
    result = imported(tmp_path, script("--seed 1 --seed 2"))
    assert result.run_dict["train"]["seed"] == 2
    assert said(result, "--seed is given twice, 1 and 2")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--recompute-num-layers --bf16", "--recompute-num-layers needs a value"),
        ("--rotary-base ten --position-embedding-type rope", "--rotary-base is 'ten', but must be a number"),
        ("--global-batch-size 5.5", "must be a whole number"),
        ("--bf16 --fp16", "--bf16 and --fp16 exclude each other"),
    ],
)
def test_bad_values(tmp_path: Path, words: str, complaint: str) -> None:
    """Values that cannot be read are problems that quote them."""
    assert said(imported(tmp_path, script(words)), complaint)


def test_stray_words_are_reported(tmp_path: Path) -> None:
    """A word that belongs to no flag is not swallowed."""
    assert said(imported(tmp_path, script("--bf16 oops")), "'oops' belongs to no flag")


def refused(folder: Path, flags: str) -> list[str]:
    """Every problem of a script on eight GPUs, sorted."""
    path = folder / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py --hidden-size 64 --seq-length 32 {flags}\n")
    with pytest.raises(InputError) as caught:
        import_file(path, cluster="dgx-a100-80gb", nodes=1)
    return sorted(caught.value.problems)


def test_every_wrong_number_is_said_at_once_under_its_own_flag(tmp_path: Path) -> None:
    """No flag hides another, and nothing follows from a wrong number: neither a missing flag nor a batch."""
    flags = "--num-layers 24.5 --micro-batch-size 0 --train-iters -5 --global-batch-size inf"
    assert refused(tmp_path, f"{flags} --num-attention-heads 4 --hidden-dropout 1 --adam-eps 0") == [
        "--adam-eps is 0; it must be above 0",
        "--global-batch-size is 'inf', but must be a number",
        "--hidden-dropout is 1; it must be below 1",
        "--micro-batch-size is 0; it must be at least 1",
        "--num-layers is 24.5, but must be a whole number (nearest: 24)",
        "--train-iters is -5; it must be at least 1",
    ]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--max-position-embeddings 0", "--max-position-embeddings is 0; it must be at least 1"),
        ("--group-query-attention --num-query-groups 0", "--num-query-groups is 0; it must be at least 1"),
        ("--lr-decay-iters 0", "--lr-decay-iters is 0; it must be at least 1"),
        ("--context-parallel-size many", "--context-parallel-size is 'many', but must be a number"),
        ("--tensor-model-parallel-size 0 --rampup-batch-size 3 1 9", "--tensor-model-parallel-size is 0"),
        ("--model-parallel-size 0", "--model-parallel-size is 0; it must be at least 1"),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 0",
            "--recompute-num-layers is 0",
        ),
    ],
)
def test_zero_is_not_an_absent_flag(tmp_path: Path, flags: str, problem: str) -> None:
    """Under the name that was written, alone."""
    (said,) = refused(tmp_path, f"--num-layers 4 --num-attention-heads 4 --micro-batch-size 1 {flags}")
    assert said.startswith(problem)
