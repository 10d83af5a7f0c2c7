"""The verbs of the Python interface: each does what the command of the same name does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.spec import RunFile, RunSpec, write_run

if TYPE_CHECKING:
    from shardwright.train.session import Outcome


def train(run: RunSpec | RunFile, *, ranks: int | None = None, fresh: bool = False, runs: str | None = None) -> Outcome:
    """Train a run, or go on with it where it stopped, and return how it ended.

    Starts its own ranks where the layout has several, or joins those that torchrun or srun started. Raises `BadInput`
    for what cannot be run.
    """
    from shardwright.launch import start

    file = run if isinstance(run, RunFile) else RunFile(write_run(run))
    return start(file, ranks=ranks, fresh=fresh, runs=runs)
