"""Training text: token files, memory-mapped, and a pure function from (seed, step, sample) to the tokens of a sequence.

`builtin` is the Python standard library's own source, one byte a token, files sorted by path: real text that is on
every machine. It is written once to a cache folder. Any other path names a `.npy` file of integers (one dimension, any
integer type), Megatron's `.bin` with its `.idx` (`trainer.indexed`), or text for a tokenizer (`trainer.corpus`).

Ids outside the vocabulary are refused, by position and value, before a step reads them: a file of up to 1 GB is looked
through when it is opened; of a larger one each rank looks at the whole global batch of a step, so that all ranks refuse
alike, while the step before it runs.

The text is cut into windows of seq + 1 tokens; a keyed permutation of the windows orders every epoch. Sample s of the
global batch at step t is window (t · global batch + s), whichever rank asks, so the order of samples does not depend on
the layout.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch

from program.errors import InputError

Tensor = torch.Tensor
ROUNDS = 4
WHOLE_BYTES = 10**9
PART = 1 << 24  # ids looked at in one go
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class TokenFile:
    """Sequences of a token file. `tokens` is one-dimensional. Raises InputError where it is too short, or holds an id
    outside the vocabulary; beyond `whole_bytes` ids are looked at batch by batch."""

    def __init__(
        self,
        tokens: np.ndarray,
        seq: int,
        global_batch: int,
        seed: int,
        vocab: int,
        name: str = "tokens",
        whole_bytes: int = WHOLE_BYTES,
    ) -> None:
        self.tokens, self.seq, self.global_batch, self.seed, self.vocab, self.name = (
            tokens,
            seq,
            global_batch,
            seed,
            vocab,
            name,
        )
        self.windows = (len(tokens) - 1) // seq
        if self.windows < 1:
            raise InputError(f"{name} holds {len(tokens)} tokens; one sequence of seq_length {seq} needs {seq + 1}")
        self.checked = tokens.nbytes <= whole_bytes
        if self.checked:
            for first in range(0, len(tokens), PART):
                self._check(first, tokens[first : first + PART])

    def batch(self, step: int, samples: tuple[int, ...]) -> Tensor:
        """(samples, seq + 1) int64. Raises InputError for an id outside the vocabulary."""
        sequences = []
        for sample in samples:
            first = self._first(step * self.global_batch + sample)
            ids = self.tokens[first : first + self.seq + 1]
            if not self.checked:
                self._check(first, ids)
            sequences.append(ids.astype(np.int64))
        return torch.from_numpy(np.stack(sequences))

    def check(self, step: int) -> None:
        """Look at every id of a step's global batch. Raises InputError for one outside the vocabulary."""
        for sample in range(0 if self.checked else self.global_batch):
            first = self._first(step * self.global_batch + sample)
            self._check(first, self.tokens[first : first + self.seq + 1])

    @contextmanager
    def checks_ahead(self, steps: int) -> Iterator[Callable[[int], None]]:
        """`check` of one step after another, from 0: each but the first is done while the step before it runs."""
        if self.checked:
            yield lambda step: None
            return
        with ThreadPoolExecutor(1, "data") as pool:
            ahead = [pool.submit(self.check, 0)]

            def checked(step: int) -> None:
                ahead.pop().result()
                if step + 1 < steps:
                    ahead.append(pool.submit(self.check, step + 1))

            yield checked

    def _first(self, number: int) -> int:
        """Where in the file the `number`-th sequence of the run begins."""
        epoch, place = divmod(number, self.windows)
        return permuted(place, self.windows, f"{self.seed}/{epoch}") * self.seq

    def _check(self, first: int, ids: np.ndarray) -> None:
        """Raises InputError for an id outside the vocabulary; `first`: where in the file `ids` begin."""
        largest = int(ids.max())
        if ids.min() >= 0 and largest < self.vocab:
            return
        at = int(np.argmax((ids < 0) | (ids >= self.vocab)))
        found = int(ids[at])
        way = "ids begin at 0" if found < 0 else f"set model.vocab to at least {max(found, largest) + 1}"
        raise InputError(
            f"{self.name} holds token {found} at position {first + at}; the model's vocabulary is {self.vocab}, so ids "
            f"are 0 to {self.vocab - 1}: {way}"
        )


def permuted(place: int, size: int, key: str) -> int:
    """Where a keyed permutation of 0 … size − 1 sends `place`: a small Feistel network, walked until it lands
    inside."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            digest = hashlib.blake2b(f"{key}/{turn}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        place = left << half | right
        if place < size:
            return place


def open_data(name: str, seq: int, global_batch: int, seed: int, vocab: int, tokenizer: str = "auto") -> TokenFile:
    """The token file of a name: `builtin` or a path; `tokenizer` is for text. Raises InputError when it cannot be read
    or is too short."""
    from trainer import corpus, indexed

    path = builtin_file() if name == "builtin" else Path(name)
    if path.suffix in indexed.SUFFIXES:
        tokens = indexed.tokens_of(path)
    else:
        tokens = _array(corpus.tokenized(path, tokenizer, vocab) if path.suffix in corpus.SUFFIXES else path)
    return TokenFile(tokens, seq, global_batch, seed, vocab, f"data {name}")


def _array(path: Path) -> np.ndarray:
    """The integers of a .npy file, memory-mapped. Raises InputError when it holds anything else."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(tokens, np.ndarray):
            raise ValueError("an archive of several arrays")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"data.path {path} is not a token file ({error}); give a .npy file of integers, a .bin with its"
            " .idx, a text (.txt, .md, .jsonl), or builtin"
        ) from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InputError(
            f"data.path {path} holds {tokens.dtype} of shape {tokens.shape}; a token file is one dimension of integers"
        )
    return tokens


def cache_folder() -> Path:
    """Where token files and profiles are kept: $WINDTUNNEL_CACHE, or windtunnel in the user's cache folder."""
    given = os.environ.get("WINDTUNNEL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(given) if given else Path(base) / "windtunnel"


@cache
def builtin_file() -> Path:
    """The standard library as bytes, written on first use. Its name holds a digest of the file list, so another Python
    gets its own."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(_sources(root), key=lambda path: path.relative_to(root).as_posix())
    listing = "\n".join(f"{path.relative_to(root).as_posix()} {path.stat().st_size}" for path in files)
    digest = hashlib.blake2b(listing.encode(), digest_size=8).hexdigest()
    path = cache_folder() / "data" / f"stdlib-{digest}.npy"
    if not path.exists():
        text = b"".join(p.read_bytes() for p in files)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npy")
        np.save(part, np.frombuffer(text, np.uint8))
        part.replace(path)  # ranks that start together each write their own; the last one wins, with the same bytes
    return path


def _sources(root: Path) -> Iterator[Path]:
    """Python files below `root`, without tests and what others installed."""
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in SKIPPED]
        yield from (Path(folder) / name for name in names if name.endswith(".py"))
