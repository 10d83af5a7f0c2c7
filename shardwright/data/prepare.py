"""From a run's data to token shards, once: the same source with the same settings is found again, not made again.

The shards of a corpus do not depend on how many processes made them: pieces are grouped by their sizes alone, and each
group becomes one shard. `publish.py` makes them appear all at once; a process that is killed or finds the disk full
leaves nothing that a later one could mistake for a corpus.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.data import publish
from shardwright.data.encode import Encoded, Job
from shardwright.data.shards import (
    FORMAT,
    INDEX,
    Corpus,
    Shard,
    Split,
    checksum,
    dtype_for,
    is_corpus,
    open_tokens,
    read_corpus,
    write_index,
)
from shardwright.data.sources import Piece, Source, group, locate, pieces, total_size
from shardwright.data.tokenizers import ByteTokenizer, Tokenizer, tokenizer_for
from shardwright.data.tokens import scan_arrays
from shardwright.data.workers import encode_all
from shardwright.spec.errors import BadInput
from shardwright.spec.run import DataSpec

SHARD_BYTES = (2**22, 2**28)
"""Bytes of text that go into a shard: at least, so that small corpora are not dust; at most, so that work divides."""

MOST_SHARDS = 4096
"""Of a very large corpus, whose shards are larger instead: each is a memory map of every rank."""

_WORTH_WORKERS = {True: 2**26, False: 2**23}
"""Bytes of text from which starting processes pays: bytes are read at disk speed, a tokenizer works a hundred
times longer on each."""


@dataclass(frozen=True)
class Progress:
    """How far a preparation has come."""

    source: str
    """What is being prepared, in words."""
    done: int
    """Bytes read."""
    total: int
    """Bytes to be read."""
    documents: int
    """Documents written."""
    tokens: int
    """Tokens written."""


@dataclass(frozen=True)
class PreparedData:
    """What a run trains on: one corpus a source, with their shares."""

    corpora: tuple[Corpus, ...]
    """In the order of the mixture."""
    weights: tuple[float, ...]
    """Share of the sequences that each gives, relative to the others."""

    @property
    def separator(self) -> int:
        """Id of the token before each document; one tokenizer makes all corpora."""
        return self.corpora[0].separator

    @property
    def fingerprint(self) -> str:
        """Names every token and every weight: two runs with the same one and the same seed see the same batches."""
        parts = [f"{corpus.fingerprint}:{weight!r}" for corpus, weight in zip(self.corpora, self.weights)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def tokens(self, split: Split = "train") -> int:
        """Tokens of a split over all corpora."""
        return sum(corpus.tokens(split) for corpus in self.corpora)

    def samples(self, split: Split, sequence: int) -> int:
        """Sequences of a split over all corpora."""
        return sum(corpus.samples(split, sequence) for corpus in self.corpora)


def prepare(spec: DataSpec, *, progress: Callable[[Progress], None] | None = None) -> PreparedData:
    """Find or make the shards of every source that a run's data names."""
    tokenizer = tokenizer_for(spec)
    tell = progress or (lambda _: None)
    if spec.mixture:
        named = [(one.source, f"data.mixture[{place}].source") for place, one in enumerate(spec.mixture)]
        weights = tuple(one.weight for one in spec.mixture)
    else:
        named, weights = [(spec.source, "data.source")], (1.0,)
    corpora = tuple(_prepare_one(spec, locate(spec, name, field), tokenizer, tell) for name, field in named)
    for corpus in corpora:
        if corpus.samples("train", spec.sequence) < 1:
            raise BadInput(
                "data.sequence",
                spec.sequence,
                rule=f"{corpus.source} has {corpus.tokens('train')} tokens to train on; "
                f"one sequence and its last target need {spec.sequence + 1}",
                fix="Use more data or a shorter data.sequence",
            )
    return PreparedData(corpora, weights)


def data_root(spec: DataSpec) -> Path:
    """The folder under which corpora are kept."""
    if spec.folder is not None:
        return Path(spec.folder).expanduser()
    if chosen := os.environ.get("SHARDWRIGHT_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "shardwright" / "data"


def _prepare_one(spec: DataSpec, source: Source, tokenizer: Tokenizer, progress: Callable[[Progress], None]) -> Corpus:
    if source.kind == "tokens" and source.path.is_dir() and is_corpus(source.path):
        return _in_place(source, tokenizer)
    key = _key(spec, source, tokenizer)
    root = data_root(spec)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", source.description).strip("-.")[:48]
    folder = root / f"{name}-{key[:16]}"
    if corpus := _existing(folder):
        return corpus
    try:
        root.mkdir(parents=True, exist_ok=True)
        with publish.alone(folder):
            if corpus := _existing(folder):
                return corpus
            if folder.exists():
                publish.discard(folder)
            with publish.replacing(folder) as partial:
                _build(spec, source, tokenizer, key, partial, progress)
    except OSError as error:
        if complaint := _explained(error, source, root):
            raise complaint from error
        raise
    return read_corpus(folder)


def _existing(folder: Path) -> Corpus | None:
    """The corpus that is already there; one whose files are gone or cut short is made again."""
    if not (folder / INDEX).is_file():
        return None
    try:
        return read_corpus(folder)
    except BadInput:
        return None


def _in_place(source: Source, tokenizer: Tokenizer) -> Corpus:
    corpus = read_corpus(source.path)
    if corpus.tokenizer != tokenizer.fingerprint:
        raise BadInput(
            source.field,
            str(source.path),
            rule=f"its tokens were not made by the tokenizer {tokenizer.name}, nor with its separator",
            fix="Set data.tokenizer and data.separator to those that made them",
        )
    return corpus


def _key(spec: DataSpec, source: Source, tokenizer: Tokenizer) -> str:
    """Names a source and everything that decides what it becomes."""
    settings = [FORMAT, source.identity(), tokenizer.fingerprint, spec.text_field, spec.held_out, spec.bad_text]
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()


def _build(
    spec: DataSpec,
    source: Source,
    tokenizer: Tokenizer,
    key: str,
    folder: Path,
    progress: Callable[[Progress], None],
) -> None:
    """Fill a folder with a corpus."""
    if source.kind == "tokens":
        train, held_out = scan_arrays(source, spec.held_out, tokenizer)
    else:
        train, held_out = _encode_text(spec, source, tokenizer, folder, progress)
    corpus = Corpus(
        folder=folder,
        source=source.description,
        key=key,
        dtype=dtype_for(tokenizer.vocabulary),
        separator=tokenizer.separator,
        vocabulary=tokenizer.vocabulary,
        tokenizer=tokenizer.fingerprint,
        train=tuple(train),
        held_out=tuple(held_out),
    )
    write_index(corpus)


def _encode_text(
    spec: DataSpec, source: Source, tokenizer: Tokenizer, folder: Path, progress: Callable[[Progress], None]
) -> tuple[list[Shard], list[Shard]]:
    parts = pieces(source, spec.text_field)
    threshold = int(spec.held_out * 2**64)
    results = _run(spec, source, parts, tokenizer, threshold, folder, progress)
    if min((result.smallest for result in results), default=2**64) == 2**64:
        raise BadInput(source.field, str(source.path), rule="holds no text", fix="Name a source with documents in it")
    better = _balanced(threshold, results)
    if better != threshold:
        for written in folder.iterdir():
            written.unlink()
        results = _run(spec, source, parts, tokenizer, better, folder, progress)
    train = [result.train for result in results if result.train]
    held_out = [result.held_out for result in results if result.held_out]
    if spec.held_out and not held_out:
        return _cut_tail(train, spec.held_out, folder, dtype_for(tokenizer.vocabulary))
    return train, held_out


def _run(
    spec: DataSpec,
    source: Source,
    parts: Sequence[Piece],
    tokenizer: Tokenizer,
    threshold: int,
    folder: Path,
    progress: Callable[[Progress], None],
) -> list[Encoded]:
    """Encode every piece; the results in the order of the pieces."""
    total = total_size(parts)
    least, most = SHARD_BYTES
    target = max(least, min(most, total // 64), total // MOST_SHARDS)
    groups = list(group(parts, target))
    jobs = [
        Job(number, tuple(members), spec, source.field, threshold, str(folder)) for number, members in enumerate(groups)
    ]
    done = documents = tokens = 0

    def report(more_bytes: int, more_documents: int, more_tokens: int) -> None:
        nonlocal done, documents, tokens
        done, documents, tokens = done + more_bytes, documents + more_documents, tokens + more_tokens
        progress(Progress(source.description, done, total, documents, tokens))

    workers = _workers(spec, tokenizer, total, len(jobs))
    return sorted(encode_all(jobs, tokenizer, workers, report), key=lambda result: result.number)


def _workers(spec: DataSpec, tokenizer: Tokenizer, total: int, jobs: int) -> int:
    """How many processes: as the run says, or one a core where there is work enough to pay for starting them."""
    if spec.workers is not None:
        return min(spec.workers, jobs)
    if total < _WORTH_WORKERS[isinstance(tokenizer, ByteTokenizer)]:
        return 1
    return min(len(os.sched_getaffinity(0)), jobs)


def _balanced(threshold: int, results: Sequence[Encoded]) -> int:
    """The threshold that leaves neither side of a split empty, moved no further than to the nearest document."""
    smallest = min(result.smallest for result in results)
    largest = max(result.largest for result in results)
    if threshold == 0:
        return 0
    if smallest == largest:  # one document, or copies of one: all of it is trained on, but for its tail
        return 0 if smallest < threshold else threshold
    if largest < threshold:
        return largest
    if smallest >= threshold:
        return smallest + 1
    return threshold


def _cut_tail(train: list[Shard], share: float, folder: Path, dtype: str) -> tuple[list[Shard], list[Shard]]:
    """Hold out the end of the stream, where a source is a single document and has no other to give."""
    last = train[-1]
    kept = last.tokens - round(last.tokens * share)
    if kept in (0, last.tokens):
        return train, []
    stored = open_tokens(folder / last.file, dtype)
    head = dataclasses.replace(last, tokens=kept, checksum=checksum(stored[:kept]))
    tail = Shard(last.file, last.tokens - kept, 0, checksum(stored[kept:]), start=kept)
    return [*train[:-1], head], [tail]


def _explained(error: OSError, source: Source, root: Path) -> BadInput | None:
    """What the machine said, in terms of the field that can mend it."""
    reason = error.strerror or str(error)
    named = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BadInput(
            "data.folder",
            str(root),
            rule=f"there is no room left for the tokens of {source.description}",
            fix="Free some space, or set data.folder to a larger disk",
        )
    if named.startswith(str(root)) or error.errno == errno.EROFS:
        return BadInput(
            "data.folder", str(root), rule=f"cannot be written: {reason}", fix="Set data.folder to a folder of yours"
        )
    if named:
        return BadInput(source.field, named, rule=f"cannot be read: {reason}")
    return None
