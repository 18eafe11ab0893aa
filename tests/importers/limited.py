"""Imports scripts one by one, each in a process of its own that may use 2 s of processor time and 100 MB more than at
its start; prints what became of each.

    python -m tests.importers.limited FOLDER   ->   {"powers.sh": ["refused", "line 2: …"], …}
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

from importers import import_file
from program.errors import InputError

SECONDS, MEMORY = 2, 100 << 20


def verdict(path: Path) -> list[str]:
    """How one import ended: read, refused with its problems, or by the name of the signal that ended it."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        os.write(into, json.dumps(_imported(path)).encode())
        os._exit(0)
    os.close(into)
    with open(out, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    return list(json.loads(said)) if said else [signal.Signals(os.WTERMSIG(status)).name, ""]


def _imported(path: Path) -> list[str]:
    try:
        import_file(path, cluster="dgx-a100-80gb", nodes=1)
    except InputError as error:
        return ["refused", str(error)[:2000]]
    except BaseException as error:
        return [type(error).__name__, str(error)[:2000]]
    return ["read", ""]


if __name__ == "__main__":
    warm = Path(sys.argv[1]) / "warm.sh"  # what is imported and cached once is no script's memory
    warm.write_text("torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --x 1\n")
    _imported(warm)
    found = {path.name: verdict(path) for path in sorted(Path(sys.argv[1]).glob("*.sh")) if path != warm}
    print(json.dumps(found))
