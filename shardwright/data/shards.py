"""Token shards on disk: what `prepare` writes and the loader maps into memory.

A corpus is a folder:

    index.json             what is in it (`Corpus`)
    train-00000.tokens     raw little-endian ids: uint16 where the vocabulary has at most 65,536 ids, else uint32
    held_out-00000.tokens  the documents kept for evaluation

The stream of a split is separator, document, separator, document, … with the separator BEFORE each document. So a
document's last token has a target (the next separator: the document ends here), the first token of a document is
predicted from the separator alone, and the number of the document that a position belongs to is
`cumsum(token == separator)`. Nothing but the stream is needed to know where documents begin: there is no file of
offsets to keep in step with it.

A shard is a range of such a file. `.npy` arrays of somebody else's making are used where they lie: their corpus
is an index alone, whose shards name files outside its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwright.spec.errors import BadInput

FORMAT = 1
"""Changes when a reader of today could not read what is written."""

INDEX = "index.json"

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)

_CHUNK = 2**22


@dataclass(frozen=True)
class Shard:
    """A range of a file of tokens."""

    file: str
    """Its name in the corpus's folder, or a whole path where it lies elsewhere."""
    tokens: int
    """How many tokens, separators among them."""
    documents: int
    """How many documents begin in it."""
    checksum: str
    """BLAKE2b of its tokens as they lie in the file."""
    start: int = 0
    """First token of the file that belongs to it."""


@dataclass(frozen=True)
class Corpus:
    """One prepared source."""

    folder: Path
    """Where its index lies."""
    source: str
    """What it was made from, in words."""
    key: str
    """Names the source's files and the settings of preparation; the folder is found by it."""
    dtype: str
    """How a token is stored in raw files: uint16 or uint32, little-endian. `.npy` files say so themselves."""
    separator: int
    """Id of the token before each document."""
    vocabulary: int
    """How many ids there are."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    train: tuple[Shard, ...]
    """What is trained on."""
    held_out: tuple[Shard, ...]
    """What is kept for evaluation."""

    @cached_property
    def fingerprint(self) -> str:
        """Names the tokens themselves: the same wherever and whenever they were prepared."""
        parts = [str(self.separator), str(self.vocabulary), self.tokenizer]
        for split in SPLITS:
            parts += [split, *(f"{shard.tokens}:{shard.checksum}" for shard in self.shards(split))]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def shards(self, split: Split) -> tuple[Shard, ...]:
        """The shards of a split, in order."""
        return self.train if split == "train" else self.held_out

    def tokens(self, split: Split) -> int:
        """Tokens of a split, separators among them."""
        return sum(shard.tokens for shard in self.shards(split))

    def documents(self, split: Split) -> int:
        """Documents of a split."""
        return sum(shard.documents for shard in self.shards(split))

    def samples(self, split: Split, sequence: int) -> int:
        """Sequences that a split holds: each needs one token more than its length, for the last target."""
        return sum(sample_counts(self.shards(split), sequence))

    def open(self, shard: Shard) -> NDArray[Any]:
        """The tokens of a shard, mapped into memory, not read."""
        return open_tokens(self.folder / shard.file, self.dtype)[shard.start : shard.start + shard.tokens]

    def check_files(self) -> None:
        """Refuse a corpus whose files are missing or of another size than its index says; reads no token."""
        for split in SPLITS:
            for shard in self.shards(split):
                path = self.folder / shard.file
                present = count_tokens(path, self.dtype) if path.is_file() else None
                if present is None or present < shard.start + shard.tokens:
                    has = "is missing" if present is None else f"has {present} tokens"
                    raise BadInput(
                        "data.source",
                        str(self.folder),
                        rule=f"its index names {shard.file} with {shard.start + shard.tokens} tokens, which {has}",
                        fix="Remove the folder and prepare the data again",
                    )

    def verify(self) -> None:
        """Read every token and compare it with its checksum; refuses a corpus that was damaged."""
        self.check_files()
        for split in SPLITS:
            for shard in self.shards(split):
                if checksum(self.open(shard)) != shard.checksum:
                    raise BadInput(
                        "data.source",
                        str(self.folder),
                        rule=f"the tokens of {shard.file} are not those that were written",
                        fix="Remove the folder and prepare the data again",
                    )


def sample_counts(shards: tuple[Shard, ...], sequence: int) -> list[int]:
    """Sequences in each shard; what is left at a shard's end, shorter than a sequence, is dropped."""
    return [max(0, shard.tokens - 1) // sequence for shard in shards]


def dtype_for(vocabulary: int) -> str:
    """The narrowest stored type that holds every id."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


def count_tokens(path: Path, dtype: str) -> int:
    """How many tokens a file holds, from its size or its header."""
    if path.suffix == ".npy":
        return len(np.load(path, mmap_mode="r"))
    return path.stat().st_size // np.dtype(dtype).itemsize


def open_tokens(path: Path, dtype: str) -> NDArray[Any]:
    """A file of tokens as an array over a memory map.

    A plain array, not `np.memmap`: slicing that subclass costs several times as much, and the loader slices a lot.
    """
    if path.suffix == ".npy":
        return np.asarray(np.load(path, mmap_mode="r"))
    stored = np.dtype(dtype).newbyteorder("<")
    return np.asarray(np.memmap(path, dtype=stored, mode="r"))


def chunks(tokens: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array in pieces small enough to work on without filling memory."""
    for start in range(0, len(tokens), _CHUNK):
        yield tokens[start : start + _CHUNK]


def checksum(tokens: NDArray[Any]) -> str:
    """BLAKE2b of tokens as they are stored."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks(tokens):
        digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def is_corpus(folder: Path) -> bool:
    """Whether a folder is one of ours."""
    try:
        return "splits" in json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def write_index(corpus: Corpus) -> None:
    """Write a corpus's index into its folder, and make sure that it is on the disk."""
    content = {
        "format": FORMAT,
        "source": corpus.source,
        "key": corpus.key,
        "dtype": corpus.dtype,
        "separator": corpus.separator,
        "vocabulary": corpus.vocabulary,
        "tokenizer": corpus.tokenizer,
        "fingerprint": corpus.fingerprint,
        "splits": {split: [asdict(shard) for shard in corpus.shards(split)] for split in SPLITS},
    }
    with (corpus.folder / INDEX).open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_corpus(folder: Path) -> Corpus:
    """The corpus in a folder; its files are looked at, its tokens are not read."""
    path = folder / INDEX
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise BadInput(
                "data.source",
                str(folder),
                rule=f"is written in format {content['format']}; this version reads format {FORMAT}",
                fix="Prepare the data again with this version",
            )
        train, held_out = (tuple(Shard(**shard) for shard in content["splits"][split]) for split in SPLITS)
        corpus = Corpus(
            folder=folder,
            source=content["source"],
            key=content["key"],
            dtype=content["dtype"],
            separator=content["separator"],
            vocabulary=content["vocabulary"],
            tokenizer=content["tokenizer"],
            train=train,
            held_out=held_out,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput("data.source", str(folder), rule=f"{path} is not an index of token shards ({error!r})") from None
    corpus.check_files()
    return corpus
