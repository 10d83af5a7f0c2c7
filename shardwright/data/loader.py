"""Global batches as a pure function of (seed, step).

There is no iterator and no state to save: `GlobalBatches.read` computes which samples a step has (`mixture.py`,
`shuffle.py`) and copies them out of memory maps, for the rows of one data rank or for all. So a run resumes by
asking for its next step, and every number of data ranks sees the same global batches.

A sample is `sequence + 1` consecutive tokens of one shard: inputs are all but the last, targets all but the first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardwright.data.mixture import Mixture
from shardwright.data.prepare import PreparedData
from shardwright.data.shards import Corpus, Split, sample_counts
from shardwright.data.shuffle import counted_keys, derive_key, permute
from shardwright.model.loss import NO_TARGET
from shardwright.spec.errors import BadInput

__all__ = ["NO_TARGET", "Batch", "GlobalBatches", "Prefetch"]

_WINDOW = 1024

_Place = tuple[int, int, int]
"""Number of the corpus, number of its shard, first token of the sample in it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of one step."""

    inputs: Tensor
    """(sequences, positions) int64. A view, not contiguous: flatten it with `reshape`."""
    targets: Tensor
    """(sequences, positions) int64: the next token at each position; `NO_TARGET` where there is none."""
    documents: Tensor | None
    """(sequences, positions) int32: number of the document inside its sequence. None where no sequence has a boundary
    after its first position, or documents are not masked: plain causal attention is then right, and faster."""

    def split(self, microbatch: int) -> list[Batch]:
        """Microbatches of so many sequences, in order."""
        if len(self.inputs) % microbatch:
            raise ValueError(f"{len(self.inputs)} sequences do not divide into microbatches of {microbatch}")
        return [self.rows(first, first + microbatch) for first in range(0, len(self.inputs), microbatch)]

    def rows(self, first: int, stop: int) -> Batch:
        """Some of the sequences; their documents are None where none of these has a boundary."""
        part = None if self.documents is None else self.documents[first:stop]
        if part is not None and not bool((part[:, 1:] != part[:, :-1]).any()):
            part = None
        return Batch(self.inputs[first:stop], self.targets[first:stop], part)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; from pinned memory, the copy runs beside what the device is doing."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies by itself."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Any) -> Batch:
        documents = None if self.documents is None else change(self.documents)
        return Batch(change(self.inputs), change(self.targets), documents)


class GlobalBatches:
    """The batches of a run, any of them at any time. A training split is shuffled anew each epoch; a held-out split
    is read in one fixed order, whatever the seed, and begins again at its end."""

    def __init__(
        self,
        data: PreparedData,
        *,
        seed: int,
        sequence: int,
        sequences: int,
        document_mask: bool,
        split: Split = "train",
    ) -> None:
        self.sequence = sequence
        self.sequences = sequences
        self._separator = data.separator if document_mask else None
        self._readers = [_Samples(corpus, split, sequence) for corpus in data.corpora]
        self._counts = [reader.count for reader in self._readers]
        self._split = split
        # The place in the mixture, not the corpus's fingerprint: a corpus made again elsewhere keeps its order.
        self._keys = [derive_key(seed, "epochs", place) for place in range(len(self._readers))]
        self._window: _Window | None = None
        self._mixture = Mixture(data.weights, seed=seed) if len(self._readers) > 1 else None
        enough = min(self._counts) if split == "train" else self.samples
        if enough < 1:
            raise BadInput(
                "data.sequence" if split == "train" else "data.held_out",
                sequence if split == "train" else None,
                rule=f"the {split} split of the data is shorter than one sequence of {sequence} tokens and its target",
                fix="Use more data, a shorter data.sequence, or a larger data.held_out",
            )

    @property
    def samples(self) -> int:
        """Sequences in an epoch: over all corpora, each of their samples once."""
        return sum(self._counts)

    def read(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The rows of the global batch of `step` that belong to data rank `rank` of `ranks`."""
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks} data ranks")
        if self.sequences % ranks:
            raise BadInput(
                "batch.sequences", self.sequences, rule=f"does not divide among {ranks} data ranks", fix="Change either"
            )
        rows = self.sequences // ranks
        tokens = np.empty((rows, self.sequence + 1), dtype=np.int64)
        length = self.sequence + 1
        for row, (place, shard, offset) in enumerate(self._samples_of(step, rank, rows)):
            tokens[row] = self._readers[place].shard(shard)[offset : offset + length]
        whole = torch.from_numpy(tokens)
        return Batch(whole[:, :-1], whole[:, 1:], self._documents(tokens[:, :-1]))

    def _samples_of(self, step: int, rank: int, rows: int) -> list[_Place]:
        """Where the samples of a rank's rows at a step are.

        Finding them takes a tenth of a millisecond whether for one sample or for hundreds, so steps that are read in
        order are found in growing windows. A window is a memory of what was computed, not a state: any step may be
        asked for at any time.
        """
        window = self._window
        if window is None or (window.rank, window.rows) != (rank, rows) or not 0 <= step - window.step <= window.steps:
            window = self._window = self._find(step, 1, rank, rows)
        elif step == window.step + window.steps:
            steps = max(1, min(4 * window.steps, _WINDOW // rows))
            window = self._window = self._find(step, steps, rank, rows)
        start = (step - window.step) * rows
        return window.places[start : start + rows]

    def _find(self, step: int, steps: int, rank: int, rows: int) -> _Window:
        first = (step + np.arange(steps, dtype=np.int64)) * self.sequences + rank * rows
        source, index = self._locate((first[:, np.newaxis] + np.arange(rows, dtype=np.int64)).reshape(-1))
        shard, offset = np.empty_like(index), np.empty_like(index)
        for place, reader in enumerate(self._readers):
            chosen = source == place
            shard[chosen], offset[chosen] = reader.find(index[chosen])
        return _Window(step, steps, rank, rows, list(zip(source.tolist(), shard.tolist(), offset.tolist())))

    def _locate(self, sample: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each global sample number, its corpus and which sample of that corpus it is."""
        if self._split == "held_out":
            return self._locate_held_out(sample)
        if self._mixture is None:
            return np.zeros_like(sample), self._shuffled(0, sample)
        source, index = self._mixture.locate(sample)
        for place in range(len(self._readers)):
            chosen = np.flatnonzero(source == place)
            index[chosen] = self._shuffled(place, index[chosen])
        return source, index

    def _shuffled(self, place: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order of a corpus: epoch after epoch, each shuffled by a key of its own."""
        epoch, within = np.divmod(index, self._counts[place])
        if len(epoch) and (epoch == epoch[0]).all():
            epoch = epoch[:1]  # the usual case: one key serves all
        return permute(within, self._counts[place], counted_keys(self._keys[place], epoch))

    def _locate_held_out(self, sample: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        within = sample % self.samples
        if len(self._readers) == 1:
            return np.zeros_like(sample), within
        # A short evaluation must see every corpus, so they are interleaved: by a shuffle that no seed changes.
        within = permute(within, self.samples, derive_key(0, "held_out"))
        starts = np.concatenate(([0], np.cumsum(self._counts)))
        source = np.searchsorted(starts, within, side="right") - 1
        return source, within - starts[source]

    def _documents(self, inputs: NDArray[np.int64]) -> Tensor | None:
        if self._separator is None:
            return None
        boundaries = inputs == self._separator
        opening = boundaries[:, 0].copy()
        boundaries[:, 0] = True
        places = np.flatnonzero(boundaries)
        if len(places) == len(inputs):
            return None
        # `cumsum(boundaries, axis=1)`, written as runs of equal numbers: several times faster, as boundaries are few.
        rows = places // inputs.shape[1]
        starts = np.searchsorted(rows, np.arange(len(inputs)))
        numbers = np.arange(len(places)) - starts[rows] + opening[rows]
        lengths = np.diff(places, append=inputs.size)
        return torch.from_numpy(np.repeat(numbers.astype(np.int32), lengths).reshape(inputs.shape))


@dataclass(frozen=True, eq=False)
class _Window:
    """Where the samples of some consecutive steps are, for one rank."""

    step: int
    """The first."""
    steps: int
    """How many."""
    rank: int
    """Whose rows."""
    rows: int
    """How many a step."""
    places: list[_Place]
    """Where each sample is, step after step."""


class _Samples:
    """The samples of one split of one corpus; its shards are mapped when they are first read."""

    def __init__(self, corpus: Corpus, split: Split, sequence: int) -> None:
        self._corpus = corpus
        self._shards = corpus.shards(split)
        self._sequence = sequence
        self._starts = np.concatenate(([0], np.cumsum(sample_counts(self._shards, sequence), dtype=np.int64)))
        self._open: dict[int, NDArray[Any]] = {}
        self.count = int(self._starts[-1])

    def find(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample: the number of its shard, and where in the shard it begins."""
        shard = np.searchsorted(self._starts, index, side="right") - 1
        return shard, (index - self._starts[shard]) * self._sequence

    def shard(self, number: int) -> NDArray[Any]:
        """The tokens of a shard."""
        tokens = self._open.get(number)
        if tokens is None:
            tokens = self._open[number] = self._corpus.open(self._shards[number])
        return tokens


class Prefetch:
    """Batches from a step on, read ahead by a thread: an iterator of (step, batch), and a context manager.

    An error in the thread is raised where its batch would have come. `close` ends the thread at once, or as soon as
    the read that it is in returns.
    """

    def __init__(
        self,
        batches: GlobalBatches,
        *,
        start: int = 0,
        stop: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        depth: int = 2,
        pin: bool = False,
        deadline: float = 600.0,
    ) -> None:
        self._batches = batches
        self._rank, self._ranks = rank, ranks
        self._depth = depth
        self._pin = pin
        self._deadline = deadline
        self._next = start
        self._stop = stop
        self._ready: deque[Batch | Exception] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(start,), name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self

    def __next__(self) -> tuple[int, Batch]:
        step = self._next
        if self._stop is not None and step >= self._stop:
            raise StopIteration
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._closed, self._deadline):
                raise TimeoutError(f"the batch of step {step} did not come within {self._deadline:g} seconds")
            if self._closed:
                raise StopIteration
            result = self._ready.popleft()
            self._changed.notify_all()
        if isinstance(result, Exception):
            self.close()
            raise result
        self._next += 1
        return step, result

    def close(self) -> None:
        """End the thread and drop what it has read."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        # A read that hangs (a dead network disk) must not hang the run's end too; the thread is a daemon.
        self._thread.join(timeout=10.0)

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, step: int) -> None:
        while self._stop is None or step < self._stop:
            result: Batch | Exception
            try:
                result = self._batches.read(step, self._rank, self._ranks)
                if self._pin:
                    result = result.pin()
            except Exception as error:
                result = error
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                if self._closed:
                    return
                self._ready.append(result)
                self._changed.notify_all()
            if isinstance(result, Exception):
                return
            step += 1
