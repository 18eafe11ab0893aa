"""The hash tells programs apart, and nothing else."""

import subprocess
import sys
from dataclasses import replace

from program import Execution, Group
from program.hashing import program_hash
from tests.program.edit import drop_wait, rebind, swap
from tests.program.handmade import tiny_program

AGAIN = "from tests.program.handmade import tiny_program; print(tiny_program().hash)"


def test_equal_programs_have_equal_hashes_in_every_process() -> None:
    program = tiny_program()
    assert program_hash(program) == program_hash(tiny_program()) == program.hash
    assert len(program.hash) == 32
    for seed in ("0", "1"):
        found = subprocess.run(
            [sys.executable, "-c", AGAIN],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        )
        assert found.stdout.decode().strip() == program.hash


def test_every_executed_detail_changes_the_hash() -> None:
    program = tiny_program()
    edited = [
        swap(program, 1, 4, 0, 1),
        drop_wait(program, 0, 4, 0),
        rebind(program, 0, 5, 2, (-1, -1)),
        replace(program, class_of=(0, 1, 0, 1)),
        replace(program, groups=program.groups | {"dp": (Group("dp", (0, 2)), Group("dp", (1, 3)))}),
        replace(program, classes=program.classes[::-1]),
        replace(program, execution=Execution("eager")),
        replace(program, execution=Execution(graph=True)),
        replace(program, execution=Execution(own_host_code=False)),
    ]
    hashes = {program_hash(p) for p in [program, *edited]}
    assert len(hashes) == len(edited) + 1


def test_words_that_are_not_executed_do_not() -> None:
    program = tiny_program()
    assert program_hash(replace(program, rules={"pipeline": "otherwise"}, hash="")) == program.hash
