"""The process of one rank on this machine, as `trainer.launch` starts it:
`python -m windtunnel.rank RUN_FOLDER STORE WORDS`, where ranks meet in the file STORE and WORDS is a pipe to the
launcher.

The launcher starts ranks with Ctrl-C (SIGINT) blocked and sends it on when it is itself interrupted. It is unblocked
here, before torch is imported: until the rank trains there is nothing to put away and nothing to say, and from then on
it ends the step and closes its files. The launcher speaks for all ranks.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

INTERRUPTED = 128 + signal.SIGINT


def main(folder: Path, store: str, words: int) -> int:
    """Train this rank; its exit code."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from torch.distributed import FileStore

    from trainer.processes import LONGEST_WORDS
    from trainer.run import main as train
    from windtunnel.job import told

    def say(text: str) -> None:
        os.write(words, text.encode(errors="replace")[:LONGEST_WORDS])

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return train(folder, FileStore(store, int(os.environ["WORLD_SIZE"])), say, told)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    sys.stderr.flush()
    os._exit(code)  # a failed job leaves threads that wait for ranks that are gone
