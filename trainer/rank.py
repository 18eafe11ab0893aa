"""The process of one rank, as torchrun starts it: `python -m trainer.rank RUN_FOLDER`.

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


def main(folder: Path) -> int:
    """Train this rank; its exit code."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from trainer.run import main as train

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return train(folder)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # a failed job leaves threads that wait for ranks that are gone
