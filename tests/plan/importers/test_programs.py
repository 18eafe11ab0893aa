"""Which of a script's commands is the training, and which program trains what we forecast."""

from pathlib import Path

import pytest

from tests.plan.importers.imported import SHAPE, imported, said


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("tools/generate_samples_gpt.py", "which does not pre-train"),
        ("../../tasks/main.py", "which does not pre-train"),
        ("tasks/eval_harness/evaluate.py", "which does not pre-train"),
        ("-m examples.inference.offline_inference", "which does not pre-train"),
        ("../analyze_data.py", "which does not pre-train"),
        ("pretrain_bert.py", "not yet forecast: the model of pretrain_bert.py"),
        ("examples/multimodal/train.py", "not yet forecast: the model of examples/multimodal/train.py"),
        ("my_gpt.py", "my_gpt.py is taken to train a decoder-only GPT"),
    ],
)
def test_a_program_that_is_no_gpt_training_is_named(tmp_path: Path, program: str, words: str) -> None:
    """Its flags alone would read like a training run."""
    result = imported(tmp_path, f"#!/bin/bash\ntorchrun --nproc_per_node 8 {program} {SHAPE} --bf16\n")
    assert said(result, words)


@pytest.mark.parametrize(
    "program", ["pretrain_gpt.py", "pretrain_gpt2.py", "finetune_train.py", "retrain_generator_train.py"]
)
def test_training_programs_pass_in_silence(tmp_path: Path, program: str) -> None:
    """Nothing is said about what is usual."""
    result = imported(tmp_path, f"#!/bin/bash\ntorchrun --nproc_per_node 8 {program} {SHAPE} --bf16\n")
    assert not result.problems
    assert not said(result, program)


def test_the_same_training_under_two_launchers_is_one(tmp_path: Path) -> None:
    """A debugger in one branch and torchrun in the other start the same flags."""
    text = f"""#!/bin/bash
A="{SHAPE} --bf16"
if [ -f debug ]; then debugpy-run torchrun --nproc_per_node 8 pretrain_gpt.py $A
else torchrun --nproc_per_node 8 pretrain_gpt.py $A; fi
"""
    result = imported(tmp_path, text)
    assert not result.problems
    assert said(result, "lines 3, 4 start the same training under different launchers: line 4 is taken")


def test_two_trainings_name_the_condition_between_them(tmp_path: Path) -> None:
    """And the variable that decides."""
    text = f"""#!/bin/bash
if [ "$BATCH" = 0 ]; then torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --bf16
else srun sh -c "echo python pretrain_gpt.py {SHAPE}; python pretrain_gpt.py {SHAPE} --fp16"; fi
"""
    result = imported(tmp_path, text)
    assert said(result, "starts 2 different training commands (lines 2, 3)", "the variable $BATCH is not defined")


def test_flags_inside_an_unknown_value_say_why(tmp_path: Path) -> None:
    """Not "no model flags": they are there, behind a condition."""
    text = f"""#!/bin/bash
A="{SHAPE} --bf16"
if [ "$STAGE" -gt 1 ]; then A="$A --no-pipeline-parallel"; fi
deepspeed pretrain_gpt.py $A
"""
    result = imported(tmp_path, text)
    assert said(result, "line 4 starts pretrain_gpt.py with", "where the variable $STAGE is not defined in the script")
