"""Small runs for tests: a run file, trained by warm ranks, and what its directory says afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardwright.spec import RunFile
from shardwright.spec.toml import parse_settings
from tests.ranks import RankPool

TINY = """
name = "tiny"
seed = 7
steps = 12
[model]
preset = "tiny"
layers = 2
[data]
source = "python-stdlib"
sequence = 48
[batch]
sequences = 8
[optimizer]
learning_rate = 3e-3
[schedule]
warmup = 3
[layout]
precision = "fp32"
microbatch = 2
[checkpoint]
every = 0
[observe]
evaluate_sequences = 6
"""


def join_as_rank(text: str, settings: dict[str, Any], runs: str) -> dict[str, Any]:
    """What torchrun or srun would start on each rank; runs inside a process of the pool."""
    from shardwright.guard.rank import join

    with (Path(runs) / "human.txt").open("a") as human:
        return join(RunFile(text, "run.toml", settings), runs=Path(runs), fresh=False, human=human).plain()


def train(pool: RankPool, runs: Path, ranks: int, *settings: str, text: str = TINY) -> dict[str, Any]:
    """Train on this many ranks; returns rank 0's outcome."""
    runs.mkdir(parents=True, exist_ok=True)
    return pool.run(ranks, join_as_rank, text, parse_settings(settings), str(runs))[0]


def records(runs: Path, name: str = "tiny", file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's file."""
    return [json.loads(line) for line in (runs / name / file).read_text().splitlines()]


def losses(runs: Path, name: str = "tiny") -> list[float]:
    """The loss of every step."""
    return [record["loss"] for record in records(runs, name)]


def largest_difference(actual: Iterable[float], expected: Iterable[float]) -> float:
    """Relative, over all steps."""
    return max(abs(one - other) / abs(other) for one, other in zip(actual, expected, strict=True))
