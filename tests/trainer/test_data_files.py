"""Where tokens come from: Megatron's indexed files, and text whose tokens a tokenizer makes."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from program.errors import InputError
from trainer.data import open_data

DOCUMENTS = ([5, 6, 7], [], [300, 2, 1, 4], list(range(40)))


def indexed(folder: Path, code: int = 8, kind: str = "<u2", cut: int = 0) -> Path:
    """A pair of files as Megatron's preprocess_data.py writes them."""
    lengths = [len(document) for document in DOCUMENTS]
    size = np.dtype(kind).itemsize
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1])) * size
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(lengths) + 1)
    body = np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes()
    (folder / "text.idx").write_bytes(head + body + np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    tokens = np.concatenate([np.array(document, kind) for document in DOCUMENTS]).tobytes()
    (folder / "text.bin").write_bytes(tokens[: len(tokens) - cut])
    return folder / "text.bin"


@pytest.mark.parametrize(("code", "kind"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_megatron_s_files_are_their_documents_in_order(tmp_path: Path, code: int, kind: str) -> None:
    path = indexed(tmp_path, code, kind)
    for name in (path, path.with_suffix(".idx")):
        file = open_data(str(name), 46, 1, seed=1, vocab=301)
        assert file.batch(0, (0,)).tolist() == [[token for document in DOCUMENTS for token in document]]


def test_a_damaged_pair_is_named_when_it_is_opened(tmp_path: Path) -> None:
    path, index = indexed(tmp_path, cut=3), tmp_path / "text.idx"
    with pytest.raises(InputError, match=r"text.bin holds 91 bytes and text.idx says 94"):
        open_data(str(path), 8, 1, 1, 301)
    whole = index.read_bytes()
    for content, message in (
        (b"NUMPY" + whole[5:], "does not begin with MMIDIDX"),
        (whole[:20], "does not begin with MMIDIDX"),
        (whole[:9] + struct.pack("<Q", 2) + whole[17:], "version 2; version 1 is read"),
        (whole[:17] + b"\x07" + whole[18:], "type 7; tokens are integers"),
        (whole[:18] + struct.pack("<Q", 10**15) + whole[26:], "need 12000000000000074"),
        (whole[:-50], "4 sequences and 5 documents need"),
        (whole[:34] + struct.pack("<i", -3) + whole[38:], "sequence 0 has -3 tokens"),
    ):
        index.write_bytes(content)
        with pytest.raises(InputError, match=message):
            open_data(str(path), 8, 1, 1, 301)
    index.unlink()
    with pytest.raises(InputError, match="belong together, and .*text.idx does not exist"):
        open_data(str(path), 8, 1, 1, 301)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


TEXTS = [f"the run number {n} ran as the runs before it ran, naïvely" for n in range(40)]


def test_text_is_tokenized_once_and_gives_its_text_back(tmp_path: Path, cache: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "id": 1}) for text in TEXTS))
    file = open_data(str(path), 64, 1, seed=1, vocab=400)
    (tokens,), (made,) = cache.glob("*.npy"), cache.glob("*.json")
    ids = np.load(tokens)
    assert file.tokens.shape == ids.shape
    assert ids.max() < 400
    assert len(ids) < 0.6 * sum(len(text.encode()) for text in TEXTS)
    encoder = tokenizers.Tokenizer.from_file(str(made))
    end = encoder.token_to_id("<|endoftext|>")
    documents = np.split(ids, np.flatnonzero(ids == end) + 1)
    assert [encoder.decode(document[:-1].tolist()) for document in documents[:-1]] == TEXTS
    stamp = tokens.stat().st_mtime_ns
    again = open_data(str(path), 64, 1, seed=1, vocab=400, tokenizer="auto")
    assert torch.equal(again.batch(0, (0,)), file.batch(0, (0,)))
    assert tokens.stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=r"has (\d+) tokens and model.vocab is 300; set model.vocab to \1"):
        open_data(str(path), 64, 1, seed=1, vocab=300, tokenizer=str(made))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}', "line 2 has no key `text`"),
        ("a.jsonl", b'{"text": "x"}\n{', "line 2 is no JSON object"),
        ("a.jsonl", b"[" * 100_000, "line 1 is no JSON object"),
        ("a.txt", b"good \xff bad", "a.txt is not UTF-8: byte 5"),
        ("a.md", b"short", "holds .* tokens; one sequence of seq_length 64 needs 65"),
    ],
)
def test_a_text_that_cannot_be_read_is_named(
    tmp_path: Path, cache: Path, name: str, content: bytes, message: str
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_data(str(tmp_path / name), 64, 1, 1, 400)


def test_a_tokenizer_needs_room_for_every_byte(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("tokenizers")
    path, wrong = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    path.write_text("word " * 100)
    wrong.write_text("{}")
    with pytest.raises(InputError, match="model.vocab 256 is too small .* need 257"):
        open_data(str(path), 8, 1, 1, 256)
    with pytest.raises(InputError, match="data.tokenizer .*tokenizer.json is no tokenizer.json"):
        open_data(str(path), 8, 1, 1, 400, str(wrong))
