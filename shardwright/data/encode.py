"""One shard's worth of a source: its documents read, split, tokenised and written.

Which side of the split a document falls on is decided by a hash of its text alone, so copies of a document stay on
one side, in whichever file and whichever shard they stand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.data.readers import documents
from shardwright.data.shards import SPLITS, Shard, dtype_for
from shardwright.data.sources import Piece
from shardwright.data.tokenizers import Tokenizer
from shardwright.spec.run import DataSpec

Report = Callable[[int, int, int], None]
"""Told of work as it is done: bytes read, documents and tokens written since it was last told."""

_REPORT_BYTES = 2**20
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class Job:
    """A group of pieces that becomes one shard of each split."""

    number: int
    """Its place among the groups."""
    pieces: tuple[Piece, ...]
    """What is read, in order."""
    spec: DataSpec
    """How it is read."""
    field: str
    """Field of the run that names the source, for messages."""
    threshold: int
    """Documents whose hash is below it are held out."""
    folder: str
    """Where the shards are written."""


@dataclass(frozen=True)
class Encoded:
    """What a job wrote."""

    number: int
    """The job's."""
    train: Shard | None
    """None where no document fell on this side."""
    held_out: Shard | None
    """None where no document fell on this side."""
    smallest: int
    """Smallest hash among its documents; 2**64 where it has none."""
    largest: int
    """Largest hash among its documents; -1 where it has none."""


def document_hash(content: bytes) -> int:
    """A number below 2**64 that belongs to a text."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=b"held_out").digest(), "little")


def encode(job: Job, tokenizer: Tokenizer, report: Report) -> Encoded:
    """Do a job: read its documents and write a file of tokens for each split that gets any."""
    smallest, largest = 2**64, -1
    folder = Path(job.folder)
    train, held_out = (_Writer(folder / f"{split}-{job.number:05d}.tokens", tokenizer) for split in SPLITS)
    with train, held_out:
        read = written = counted = 0
        for piece in job.pieces:
            for text in documents(piece, job.spec, job.field):
                number = document_hash(text.encode())
                smallest, largest = min(smallest, number), max(largest, number)
                written += (held_out if number < job.threshold else train).add(tokenizer.encode(text))
                counted += 1
            read += piece.size
            if read >= _REPORT_BYTES:
                report(read, counted, written)
                read = written = counted = 0
        report(read, counted, written)
    return Encoded(job.number, train.shard(), held_out.shard(), smallest, largest)


class _Writer:
    """A file of tokens being written; made only when there is a first document."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path = path
        self._dtype = np.dtype(dtype_for(tokenizer.vocabulary)).newbyteorder("<")
        self._separator = tokenizer.separator
        self._digest = hashlib.blake2b(digest_size=16)
        self._file: Any = None
        self._tokens = 0
        self._documents = 0

    def add(self, ids: NDArray[Any]) -> int:
        """Write a separator and a document; how many tokens that is."""
        stored = np.empty(len(ids) + 1, dtype=self._dtype)
        stored[0] = self._separator
        stored[1:] = ids
        if self._file is None:
            self._file = self._path.open("wb", buffering=_BUFFER_BYTES)
        self._file.write(stored.data)
        self._digest.update(stored.data)
        self._tokens += len(stored)
        self._documents += 1
        return len(stored)

    def shard(self) -> Shard | None:
        """What was written."""
        if not self._documents:
            return None
        return Shard(self._path.name, self._tokens, self._documents, self._digest.hexdigest())

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
