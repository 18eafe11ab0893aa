"""Files around a launch script: sourced ones, templates filled in by sed, paths made from `$0`, configurations whose
name is not fully known.
"""

from pathlib import Path

import pytest

from importers import import_file
from importers.shell import read_script
from tests.importers.imported import SHAPE, imported, said, script

DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": STAGE}, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(
    "how",
    [
        "source ./sizes.sh",
        ". sizes.sh",
        'source "$(dirname "$0")/sizes.sh"',
        'D="$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd )"\nsource $D/sizes.sh',
        "D=$(cd $(dirname $0); pwd)\n. ${D}/sizes.sh",
        "D=$(dirname $(realpath $0))\n. ${D}/sizes.sh",
    ],
)
def test_a_file_sourced_beside_the_script_is_read(tmp_path: Path, how: str) -> None:
    """What it defines counts, and a warning says that it was read."""
    (tmp_path / "sizes.sh").write_text("export TP=4\n")
    result = imported(tmp_path, script("--tensor-model-parallel-size $TP --bf16", before=how))
    assert result.run_dict["plan"]["tensor_parallel"] == 4
    assert said(result, "sizes.sh is read beside the script")
    assert not result.problems


def test_what_an_unread_file_may_define_is_unknown(tmp_path: Path) -> None:
    """Undefined variables are reported with the file; defaults and emptiness of such variables are not assumed."""
    before = 'source /shared/env/start\nPP=${PP:-2}\n[ -z "$MBS" ] && SEQ=64'
    flags = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --kv-channels $SEQ --bf16"
    result = imported(tmp_path, script(flags, before=before))
    reason = "(line 2 sources /shared/env/start, which is not read)"
    for flag, variable in (("tensor-model", "$TP"), ("pipeline-model", "$PP"), ("kv-channels", "$MBS")):
        assert said(result, flag, f"{variable} is not defined in the script {reason}")


def test_an_unread_file_that_defines_nothing_we_use_is_a_warning(tmp_path: Path) -> None:
    """As every script of a cluster with a start-up file has it."""
    result = imported(tmp_path, script("--bf16", before="source $WORK/start-prod"))
    assert not result.problems
    assert said(result, "line 2 sources $WORK/start-prod, which is not found beside the script")


def test_a_file_that_sources_itself_is_refused(tmp_path: Path) -> None:
    """With the line, before memory is full."""
    (tmp_path / "a.sh").write_text("source a.sh\n")
    with pytest.raises(Exception, match="nests 41 deep .*, more than the 40 allowed"):
        imported(tmp_path, script("--bf16", before="source a.sh"))


@pytest.mark.parametrize(
    "write",
    [
        'sed "s/STAGE/${Z}/" ds.template > $F',
        'sed -e "s/STAGE/${Z}/" -e "s/bf16/bf16/g" ds.template > $F',
        'cat ds.template | sed "s#STAGE#$Z#g" > $F',
        'sed "s/STAGE/X/" ds.template \\\n | sed "s/X/${Z}/" \\\n > ${F}',
        'sed "s/STAGE/$Z/" ds.template | tee $F',
    ],
)
def test_a_template_filled_in_by_sed_is_the_configuration(tmp_path: Path, write: str) -> None:
    """The file stands beside the script; what sed writes is read as if it were there."""
    (tmp_path / "ds.template").write_text(DEEPSPEED)
    before = f"Z=1\nF=ds_made.json\n{write}"
    result = imported(tmp_path, script("--bf16 --deepspeed --deepspeed_config $F", before=before))
    assert result.run_dict["plan"]["zero_stage"] == 1
    assert not said(result, "neither written by the script nor beside it")


def test_sed_that_is_more_than_plain_text_is_not_guessed(tmp_path: Path) -> None:
    """A regular expression leaves the file unknown."""
    found = read_script("sed 's/S.*E/1/' ds.template > a.json", path=tmp_path / "x.sh")
    (tmp_path / "ds.template").write_text(DEEPSPEED)
    assert found.files == {}


def test_a_configuration_named_by_the_job_is_the_one_the_script_writes(tmp_path: Path) -> None:
    """Only its name is unknown: `ds_config.$SLURM_JOBID.json`."""
    before = f"F=./ds_config.$SLURM_JOBID.json\ncat <<EOT > $F\n{DEEPSPEED.replace('STAGE', '0')}\nEOT"
    result = imported(tmp_path, script("--bf16 --deepspeed --deepspeed_config $F", before=before))
    assert not result.problems
    assert said(result, "ZeRO stage 0 with bf16")


def test_an_environment_is_not_read(tmp_path: Path) -> None:
    """Activating one defines nothing that matters."""
    found = read_script("source ./venv/bin/activate\n")
    assert "taken to set up an environment only" in found.warnings[0]


def test_a_script_of_another_machine_is_read_with_its_line_ends_and_mark(tmp_path: Path) -> None:
    """CRLF, a UTF-8 mark and tabs change nothing; SLURM's header is still found."""
    header = "\ufeff#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:8\n"
    text = f"{header}srun python pretrain_gpt.py \\\n\t{SHAPE} --bf16\n"
    path = tmp_path / "job.slurm"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    result = import_file(path, cluster="dgx-a100-80gb")
    assert (result.run_dict["cluster"]["nodes"], result.run_dict["cluster"].get("gpus_per_node", 8)) == (2, 8)
