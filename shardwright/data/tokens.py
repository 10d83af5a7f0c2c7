"""Arrays of tokens that somebody else made, used where they lie.

Each is a one-dimensional `.npy`. They are read through once, to learn that every id is one that the model will have
a row for (a wrong one ends a GPU run with an assertion far from its cause), to count documents and to
take checksums; they are never copied. There may be no documents to hash, so what is held out is the stream's tail.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.data.shards import Shard, checksum, chunks
from shardwright.data.sources import Source
from shardwright.data.tokenizers import Tokenizer
from shardwright.spec.errors import BadInput

_TYPES = ("uint16", "uint32", "int32", "int64")


def scan_arrays(source: Source, held_out: float, tokenizer: Tokenizer) -> tuple[list[Shard], list[Shard]]:
    """The shards of a source of arrays: its stream up to the tail, and the tail."""
    arrays = [(str(Path(file.path).resolve()), _open(file.path, source.field)) for file in source.files]
    total = sum(len(array) for _, array in arrays)
    kept = total - round(total * held_out)
    ranges: list[tuple[bool, str, NDArray[Any], int]] = []
    before = 0
    for path, array in arrays:
        cut = min(max(kept - before, 0), len(array))
        ranges += [(True, path, array[:cut], 0)] if cut else []
        ranges += [(False, path, array[cut:], cut)] if cut < len(array) else []
        before += len(array)
    # Comparing and hashing leave the interpreter's lock free: threads are enough.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        shards = list(pool.map(lambda one: _scan(one[1], one[2], one[3], source.field, tokenizer), ranges))
    sides = [one[0] for one in ranges]
    return (
        [shard for shard, train in zip(shards, sides) if train],
        [shard for shard, train in zip(shards, sides) if not train],
    )


def _open(path: str, field: str) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise BadInput(field, path, rule=f"cannot be read as an array: {error}") from None
    if array.ndim != 1 or array.dtype.name not in _TYPES:
        shape = "×".join(map(str, array.shape))
        raise BadInput(
            field,
            path,
            rule=f"holds {shape} of {array.dtype}; tokens are one-dimensional, of {', '.join(_TYPES)}",
            fix="Save it again with .reshape(-1).astype(numpy.uint32)",
        )
    return np.asarray(array)


def _scan(path: str, tokens: NDArray[Any], start: int, field: str, tokenizer: Tokenizer) -> Shard:
    documents = 0
    for chunk in chunks(tokens):
        low, high = int(chunk.min()), int(chunk.max())
        if low < 0 or high >= tokenizer.vocabulary:
            raise BadInput(
                field,
                path,
                rule=f"holds the id {low if low < 0 else high}; "
                f"the tokenizer {tokenizer.name} has ids from 0 to {tokenizer.vocabulary - 1}",
                fix="Set data.tokenizer to the one that made these tokens",
            )
        documents += int(np.count_nonzero(chunk == tokenizer.separator))
    return Shard(path, len(tokens), documents, checksum(tokens), start)
