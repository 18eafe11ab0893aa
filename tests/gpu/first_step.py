"""How long it is from `windtunnel train` to step 0 on two GPUs: examples/h200-first-step.yaml, first as the machine is
found, then again with Triton's cache warm; the phases as log.txt has them, and the whole as the clock has it.

    python tests/gpu/first_step.py [--set plan.kernels=compiled …]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def once(folder: Path, options: list[str]) -> None:
    """Train the example into `folder` and print where the time went."""
    run = ROOT / "examples" / "h200-first-step.yaml"
    began = time.time()
    command = [sys.executable, "-m", "windtunnel", "train", str(run), "--output", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}")
    (line,) = (row for row in (folder / "log.txt").read_text().splitlines() if "from the command to step 0" in row)
    steps = [json.loads(row) for row in (folder / "steps.jsonl").read_text().splitlines()]
    print(line)
    print(
        "steps:", ", ".join(f"{step['step_time_s']:.2f} s" for step in steps), f"; in all {time.time() - began:.1f} s"
    )


def main() -> None:
    """Twice: the second run finds what the first one compiled."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "again"):
            print(f"== {name}")
            once(Path(folder) / name, sys.argv[1:])


if __name__ == "__main__":
    main()
