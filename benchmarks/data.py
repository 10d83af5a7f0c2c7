"""How fast batches are read, beside plain slicing and beside torch's own loader.

    PYTHONPATH=. python benchmarks/data.py            # a table, the ratios last
    PYTHONPATH=. python benchmarks/data.py --json     # one object

One core. Everyone reads the same samples of the same memory map in the same shuffled order, as int64 inputs and
targets. Plain slicing is the bound: a loop that is handed the offsets and does nothing but copy. The peers from
`torch.utils.data` are a `DataLoader` over a map-style dataset that slices the same map, in this process and with
one worker process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from shardwright.data import GlobalBatches, prepare
from shardwright.data.shuffle import permute
from shardwright.spec.run import DataSpec

SEED = 42
ROUNDS = 7


class Slices(Dataset[tuple[Tensor, Tensor]]):
    """What people write: an index, a slice of a memory map, two tensors."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, sequence: int) -> None:
        self.tokens, self.offsets, self.sequence = tokens, offsets, sequence

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self.offsets[index]
        sample = torch.from_numpy(self.tokens[start : start + self.sequence + 1].astype(np.int64))
        return sample[:-1], sample[1:]


def measure(sequence: int, sequences: int, folder: str) -> dict[str, float]:
    """Tokens a second of each way to read one corpus, medians of rounds taken in turn."""
    path = Path(folder) / "tokens.npy"
    if not path.exists():
        ids = np.random.default_rng(0).integers(0, 256, 32_000_000).astype(np.uint16)
        ids[np.random.default_rng(1).integers(0, len(ids), 8000)] = 256
        np.save(path, ids)
    data = prepare(DataSpec(source=str(path), held_out=0.0, folder=folder, sequence=sequence))
    plain = GlobalBatches(data, seed=SEED, sequence=sequence, sequences=sequences, document_mask=False)
    masked = GlobalBatches(data, seed=SEED, sequence=sequence, sequences=sequences, document_mask=True)
    steps = min(128, plain.samples // sequences)
    chosen = plain._locate(np.arange(steps * sequences, dtype=np.int64))[1]
    tokens = np.load(path, mmap_mode="r")
    offsets = chosen * sequence

    def slicing() -> None:
        for step in range(steps):
            into = np.empty((sequences, sequence + 1), dtype=np.int64)
            for row, start in enumerate(offsets[step * sequences : (step + 1) * sequences]):
                into[row] = tokens[start : start + sequence + 1]

    def ours(batches: GlobalBatches) -> Callable[[], None]:
        def read() -> None:
            for step in range(steps):
                batches.read(step)

        return read

    loaders = {
        workers: DataLoader(
            Slices(tokens, offsets, sequence),
            batch_size=sequences,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        for workers in (0, 1)
    }

    def loading(workers: int) -> Callable[[], None]:
        def read() -> None:
            for _ in loaders[workers]:
                pass

        return read

    ways: dict[str, Callable[[], None]] = {
        "GlobalBatches": ours(plain),
        "GlobalBatches, documents": ours(masked),
        "numpy slicing": slicing,
        "DataLoader, 0 workers": loading(0),
        "DataLoader, 1 worker": loading(1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if turn:  # the first warms caches and starts the worker
                seconds[name].append(time.perf_counter() - begun)
    return {name: steps * sequences * sequence / statistics.median(times) for name, times in seconds.items()}


def seek(folder: str) -> float:
    """Milliseconds to open a prepared corpus at step 10**9 and read its batch: the median of some fresh openings."""
    data = prepare(DataSpec(folder=folder))
    times = []
    for turn in range(ROUNDS):
        begun = time.perf_counter()
        batches = GlobalBatches(data, seed=turn, sequence=256, sequences=8, document_mask=True)
        batches.read(10**9)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def shuffle_memory() -> int:
    """Most bytes held while 1,000 places of a shuffle of 10**12 are computed."""
    index = np.arange(10**11, 10**11 + 1000, dtype=np.int64)
    tracemalloc.start()
    permute(index, 10**12, SEED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    shapes = [(256, 64), (2048, 32), (8192, 16)]
    with tempfile.TemporaryDirectory() as folder:
        rates = {f"{sequences} × {sequence}": measure(sequence, sequences, folder) for sequence, sequences in shapes}
        result = {"tokens_per_second": rates, "seek_milliseconds": seek(folder), "shuffle_bytes": shuffle_memory()}
    if arguments.json:
        print(json.dumps(result))
        return
    for shape, rate in rates.items():
        print(f"batch of {shape}")
        for name, value in rate.items():
            print(f"  {name:26}{value / 1e6:9.1f} M tokens/s")
    print(f"\nopen and read step 10**9     {result['seek_milliseconds']:.2f} ms (target: under 10)")
    print(f"shuffle of 10**12 samples    {result['shuffle_bytes'] / 1024:.0f} KiB at most, for 1,000 places at once")
    print(f"\nGlobalBatches relative to    {'':4}" + "".join(f"{shape:>14}" for shape in rates))
    for name in ("numpy slicing", "DataLoader, 0 workers", "DataLoader, 1 worker"):
        print(f"  {name:31}" + "".join(f"{rate['GlobalBatches'] / rate[name]:13.2f}×" for rate in rates.values()))
    ratios = "".join(f"{rate['GlobalBatches, documents'] / rate['numpy slicing']:13.2f}×" for rate in rates.values())
    print(f"  {'numpy slicing, with documents':31}{ratios}")


if __name__ == "__main__":
    main()
