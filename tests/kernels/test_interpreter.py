"""Runs the kernel suites (interp_*.py) in Triton's interpreter, in a process of its own: TRITON_INTERPRET is read
when kernels are defined.

On a machine with a GPU the same files run compiled: `python -m pytest tests/kernels/interp_*.py`.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import soaking

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_in_the_interpreter():
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }
    files = sorted(str(path) for path in HERE.glob("interp_*.py"))
    assert len(files) >= 5
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    done = subprocess.run(
        [*command, "-m", "not gpu" if soaking() else "not gpu and not soak", *files],
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.splitlines()[-1]
    assert " passed" in summary, summary
    assert "skipped" not in summary, summary
