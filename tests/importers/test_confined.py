"""What a script names is read below its own folder only: nothing outside, no link out, no device, no FIFO."""

import os
from pathlib import Path

import pytest

from importers import import_file
from program.confined import Confined
from program.errors import InputError
from tests.importers.imported import imported, said, script
from windtunnel.source import RunSource

SECRET = "hidden-9471"
JSON = f'{{"train_micro_batch_size_per_gpu": "{SECRET}"}}'


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with a script's files, and beside it one that is nobody's business."""
    outside, inside = tmp_path / "outside", tmp_path / "jobs"
    outside.mkdir()
    (inside / "conf").mkdir(parents=True)
    (outside / "secret.json").write_text(JSON)
    (outside / "secret.toml").write_text(f'[model]\nname = "{SECRET}"\nflavor = "8B"\n')
    (outside / "secret.sh").write_text(f"TP={SECRET}\n")
    (inside / "conf" / "own.txt").write_text("own\n")
    return inside


def places(jobs: Path, suffix: str) -> dict[str, str]:
    """Ways to name a file that is not below the folder."""
    (jobs / f"link{suffix}").symlink_to(jobs.parent / "outside" / f"secret{suffix}")
    (jobs / "way").symlink_to(jobs.parent / "outside")
    (jobs / f"relative{suffix}").symlink_to(Path("..") / "outside" / f"secret{suffix}")
    (jobs / f"twice{suffix}").symlink_to(f"link{suffix}")
    os.mkfifo(jobs / f"fifo{suffix}")
    (jobs / f"zero{suffix}").symlink_to("/dev/zero")
    (jobs / f"kernel{suffix}").symlink_to("/proc/self/environ")
    (jobs / f"folder{suffix}").mkdir()
    (jobs / f"loop{suffix}").symlink_to(f"loop{suffix}")
    names = ["link", "relative", "twice", "fifo", "zero", "kernel", "folder", "loop"]
    return {name: f"{name}{suffix}" for name in names} | {
        "absolute": str(jobs.parent / "outside" / f"secret{suffix}"),
        "dots": f"../outside/secret{suffix}",
        "dots inside": f"conf/../../outside/secret{suffix}",
        "below a link": f"way/secret{suffix}",
        "device": "/dev/zero",
        "process": "/proc/self/environ",
    }


USES = {
    "source": (".sh", "source {}", "--tensor-model-parallel-size $TP"),
    "dot": (".sh", ". {}", "--tensor-model-parallel-size $TP"),
    "cat": (".sh", "X=$(cat {})", "--tensor-model-parallel-size $X"),
    "input": (".sh", "X=$(< {})", "--tensor-model-parallel-size $X"),
    "copy": (".sh", "cat {} > mine; X=$(cat mine)", "--tensor-model-parallel-size $X"),
    "cp": (".sh", "cp {} mine; source mine", "--tensor-model-parallel-size $TP"),
    "sed": (".sh", "sed 's/a/a/' {} > mine; source mine", "--tensor-model-parallel-size $TP"),
    "lines": (".sh", "mapfile X < {}", "--tensor-model-parallel-size ${{X[0]}}"),
    "deepspeed": (".json", "", "--deepspeed --deepspeed_config {}"),
    "torchtitan": (".toml", "", "--job.config_file {}"),
    "hostfile": (".sh", "", ""),
}


@pytest.mark.parametrize("use", USES)
def test_nothing_outside_the_folder_is_read(jobs: Path, use: str) -> None:
    """By no way to name it, whatever the script does with it; and no message holds what stands in it."""
    suffix, before, flags = USES[use]
    for how, name in places(jobs, suffix).items():
        launcher = f"deepspeed --hostfile {name}" if use == "hostfile" else "torchrun --nproc_per_node 8"
        text = script(f"{flags.format(name)} --bf16", launcher, before.format(name))
        result = imported(jobs, text)
        sentences = (*result.notes, *result.warnings, *result.problems, str(result.run_dict))
        assert not any(SECRET in each or "PATH=" in each for each in sentences), (how, sentences)


def test_another_folder_is_read_when_it_is_allowed(jobs: Path) -> None:
    """`--allow-read DIR`: by an absolute path, by `..` and through a link."""
    outside = jobs.parent / "outside"
    (outside / "sizes.sh").write_text("TP=4\n")
    (jobs / "link.sh").symlink_to(outside / "sizes.sh")
    for name in (str(outside / "sizes.sh"), "../outside/sizes.sh", "link.sh"):
        text = script("--tensor-model-parallel-size $TP --bf16", before=f"source {name}")
        assert imported(jobs, text, allow_read=[outside]).run_dict["plan"]["tensor_parallel"] == 4
        assert said(imported(jobs, text), "$TP is not defined in the script")
        assert said(imported(jobs, text, allow_read=[jobs / "conf"]), "$TP is not defined in the script")


def test_what_stops_a_read_is_said(jobs: Path) -> None:
    """A link that leads out and a FIFO are named; the FIFO is not waited for."""
    names = places(jobs, ".json")
    for how, reason in (("link", "leads outside"), ("fifo", "not a regular file"), ("below a link", "leads outside")):
        result = imported(jobs, script(f"--bf16 --deepspeed --deepspeed_config {names[how]}"))
        assert said(result, names[how], reason), (how, result.problems)


def test_a_large_file_is_read_up_to_the_limit(jobs: Path) -> None:
    """And no further, though it says that it is small."""
    with (jobs / "large").open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(InputError, match="large is larger than 1,000 bytes"):
        Confined(jobs).text("large", most=1_000)
    (jobs / "conf" / "own.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        Confined(jobs).text("conf/own.txt")


def test_a_folder_that_becomes_a_link_is_not_followed(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the path and the reading of the file."""
    (jobs / "conf" / "secret.json").write_text("{}")
    confined = Confined(jobs)
    place = confined.place("conf/secret.json")
    monkeypatch.setattr(Confined, "place", lambda self, name: place)
    assert confined.text("conf/secret.json") == "{}"
    (jobs / "conf").rename(jobs / "old")
    (jobs / "conf").symlink_to(jobs.parent / "outside")
    assert confined.text("conf/secret.json") is None


@pytest.mark.parametrize("key", ["data.path", "checkpoint.path", "cluster.profile", "model.preset"])
def test_a_comment_of_a_script_names_no_file_outside(jobs: Path, key: str) -> None:
    """`# windtunnel: data.path=…` counts as the script's word."""
    suffix = {"cluster.profile": ".yaml", "model.preset": ".json"}.get(key, ".bin")
    (jobs / f"own{suffix}").write_text("{}")
    for name in (f"../outside/x{suffix}", f"/etc/x{suffix}", f"./none{suffix}"):
        assert said(imported(jobs, script("--bf16", before=f"# windtunnel: {key}={name}")), key, "--set")
    words = f"# windtunnel: cluster.preset=dgx-a100-80gb {key}=own{suffix}"
    result = imported(jobs, script("--bf16", before=words), cluster=None)
    section, last = key.split(".")
    assert str(result.run_dict[section][last]) == os.path.realpath(jobs / f"own{suffix}")
    assert not result.problems


def test_paths_of_the_user_are_free(jobs: Path) -> None:
    """The script itself may be anywhere, also when its path is a link."""
    (jobs / "conf" / "run.sh").symlink_to(jobs / "launch.sh")
    (jobs / "launch.sh").write_text(script("--bf16"))
    assert import_file(jobs / "conf" / "run.sh", cluster="dgx-a100-80gb").run_dict["model"]["layers"] == 4


def test_the_option_of_the_command_line(jobs: Path) -> None:
    """`--allow-read` names a folder that exists."""
    (jobs.parent / "outside" / "sizes.sh").write_text("TP=4\n")
    path = jobs / "launch.sh"
    path.write_text(script("--tensor-model-parallel-size $TP --bf16", before="source ../outside/sizes.sh"))
    source = RunSource(str(path), cluster="dgx-a100-80gb", nodes=1, allow_read=(str(jobs.parent / "outside"),))
    assert source.load().plan.tensor_parallel == 4
    source.allow_read = ("/nowhere",)
    with pytest.raises(InputError, match="--allow-read /nowhere: there is no such folder"):
        source.load()
