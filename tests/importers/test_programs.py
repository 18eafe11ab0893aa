"""Which of a script's commands is the training, and which program trains what we forecast."""

from pathlib import Path

import pytest

from tests.importers.imported import SHAPE, imported, said


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


HOSTS = "node-1 slots=8\n# node-2 slots=8\nnode-3 slots=8\n"


@pytest.mark.parametrize(
    ("launch", "nodes"),
    [
        ("srun -N2 -n16 python pretrain_gpt.py", 2),
        ("deepspeed --hostfile hosts pretrain_gpt.py", 2),
        ("deepspeed --hostfile=hosts pretrain_gpt.py", 2),
        ('D=(--nproc_per_node 8 --nnodes 3)\ntorchrun "${D[@]}" pretrain_gpt.py', 3),
    ],
)
def test_launchers_say_how_many_nodes(tmp_path: Path, launch: str, nodes: int) -> None:
    """In glued options, in DeepSpeed's file of hosts, in an array."""
    (tmp_path / "hosts").write_text(HOSTS)
    result = imported(tmp_path, f"#!/bin/bash\n{launch} {SHAPE} --bf16\n")
    assert not result.problems
    assert result.run_dict["cluster"]["nodes"] == nodes


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (
            "torchrun $DIST pretrain_gpt.py",
            "options contain $DIST, whose value is unknown: the variable $DIST is not def",
        ),
        ("deepspeed --hostfile /job/hosts pretrain_gpt.py", "--hostfile /job/hosts is not beside the script"),
        (
            "torchrun --nproc_per_node two pretrain_gpt.py",
            "torchrun --nproc_per_node is 'two', but must be a whole number",
        ),
        ("torchrun --nproc_per_node gpu --nnodes 2 pretrain_gpt.py", "one process for each GPU that a node"),
        ("python pretrain_gpt.py", "nodes: one of 8 GPUs; --nodes N changes"),
    ],
)
def test_a_size_that_nobody_can_know_is_asked_for(tmp_path: Path, launch: str, words: str) -> None:
    """And `--nodes` answers it."""
    text = f"#!/bin/bash\n{launch} {SHAPE} --bf16\n"
    assert said(imported(tmp_path, text), words)
    if "two" not in launch:
        assert not imported(tmp_path, text, nodes=2).problems


@pytest.mark.parametrize(
    "text",
    [
        "for h in a b; do ssh $h 'LAUNCH' & done; wait",
        "srun --nodes=2 bash -c 'LAUNCH'",
        "srun bash <<'EOF'\nLAUNCH\nEOF",
        'docker run --gpus all image bash -c "LAUNCH"',
        'run() {\n  local tp=$1; shift\n  torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py SHAPE "$@"\n}\nrun x',
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py $(cat args.txt)",
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py $(< args.txt)",
        "export $(cat .env | xargs)\ntorchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py SHAPE",
        'readarray -t A < lines.txt\ntorchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py "${A[@]}"',
        "set -a; source .env\nexec torchrun --nnodes ${NODES} --nproc_per_node=8 pretrain_gpt.py SHAPE | tee log",
    ],
)
def test_ways_to_say_the_same(tmp_path: Path, text: str) -> None:
    """Through ssh, a shell inside a launcher, functions, and files beside the script."""
    (tmp_path / "args.txt").write_text(f"{SHAPE} --bf16")
    (tmp_path / "lines.txt").write_text("\n".join(f"{SHAPE} --bf16".split()))
    (tmp_path / ".env").write_text("NODES=2\n")
    launch = f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {SHAPE} --bf16"
    result = imported(tmp_path, "#!/bin/bash\n" + text.replace("LAUNCH", launch).replace("SHAPE", f"{SHAPE} --bf16"))
    assert not result.problems
    assert result.run_dict["cluster"]["nodes"] == 2
    assert result.run_dict["model"]["layers"] == 4
    assert not said(result, "belongs to no flag")
