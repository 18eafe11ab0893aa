"""Megatron-LM's token files: `NAME.bin` holds the tokens of all documents one after another, `NAME.idx` says where each
begins.

    tokens = tokens_of(Path("corpus_text_document.bin"))     # or the .idx; a memory map, nothing is copied

The index (megatron/core/datasets/indexed_dataset.py, MMapIndexedDataset): nine bytes `MMIDIDX\\0\\0`, the version 1
as a uint64, a code of the tokens' type as a byte, the counts of sequences and of documents as uint64, then int32
lengths, int64 byte offsets of the sequences, and int64 numbers of the sequences where documents begin.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from program.errors import InputError

SUFFIXES = (".bin", ".idx")
MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Codes of integer types; 6 and 7 are floats, which no token is."""


def tokens_of(path: Path) -> np.ndarray:
    """All tokens in order, memory-mapped. Raises InputError when one of the two files is missing, damaged, cut, or does
    not belong to the other."""
    index, data = path.with_suffix(".idx"), path.with_suffix(".bin")
    for needed in (index, data):
        if not needed.is_file():
            raise InputError(f"data.path {path}: a .bin and its .idx belong together, and {needed} does not exist")
    code, lengths, offsets = _index(index)
    kind = np.dtype(TYPES[code])
    size, ends = data.stat().st_size, lengths.astype(np.int64) * kind.itemsize
    wanted = int(ends.sum())
    if size != wanted:
        raise InputError(
            f"{data} holds {size} bytes and {index.name} says {wanted} ({len(lengths)} sequences of {kind.name}): one"
            " of them is cut, or they are not of one preprocessing"
        )
    if not np.array_equal(offsets, np.concatenate(([0], np.cumsum(ends)[:-1]))):
        raise InputError(f"{index}: its sequences do not lie one behind another in {data.name}; it is damaged")
    return np.memmap(data, kind, "r")


def _index(path: Path) -> tuple[int, np.ndarray, np.ndarray]:
    """Type code, lengths in tokens and byte offsets of the sequences."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD.size)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise InputError(f"{path} is no index of tokens: it does not begin with MMIDIDX")
    _, version, code, sequences, documents = HEAD.unpack(head)
    if version != 1:
        raise InputError(f"{path} has version {version}; version 1 is read")
    if code not in TYPES:
        known = ", ".join(f"{number} {np.dtype(kind).name}" for number, kind in TYPES.items())
        raise InputError(f"{path}: its tokens have type {code}; tokens are integers: {known}")
    wanted = HEAD.size + 12 * sequences + 8 * documents
    if size < wanted or not sequences:
        raise InputError(f"{path} holds {size} bytes; {sequences} sequences and {documents} documents need {wanted}")
    lengths = np.memmap(path, "<i4", "r", HEAD.size, (sequences,))
    if int(lengths.min()) < 0:
        raise InputError(f"{path}: sequence {int(lengths.argmin())} has {int(lengths.min())} tokens; it is damaged")
    return code, lengths, np.memmap(path, "<i8", "r", HEAD.size + 4 * sequences, (sequences,))
