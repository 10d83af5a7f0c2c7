"""Saves and restores whole checkpoints, atomically."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """One published checkpoint, opened."""

    path: Path
    """Its folder."""
    step: int
    """Optimizer steps done when it was written."""
    facts: Mapping[str, Any]
    """What the writer noted beside the tensors."""

    def weights(self) -> dict[str, Tensor]:
        """The model's parameters by name."""
        return load_file(self.path / "weights.safetensors")

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's tensors by name."""
        return load_file(self.path / "optimizer.safetensors")


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Steps of the published checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (re.fullmatch(r"step-(\d{8,})", entry.name) for entry in self.folder.iterdir())
        return sorted(int(name.group(1)) for name in names if name)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is published."""
        return self.folder / f"step-{step:08d}"

    def latest(self) -> Checkpoint | None:
        """The newest published checkpoint."""
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1])
        return Checkpoint(path, steps[-1], json.loads((path / "checkpoint.json").read_text("utf-8")))

    def save(
        self, step: int, *, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint beside the others and publish it by one rename. Raises OSError where the disk refuses."""
        self.clear_unfinished()
        published, unfinished = self.path(step), self.folder / f".unfinished-step-{step:08d}"
        if published.is_dir():  # the same step again: published state is never overwritten
            return published
        try:
            unfinished.mkdir(parents=True)
            for name, tensors in (("weights", weights), ("optimizer", optimizer)):
                whole = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                file = unfinished / f"{name}.safetensors"
                _write_tensors(whole, file)
                _make_durable(file)
            record = unfinished / "checkpoint.json"
            record.write_text(json.dumps({"format": FORMAT, "step": step, **facts}, indent=2), "utf-8")
            _make_durable(record)
            _make_durable(unfinished)
            unfinished.rename(published)
            _make_durable(self.folder)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return published

    def clear_unfinished(self) -> None:
        """Remove what a killed save left behind."""
        for entry in self.folder.glob(".unfinished-*"):
            shutil.rmtree(entry, ignore_errors=True)

    def keep(self, steps: set[int]) -> None:
        """Remove every published checkpoint but these."""
        for step in self.steps():
            if step not in steps:
                # Renamed first: a half-removed folder must not look published.
                doomed = self.folder / f".unfinished-removed-{step:08d}"
                self.path(step).rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)


def _write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file)
    except OSError:
        raise
    except Exception as error:  # safetensors reports a full disk as an error class of its own
        raise OSError(f"cannot write {file.name}: {error}") from error


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
