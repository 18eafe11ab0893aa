"""Wrong input: a sentence for each problem, exit 2, never a traceback, and the same under --json."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.windtunnel.run_folders import profile_file

Call = Callable[..., Any]
RUN_COMMANDS = ("forecast", "program", "train", "import")


@pytest.fixture
def bad(tmp_path: Path) -> dict[str, Path]:
    """Files that are no run files."""
    contents = {
        "empty.yaml": b"", "list.yaml": b"- 1\n- 2\n", "text.yaml": b"just words", "binary.yaml": bytes(range(256)) * 4,
        "broken.yaml": b"model: {layers: 2\n", "twice.yaml": b"model: gpt2-124m\nmodel: gpt2-124m\n",
        "nan.yaml": b"model: gpt2-124m\ncluster: cpu\nplan: {tensor_parallel: .nan}\noptimizer: {lr: .nan}\n",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.yaml").mkdir()
    return {name.removesuffix(".yaml"): tmp_path / name for name in (*contents, "folder.yaml", "missing.yaml")}


@pytest.mark.parametrize("command", RUN_COMMANDS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty", "is empty"), ("list", "holds a list"), ("text", "holds text"), ("binary", "is not"),
        ("broken", "not valid YAML"), ("twice", "given twice"), ("nan", "nan"), ("folder", "cannot be read"),
        ("missing", "does not exist"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_run_file(command: str, kind: str, said: str, bad: dict[str, Path], wt: Call) -> None:
    called = wt(command, bad[kind], "--json")
    assert called.code == 2
    assert said in called.err
    assert said in " ".join(called.json["error"]["problems"])


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_all_mistakes_of_a_run_file_at_once(command: str, run_file: Call, wt: Call) -> None:
    path = run_file(plan={"tensor_paralel": 2, "micro_batch_size": -1}, model={"layers": "many"}, trian={})
    problems = wt(command, path, "--json").json["error"]["problems"]
    text = "\n".join(problems)
    assert len(problems) >= 4
    for word in ("tensor_parallel", "micro_batch_size", "layers", "train"):
        assert word in text


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["plan.tensor_parallel=3"], "tensor_parallel"),
        (["plan.pipeline_parallel=7"], "at most 4 stages"),
        (["plan.micro_batch_size=3", "plan.global_batch_size=4"], "global_batch_size"),
        (["plan.zero_stage=3", "plan.pipeline_parallel=2"], "incompatible with pipeline parallelism"),
        (["plan.precision=fp8"], "not yet forecast"),
        (["plan.tensor_paralel=2"], "tensor_parallel"),
        (["tensor_parallel=2"], "section.key=value"),
        (["plan.tensor_parallel"], "section.key=value"),
        (["plan.tensor_parallel={"], "not valid YAML"),
        (["cluster={preset: dgx-h100, gpus: 5}"], "the cluster has 5 GPUs"),
        (["model.preset=gpt5"], "gpt"),
    ],
)
def test_impossible_plans_name_value_and_rule(overrides: list[str], said: str, run_file: Call, wt: Call) -> None:
    options = [word for text in overrides for word in ("--set", text)]
    called = wt("program", run_file(), *options)
    assert called.code == 2
    assert said in called.err


def test_unknown_presets_name_the_nearest(tmp_path: Path, run_file: Call, wt: Call) -> None:
    assert "dgx-h100" in wt("program", run_file(), "--cluster", "dgx-h10").err
    assert "llama-3-8b" in wt("program", run_file(), "--model", "llama3-8b").err
    for nodes in ("-1", "0"):
        assert "give at least 1" in wt("program", run_file(), "--nodes", nodes).err
    bare = tmp_path / "bare.yaml"
    bare.write_text("model: gpt2-124m\nplan: {tensor_parallel: 2}\n")
    assert "names no cluster; add --cluster PRESET" in wt("program", bare, "--nodes", 1).err


def test_a_rank_that_does_not_exist(run_file: Call, wt: Call) -> None:
    called = wt("program", run_file(), "--rank", 7)
    assert called.code == 2
    assert "ranks 0 to 1" in called.err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "many", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        ("check", "a", "b", "--tolerance"),
        ("compare", "a", "--top"),
        ("forecast", "RUN", "--nodes"),
        ("program", "RUN", "--rank"),
    ],
)
def test_numbers_on_the_command_line_that_are_none(
    command: Sequence[str], number: str, run_file: Call, wt: Call
) -> None:
    called = wt(*(run_file() if word == "RUN" else word for word in command[:-1]), f"{command[-1]}={number}", "--json")
    assert called.code == 2
    assert command[-1] in called.json["error"]["problems"][0]


@pytest.mark.parametrize("command", ["compare", "check"])
def test_run_folders_that_are_none(command: str, tmp_path: Path, wt: Call) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("nowhere", "does not exist"),
        ("file", "is a file"),
        ("empty", "run.yaml, steps.jsonl, timeline"),
    ):
        arguments = [tmp_path / name] * (2 if command == "check" else 1)
        called = wt(command, *arguments)
        assert called.code == 2
        assert said in called.err


def test_compare_with_files_that_are_no_timelines(tmp_path: Path, run_file: Call, wt: Call) -> None:
    path = run_file()
    assert "not a gzipped JSON file" in wt("compare", path, path).err
    assert "is a folder" in wt("compare", tmp_path, path).err
    assert wt("compare", tmp_path / "a.json.gz", path).code == 2


NESTED, CUT = (gzip.compress(text, mtime=0) for text in (b"[" * 200_000, b"x" * 999))  # no clock in a test's content


@pytest.mark.parametrize("content", [NESTED, CUT[:-9] + b"?" * 9], ids=["nested", "cut"])
def test_compare_with_damaged_timelines(content: bytes, tmp_path: Path, wt: Call) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    called = wt("compare", path, path)
    assert called.code == 2
    assert "is not a gzipped JSON file" in called.err


@pytest.mark.parametrize(("name", "launcher"), [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("SLURM_STEP_NUM_TASKS", "srun")])
def test_a_launcher_that_is_not_torchrun_is_named(
    name: str, launcher: str, run_file: Call, wt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 062: every process would find a world of one."""
    monkeypatch.setenv(name, "8")
    called = wt("train", run_file())
    assert called.code == 2
    assert f"{launcher} started 8 processes of this command ({name}=8)" in called.err
    assert "RANK, WORLD_SIZE and LOCAL_RANK come from torchrun" in called.err


def test_a_device_that_cannot_be_calibrated(tmp_path: Path, wt: Call) -> None:
    assert "--device tpu: it must be one of cpu, cuda" in wt("calibrate", "--device", "tpu").err
    assert "did you mean 'triton'" in wt("calibrate", "--device", "cuda", "--kernels", "tritn").err
    assert "did you mean 'h200" in wt("calibrate", "--device", "cuda", "--base", "h20").err
    for option, value in (("--kernels", "eager"), ("--base", "h200")):  # not measured for a minute, then forgotten
        called = wt("calibrate", option, value)
        assert (called.code, f"{option} {value}: a CPU's profile has no use for it" in called.err) == (2, True)
    assert "is a folder" in wt("calibrate", "--output", tmp_path).err
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in wt("calibrate", "--output", tmp_path / "file" / "p.yaml").err


def test_a_forecast_without_a_profile_names_calibrate(
    tmp_path: Path, run_file: Call, wt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    called = wt("forecast", run_file())
    assert called.code == 2
    assert "windtunnel calibrate" in called.err


@pytest.mark.parametrize(("content", "said"), [("", "empty"), ("{a: 1}", ""), ("name: [", "YAML"), ("- 1", "")])
def test_a_broken_profile(content: str, said: str, tmp_path: Path, run_file: Call, wt: Call) -> None:
    (tmp_path / "p.yaml").write_text(content)
    called = wt("forecast", run_file(), "--profile", tmp_path / "p.yaml")
    assert called.code == 2
    assert said in called.err


def test_numbers_that_are_none_in_a_profile_are_named_by_path(tmp_path: Path, run_file: Call, wt: Call) -> None:
    path = profile_file(tmp_path / "p.yaml", gemm_flops_per_s=float("nan"), bus_bytes_per_s=-1.0)
    problems = wt("forecast", run_file(), "--profile", path, "--json").json["error"]["problems"]
    assert any("gemm[0].form.flops_per_s: nan" in problem for problem in problems)
    assert sum("bus_bytes_per_s: -1" in problem for problem in problems) == 4


def test_communication_that_a_profile_does_not_price_is_not_free(tmp_path: Path, run_file: Call, wt: Call) -> None:
    path = profile_file(tmp_path / "p.yaml", collectives=[])
    called = wt("forecast", run_file(), "--profile", path)
    assert called.code == 2
    assert "has no entry for collectives, and the run has 2 ranks on 1 nodes" in called.err


def test_a_step_longer_than_any_time(tmp_path: Path, run_file: Call, wt: Call) -> None:
    called = wt("forecast", run_file(), "--profile", profile_file(tmp_path / "p.yaml", gemm_flops_per_s=1e-300))
    assert called.code == 2
    assert "gemm[0].form.flops_per_s: 1e-300 is not a finite number at least 1e-18" in called.err


def test_options_that_would_do_nothing(run_file: Call, wt: Call) -> None:
    assert "only a launch script has variables" in wt("program", run_file(), "--var", "N=1").err
    assert "cluster.nodes is 2, but a cpu cluster is this machine" in wt("program", run_file(), "--nodes", 2).err


def test_an_unknown_profile_names_the_nearest(run_file: Call, wt: Call) -> None:
    called = wt("forecast", run_file(), "--profile", "cpuu")
    assert called.code == 2
    assert "'cpu'" in called.err


def test_a_demo_folder_in_use(tmp_path: Path, wt: Call) -> None:
    (tmp_path / "x").write_text("")
    called = wt("demo", "--output", tmp_path)
    assert called.code == 2
    assert "not an empty folder" in called.err


def test_a_profile_of_another_kind_of_device(run_file: Call, wt: Call) -> None:
    called = wt("forecast", run_file(), "--profile", "h100")
    assert called.code == 2
    assert "is of a cuda device" in called.err


@pytest.mark.parametrize(
    "text",
    [
        "model.layers=-1", "model.layers=1e999", "model.hidden=.inf", "model.hidden=0", "model.heads=3",
        "train.steps=0", "plan.tensor_parallel=true", "plan.schedule=[1]", "optimizer.lr=-1", "model.vocab=null",
        "cluster={}", "plan=7", "a.b=c", "model={preset: 3}", "plan.recompute={layers: 99}",
        "plan.pipeline_layout=[1, 2, 3]", "cluster.host.cores=0",
    ],
)  # fmt: skip
def test_odd_values_are_sentences(text: str, run_file: Call, wt: Call) -> None:
    called = wt("program", run_file(), "--set", text, "--json")
    assert called.code == 2, called.out[:300]
    assert called.json["error"]["problems"]


@pytest.mark.parametrize("name", ["script.sh", "config.json", "noext", "job.toml"])
@pytest.mark.parametrize("content", [b"", b"{", b"hello", bytes(range(256)), b"[]", b"null"])
def test_foreign_files_that_are_none(name: str, content: bytes, tmp_path: Path, wt: Call) -> None:
    (tmp_path / name).write_bytes(content)
    called = wt("forecast", tmp_path / name, "--cluster", "dgx-h100", "--nodes", 1)
    assert called.code == 2
    assert called.err.strip()


def test_a_script_variable_that_is_no_assignment(tmp_path: Path, wt: Call) -> None:
    (tmp_path / "run.sh").write_text("python pretrain_gpt.py --num-layers 2\n")
    assert "write NAME=VALUE" in wt("import", tmp_path / "run.sh", "--var", "oops").err


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_an_endless_file(command: str, wt: Call) -> None:
    called = wt(command, "/dev/zero")
    assert called.code == 2
    assert "/dev/zero is larger than 64 MiB" in called.err


@pytest.mark.parametrize(("content", "said"), [(b"\xff\xfe", "byte 0 is not UTF-8"), (b"7", "holds no run file")])
def test_standard_input_that_is_no_run_file(
    content: bytes, said: str, tmp_path: Path, wt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the locale makes of bytes that are no text."""
    (tmp_path / "in").write_bytes(content)
    with (tmp_path / "in").open(encoding="utf-8", errors="surrogateescape") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        called = wt("program", "-")
    assert called.code == 2
    assert said in called.err


@pytest.mark.parametrize(
    ("name", "launch"),
    [
        ("ds.json", "deepspeed --num_gpus 8 pretrain_gpt.py {shape} --deepspeed --deepspeed_config ds.json"),
        ("job.toml", "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file job.toml"),
    ],
)
def test_a_file_beside_a_script_that_is_no_text(name: str, launch: str, tmp_path: Path, wt: Call) -> None:
    shape = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1"
    (tmp_path / name).write_bytes(bytes(range(256)))
    (tmp_path / "run.sh").write_text(launch.format(shape=shape) + "\n")
    called = wt("import", tmp_path / "run.sh", "--cluster", "dgx-h100", "--nodes", 1)
    assert called.code == 2
    assert f"{name} is not UTF-8 text" in called.err


def test_a_word_on_the_command_line_that_is_none(run_file: Call, wt: Call) -> None:
    called = wt("forecast", run_file(), "--flops", "none")
    assert called.code == 2
    assert "Invalid value for '--flops': 'none' is not one of 'exact', 'megatron', 'palm'" in called.err


@pytest.mark.parametrize(("path", "said"), [("missing.npy", "does not exist"), (".", "is a folder")])
def test_training_data_that_is_not_there(
    path: str, said: str, tmp_path: Path, run_file: Call, wt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before torch is imported, and no folder is left behind."""
    monkeypatch.setattr("windtunnel.training._trainer", lambda: pytest.fail("torch would be imported"))
    called = wt("train", run_file(data={"path": str(tmp_path / path)}), "--output", tmp_path / "out")
    assert called.code == 2
    assert said in called.err
    assert not (tmp_path / "out").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, wt: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a minute of measuring."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("calibration.calibrate.calibrate", lambda *_, **__: pytest.fail("measuring"))
    called = wt("calibrate")
    assert called.code == 2
    assert "the profile cannot be written to" in called.err
