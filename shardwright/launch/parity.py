"""The same steps under several layouts, and how far their losses lie apart.

Rounding differs between layouts, mistakes differ more: in fp32, sums in another order move a loss by some 1e-7 of
itself, a missing or doubled gradient by percents. A layout agrees when no step's loss or gradient norm is further than
`TOLERANCE` from one process's.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.launch.local import start
from shardwright.observe import read_records
from shardwright.spec import Layout, RunFile
from shardwright.spec.fields import plain

TOLERANCE = {"fp32": 1e-5, "bf16": 2.0**-7}
"""Largest relative difference, by precision. bf16 keeps 8 bits: each activation is off by up to 2⁻⁹ of itself, and a
few layers add up to a few of those."""


@dataclass(frozen=True)
class Comparison:
    """One layout beside one process."""

    layout: str
    """As it was asked for, with what was filled in."""
    steps: int
    """Steps compared."""
    max_loss_difference: float
    """Relative, of any step."""
    max_grad_norm_difference: float
    """Relative, of any step."""
    agrees: bool
    """Whether both are within the tolerance of the precision."""


def compare_layouts(file: RunFile, layouts: Sequence[str], *, steps: int) -> tuple[str, list[Comparison]]:
    """Run one process and then each layout; returns the reference's layout and the comparisons in order.

    Every layout is checked before anything runs. Computes in fp32 unless a layout names its precision.
    """
    from shardwright.parallel import engine_runs

    files = [_under(file, text, steps) for text in layouts]
    runs = [one.resolve() for one in files]
    for run in runs:
        engine_runs(run)
    sequences = file.spec().resolve().batch.sequences
    precision = runs[0].layout.precision if runs else "fp32"
    reference = _under(file, f"dp=1,microbatch={sequences},precision={precision}", steps)
    expected = _figures(reference)
    comparisons = []
    for one, run in zip(files, runs):
        actual = _figures(one)
        loss, norm = (
            max(abs(a[key] - e[key]) / abs(e[key]) for a, e in zip(actual, expected, strict=True))
            for key in ("loss", "grad_norm")
        )
        agrees = max(loss, norm) <= TOLERANCE[run.layout.precision]
        comparisons.append(Comparison(str(run.layout), len(actual), loss, norm, agrees))
    return str(reference.resolve().layout), comparisons


def _under(file: RunFile, text: str, steps: int) -> RunFile:
    """The same run under another layout: its batch, its data, its first weights."""
    layout = Layout.parse(text)
    if "precision" not in Layout.values(text):
        layout = dataclasses.replace(layout, precision="fp32", state="fp32")
    run = file.spec()
    settings: dict[str, Any] = {
        **file.settings,
        "layout": plain(layout if layout.dp is not None else dataclasses.replace(layout, dp=1)),
        "batch.sequences": run.resolve().batch.sequences,
        "batch.accumulation": None,
        "steps": steps,
        "schedule.warmup": min(run.schedule.warmup, steps),
        "schedule.decay": None,
        "checkpoint.every": 0,
        "observe.evaluate_sequences": 0,
        "observe.sample": 0,
        "observe.tensorboard": False,
    }
    return dataclasses.replace(file, settings=settings)


def _figures(file: RunFile) -> list[dict[str, Any]]:
    """Losses and gradient norms of every step, from a run that leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="shardwright-parity-") as folder, Path(os.devnull).open("w") as nobody:
        outcome = start(file, runs=folder, human=nobody)
        return list(read_records(Path(outcome.directory) / "metrics.jsonl"))
