"""coverage.md tells the truth: every case has a row, and every file a row names has a test of that case."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = ("import", "oom", "throughput", "scaling", "arithmetic")


def rows() -> dict[str, str]:
    """Case number → what covers it."""
    found: dict[str, str] = {}
    for numbers, covered in re.findall(
        r"^\| ([\d, ]+) \| (.*?) \|", (FOLDER / "coverage.md").read_text(), re.MULTILINE
    ):
        found |= {number.strip(): covered for number in numbers.split(",")}
    return found


def test_every_case_has_a_row() -> None:
    """And no row is of a case that is not there."""
    assert set(rows()) == {path.name[:3] for path in (FOLDER / "data").glob("[0-9]*.yaml")}


def test_every_file_that_a_row_names_has_a_test_of_the_case() -> None:
    """By the number in the test's name, or in the list of what it is run on."""
    for number, covered in rows().items():
        for name in FILES:
            if re.search(rf"(?:^|; )(?:[\w, ]+ and )?{name}\b(?=[:;,]|$| and)", covered):
                texts = [path.read_text() for path in FOLDER.glob(f"test_cases_{name}*.py")]
                named = rf'def test_(\d+_(and_)?)*{number}_|\("{number}", '
                assert any(re.search(named, text) for text in texts), (number, name)


def test_every_other_file_that_is_named_exists() -> None:
    """`tests/trainer/test_parity.py` and the like."""
    for covered in rows().values():
        for path in re.findall(r"`(tests/[\w/]+\.py)`", covered):
            assert (FOLDER.parents[1] / path).exists(), path
