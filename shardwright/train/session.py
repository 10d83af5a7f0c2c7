"""Everything that training needs, made once and in order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from shardwright.checkpoint import CheckpointStore
from shardwright.data import GlobalBatches, PreparedData, tokenizer_for
from shardwright.model import Decoder, generate
from shardwright.observe import Progress, Recorder, RunDirectory, free_disk
from shardwright.parallel import Engine, Mesh, World, apply
from shardwright.parallel.shards import COPY, local, region, whole
from shardwright.policy import kept
from shardwright.spec import BadInput, RunSpec, parameter_count
from shardwright.train.baseline import settled_memory
from shardwright.train.optimizer import Optimizer
from shardwright.train.recipe import recipe_of
from shardwright.train.stop import StopRequest


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    directory: str
    """Its run directory."""
    ranks: int
    """How many processes trained."""
    device: str
    """What they computed on: `cpu` or `cuda`."""
    step: int
    """Optimizer steps done."""
    stopped: bool
    """Whether it was asked to stop before its last step; the same command goes on."""
    tokens: int
    """Tokens trained on, all steps together."""
    loss: float | None
    """Loss of the last step; None if there was none to do."""
    held_out_loss: float | None
    """Loss on the held-out split after the last step."""
    first_held_out_loss: float | None
    """The same before the first step of this start."""
    seconds: float
    """How long this start took, from the first step on."""
    tokens_per_second: float | None
    """Mean speed of all ranks together, the first step left out; None for fewer than two steps."""
    mfu: float | None
    """Model FLOPs utilisation at that speed; None on a device whose peak is unknown."""
    memory_gib: float
    """Peak memory of the fullest rank."""
    baseline_gib: float
    """The part of it that was there before the model was."""
    sample: str | None
    """Text that the model wrote at the end."""
    saved: bool
    """Whether the last state is on disk."""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass
class Session:
    """One rank's parts of a run."""

    run: RunSpec
    world: World
    directory: RunDirectory
    engine: Engine
    mesh: Mesh
    models: tuple[Decoder, ...]
    """The whole model, or this rank's stages of a pipeline."""
    optimizer: Optimizer
    train: GlobalBatches
    held_out: GlobalBatches | None
    store: CheckpointStore
    stop: StopRequest
    recorder: Recorder | None
    """On rank 0 only: one writer."""
    progress: Progress | None
    baseline: int
    """Bytes that this process held before its model was built."""
    step: int = 0
    """Optimizer steps done."""

    @classmethod
    def open(
        cls, run: RunSpec, directory: RunDirectory, data: PreparedData, world: World, stop: StopRequest
    ) -> Session:
        """Build the model, the optimizer and the batches, and go to where the run stands."""
        recipe = recipe_of(run.layout)
        baseline = settled_memory(world.device, recipe)
        applied = apply(run, world, weights=recipe.weights, compute=recipe.compute)
        optimizer = Optimizer(applied.engine.named_parameters(), run.optimizer, recipe, applied.mesh)
        settings: dict[str, Any] = {
            "seed": run.seed,
            "sequence": run.data.sequence,
            "document_mask": run.data.document_mask,
        }
        train = GlobalBatches(data, sequences=run.batch.sequences or 1, **settings)
        held_out = None
        if run.observe.evaluate_sequences and run.data.held_out:
            held_out = GlobalBatches(data, sequences=run.observe.evaluate_sequences, split="held_out", **settings)
        session = cls(
            run, world, directory, applied.engine, applied.mesh, applied.models, optimizer, train, held_out,
            CheckpointStore(directory.checkpoints), stop, None, None, baseline,
        )  # fmt: skip
        session._restore()
        return session

    def _restore(self) -> None:
        checkpoint = self.store.latest()
        if checkpoint is None:
            return
        weights = checkpoint.weights()
        with torch.no_grad():
            for name, parameter in self.engine.named_parameters():
                local(parameter).copy_(weights[name.removesuffix(COPY)][region(parameter)])
        self.optimizer.load(checkpoint.optimizer(), checkpoint.step)
        self.step = checkpoint.step

    def event(self, kind: str, detail: str | dict[str, Any], words: str | None = None) -> None:
        """Write an event down and say it, in `words` where the detail is figures."""
        if self.recorder is not None:
            self.recorder.event(kind, step=self.step, rank=self.world.rank, detail=detail)
        if self.progress is not None:
            self.progress.note(words or str(detail))

    def note(self, record: dict[str, Any]) -> bool:
        """Write a step's record down and show it; returns whether any rank was asked to stop."""
        stop = bool(record.pop("stop"))
        if self.recorder is not None:
            self.recorder.metrics(**record)
        if self.progress is not None:
            self.progress.update(record)
        return stop

    def save(self) -> bool:
        """Publish a checkpoint of the present state; a refusal of the disk is an event, not the end."""
        weights = self.mesh.union_of_stages(
            {
                name: whole(local(parameter.detach()), parameter)
                for name, parameter in self.engine.named_parameters()
                if not name.endswith(COPY)
            }
        )
        optimizer = self.mesh.union_of_stages(self.optimizer.state())
        if not self.world.is_main:
            return True
        if self.recorder is not None:
            self.recorder.flush()  # a resumed run must find the metrics of every step that it will not repeat
        try:
            self.store.save(
                self.step,
                weights=weights,
                optimizer=optimizer,
                facts={"tokens": self.step * self.run.tokens_per_step, "layout": str(self.run.layout)},
            )
            self.store.keep(kept(self.store.steps(), newest=self.run.checkpoint.keep))
        except OSError as error:
            self.event("failure", f"checkpoint of step {self.step} was not saved: {error}")
            return False
        if self.recorder is not None:
            self.recorder.event("save", step=self.step, rank=0, detail=str(self.store.path(self.step).name))
        return True

    def sample(self) -> str | None:
        """Text by the model, if the run asks for it; every rank writes it, for each may hold a part of the model.

        Not in a pipeline: its stages pass on batches of one length, and text grows.
        """
        run = self.run
        if not run.observe.sample or run.layout.pp > 1:
            return None
        tokenizer = tokenizer_for(run.data)
        prompt = [tokenizer.separator, *tokenizer.encode(run.observe.sample_prompt)]
        written = generate(
            self.models[0],
            torch.tensor(prompt, device=self.world.device),
            run.observe.sample,
            vocabulary=tokenizer.vocabulary,
            seed=run.seed,
            window=run.data.sequence,
        )
        return tokenizer.decode(written[1:].tolist())


def check_disk(run: RunSpec, path: Path) -> None:
    """Refuse to start a run whose checkpoints cannot fit in its directory: better now than at the first save."""
    each = {"16": 2 + 12, "18": 12, "8": 6, "fp32": 12}[run.layout.state] * parameter_count(run.model)
    present = sum(file.stat().st_size for file in (path / "checkpoints").rglob("*") if file.is_file())
    needed, free = each * (1 + run.checkpoint.keep) - present, free_disk(path)
    if free < needed:
        raise BadInput(
            "checkpoint.keep",
            run.checkpoint.keep,
            rule=f"{run.checkpoint.keep} checkpoints and one being written need {needed / 2**30:.2f} GiB more, "
            f"and {path} has {free / 2**30:.2f} GiB free",
            fix="Free space, keep fewer, or move the run with --runs",
        )
