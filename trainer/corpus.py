"""Text becomes tokens once: by a `tokenizer.json`, or by a byte-pair encoding trained on the text itself.

    path = tokenized(Path("corpus.jsonl"), "auto", vocab=8192)     # a .npy file in the cache folder

A `.jsonl` holds an object with the key `text` a line; any other text is one document. Documents end with the token
`<|endoftext|>` where the tokenizer has it. The cached file is named by a digest of the text, the tokenizer and the
vocabulary, so that every rank finds what the first one wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from program.errors import InputError
from program.files import chunks_of

SUFFIXES = (".txt", ".md", ".jsonl")
END = "<|endoftext|>"
FEWEST = 257
"""A byte-level vocabulary has every byte and the end of a document."""
PART = 1000
"""Documents that are encoded in one go."""


def tokenized(path: Path, tokenizer: str, vocab: int) -> Path:
    """The token file of a text. Raises InputError when text or tokenizer cannot be read, or the tokenizer has ids
    outside the vocabulary."""
    from trainer.data import cache_folder

    name = _digest(path, tokenizer, vocab)
    target = cache_folder() / "data" / f"text-{name}.npy"
    if not target.exists():
        encoder = _tokenizer(path, tokenizer, vocab)
        ids = np.fromiter(_ids(path, encoder), np.uint32 if vocab > 1 << 16 else np.uint16)
        target.parent.mkdir(parents=True, exist_ok=True)
        encoder.save(str(_aside(target.with_suffix(".json"))))
        _aside(target.with_suffix(".json")).replace(target.with_suffix(".json"))
        np.save(_aside(target), ids)
        _aside(target).replace(target)
    return target


def _aside(target: Path) -> Path:
    """Where a file is written before it takes its name."""
    return target.with_name(f"{target.stem}.{os.getpid()}{target.suffix}")


def _digest(path: Path, tokenizer: str, vocab: int) -> str:
    digest = hashlib.blake2b(f"{tokenizer == 'auto'} {vocab} {path.suffix}".encode(), digest_size=8)
    for file in (path, *([] if tokenizer == "auto" else [Path(tokenizer)])):
        for chunk in chunks_of(file):
            digest.update(chunk)
    return digest.hexdigest()


def _tokenizer(path: Path, tokenizer: str, vocab: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise InputError(
            f"data.path {path} is text, and tokens are made of it by tokenizers: pip install 'windtunnel[text]', or"
            " give a .npy file of integers"
        ) from None
    if tokenizer == "auto":
        return _trained(path, vocab)
    try:
        found = Tokenizer.from_str(Path(tokenizer).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises no class of its own
        raise InputError(f"data.tokenizer {tokenizer} is no tokenizer.json: {error}") from None
    if (size := found.get_vocab_size()) > vocab:
        raise InputError(
            f"data.tokenizer {tokenizer} has {size} tokens and model.vocab is {vocab}; set model.vocab to {size}"
        )
    return found


def _trained(path: Path, vocab: int) -> Any:
    """A byte-level byte-pair encoding of at most `vocab` tokens, trained on the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < FEWEST:
        raise InputError(
            f"model.vocab {vocab} is too small for a tokenizer trained on {path}: 256 bytes and the end of a document"
            f" need {FEWEST}"
        )
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator(_documents(path), trainer)
    return encoder


def _ids(path: Path, encoder: Any) -> Iterator[int]:
    end = encoder.token_to_id(END)
    batch: list[str] = []
    for document in _documents(path):
        batch.append(document)
        if len(batch) == PART:
            yield from _encoded(batch, encoder, end)
            batch = []
    yield from _encoded(batch, encoder, end)


def _encoded(batch: list[str], encoder: Any, end: int | None) -> Iterator[int]:
    for encoding in encoder.encode_batch(batch):
        yield from encoding.ids
        if end is not None:
            yield end


def _documents(path: Path) -> Iterator[str]:
    """The documents of a text. Raises InputError with the line that holds none."""
    if path.suffix != ".jsonl":
        yield _decoded(b"".join(chunks_of(path)), str(path))
        return
    rest, number = b"", 0
    for chunk in chunks_of(path):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            yield from _document(line, f"{path} line {number}")
    yield from _document(rest, f"{path} line {number + 1}")


def _document(line: bytes, where: str) -> Iterator[str]:
    if not line.strip():
        return
    try:
        found = json.loads(_decoded(line, where))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON object: {str(error)[:80]}") from None
    text = found.get("text") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{where} has no key `text` with a document")
    yield text


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8: byte {error.start}") from None
