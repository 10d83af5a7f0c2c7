"""What a run is: model, data, batch, optimizer, schedule, layout, checkpoint, guard, observe.

A `RunSpec` is read from TOML (`shardwright.spec.toml`), or built in Python; either way it is validated here, and the
batch equation `global batch = microbatch × accumulation × data ranks` is solved by `resolve`.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

from shardwright.spec.errors import BadInput
from shardwright.spec.fields import require
from shardwright.spec.layout import Layout
from shardwright.spec.model import ModelSpec


@dataclass(frozen=True)
class Ingredient:
    """One source of a mixture."""

    source: str
    """As `data.source`."""
    weight: float = 1.0
    """Share of the sequences, relative to the other weights."""

    def __post_init__(self) -> None:
        require(self.weight > 0, "weight", self.weight, "must be positive")


@dataclass(frozen=True)
class DataSpec:
    """Where text comes from and how it becomes sequences."""

    source: str = "python-stdlib"
    """`python-stdlib`, a folder of text, a .jsonl or .parquet file or folder of them, a Hugging Face dataset on
    disk, or token shards."""
    mixture: tuple[Ingredient, ...] = ()
    """Several sources by weight, in place of `source`."""
    format: Literal["auto", "text", "jsonl", "parquet", "huggingface", "tokens"] = "auto"
    """What a path holds; `auto` looks at the names of its files."""
    text_field: str = "text"
    """Column or key that holds the text of a document."""
    pattern: str = "*"
    """Which files of a folder of text are read, by name."""
    tokenizer: str = "bytes"
    """`bytes`, or the path of a tokenizer.json (or of its folder)."""
    separator: str | None = None
    """Token that stands before each document; left out, the tokenizer's own end-of-text token."""
    sequence: int = 256
    """Tokens a sequence."""
    document_mask: bool = True
    """Packed documents do not see each other."""
    held_out: float = 0.01
    """Share of the documents kept for evaluation; chosen by their content, so that copies stay on one side."""
    bad_text: Literal["refuse", "skip", "replace"] = "refuse"
    """What to do with text that is not UTF-8."""
    folder: str | None = None
    """Where prepared shards are kept; left out, SHARDWRIGHT_DATA or the user's cache folder."""
    workers: int | None = None
    """Processes that prepare data; left out, one a core."""

    def __post_init__(self) -> None:
        require(self.sequence >= 1, "sequence", self.sequence, "must be at least 1")
        require(0 <= self.held_out < 1, "held_out", self.held_out, "must be at least 0 and less than 1")
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "must be at least 1")


@dataclass(frozen=True)
class BatchSpec:
    """How many sequences make one step."""

    sequences: int | None = None
    """Global batch: sequences a step, over all data ranks."""
    accumulation: int | None = None
    """Microbatches that each data rank adds up before the optimizer steps."""

    def __post_init__(self) -> None:
        for name in ("sequences", "accumulation"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")


@dataclass(frozen=True)
class OptimizerSpec:
    """How gradients become updates."""

    name: Literal["adamw"] = "adamw"
    """Decoupled weight decay (arXiv:1711.05101)."""
    learning_rate: float = 1e-3
    """Peak of the schedule."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """On matrices; norms and biases are never decayed."""
    clip: float = 1.0
    """Largest global gradient norm; 0 for no clipping."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "must be positive")
        require(all(0 <= beta < 1 for beta in self.betas), "betas", list(self.betas), "must lie in [0, 1)")
        require(self.epsilon > 0, "epsilon", self.epsilon, "must be positive")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must not be negative")
        require(self.clip >= 0, "clip", self.clip, "must not be negative")


@dataclass(frozen=True)
class ScheduleSpec:
    """The learning rate over the run."""

    name: Literal["cosine", "wsd", "linear", "constant"] = "cosine"
    """After the warm-up: a half cosine, stable then linear decay (warmup-stable-decay), a line, or flat."""
    warmup: int = 0
    """Steps of linear rise from zero."""
    decay: int | None = None
    """`wsd`: steps of the final decay; left out, a fifth of the run."""
    final: float = 0.1
    """Learning rate at the end, as a fraction of the peak."""

    def __post_init__(self) -> None:
        require(self.warmup >= 0, "warmup", self.warmup, "must not be negative")
        require(self.decay is None or self.decay >= 1, "decay", self.decay, "must be at least 1")
        require(0 <= self.final <= 1, "final", self.final, "must lie between 0 and 1")


@dataclass(frozen=True)
class CheckpointSpec:
    """When state is saved, and how much of it is kept."""

    every: int = 100
    """Steps between saves; 0 saves at the end only."""
    keep: int = 2
    """How many of the newest are kept."""

    def __post_init__(self) -> None:
        require(self.every >= 0, "every", self.every, "must not be negative")
        require(self.keep >= 1, "keep", self.keep, "must be at least 1")


@dataclass(frozen=True)
class GuardSpec:
    """How a run protects itself."""

    timeout: float = 600.0
    """Seconds after which a collective that does not finish ends the run."""
    restarts: int = 0
    """How often the ranks are started again after one of them failed."""

    def __post_init__(self) -> None:
        require(self.timeout > 0, "timeout", self.timeout, "must be positive")
        require(self.restarts >= 0, "restarts", self.restarts, "must not be negative")


@dataclass(frozen=True)
class ObserveSpec:
    """What is shown and written down."""

    evaluate_every: int = 0
    """Steps between evaluations on the held-out split; 0 evaluates at the end only."""
    evaluate_sequences: int = 64
    """Sequences an evaluation reads; 0 for no evaluation."""
    log_seconds: float = 5.0
    """Seconds between lines where there is no terminal."""
    sample: int = 0
    """Tokens of text generated when the run ends."""
    sample_prompt: str = "def "
    """What that text begins with."""
    tensorboard: bool = False
    """Write TensorBoard event files too (the `tensorboard` extra)."""

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "evaluate_sequences", "sample"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        require(self.log_seconds > 0, "log_seconds", self.log_seconds, "must be positive")


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides what a run computes, and how it is kept and shown."""

    model: ModelSpec
    """What is trained."""
    name: str = "run"
    """Folder of the run under runs/."""
    seed: int = 42
    """Weights, data order and sampling follow from it."""
    steps: int = 200
    """Optimizer steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute; `auto` takes a GPU each where there are enough."""
    data: DataSpec = field(default_factory=DataSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    layout: Layout = field(default_factory=Layout)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    guard: GuardSpec = field(default_factory=GuardSpec)
    observe: ObserveSpec = field(default_factory=ObserveSpec)

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")
        require(self.seed >= 0, "seed", self.seed, "must not be negative")
        require(
            bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.name)),
            "name",
            self.name,
            "names a folder: letters, digits, '.', '_' and '-', the first a letter or digit",
        )
        require(
            self.schedule.warmup <= self.steps,
            "schedule.warmup",
            self.schedule.warmup,
            f"must not be longer than the run of {self.steps} steps",
        )
        if self.schedule.decay is not None:
            require(
                self.schedule.warmup + self.schedule.decay <= self.steps,
                "schedule.decay",
                self.schedule.decay,
                f"with warmup {self.schedule.warmup} it is longer than the run of {self.steps} steps",
            )
        require(
            self.data.sequence <= self.model.context,
            "data.sequence",
            self.data.sequence,
            f"must not be longer than the model's context of {self.model.context}",
        )

    def resolve(self, world: int | None = None) -> RunSpec:
        """The run with every derived number filled in and every rule checked: what the engine runs.

        `world` is the number of ranks, where the caller knows it; left out, the layout's own product.
        """
        if world is None:
            world = self.layout.model_ranks * (self.layout.dp or 1)
        layout = self.layout.complete(world)
        layout.check(self.model, sequence=self.data.sequence)
        return dataclasses.replace(self, layout=layout, batch=_solve_batch(self.batch, layout))

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a global batch, once resolved."""
        return (self.batch.sequences or 0) * self.data.sequence


def _solve_batch(batch: BatchSpec, layout: Layout) -> BatchSpec:
    """Solve `sequences = microbatch × accumulation × data ranks` for what is missing, or show that it does not hold."""
    per_round = layout.microbatch * layout.data_ranks
    product = f"microbatch {layout.microbatch} × accumulation {batch.accumulation or '?'} × data ranks {layout.dp}"
    if batch.sequences is None:
        accumulation = batch.accumulation or 1
        return BatchSpec(per_round * accumulation, accumulation)
    if batch.accumulation is None:
        if batch.sequences % per_round:
            below, above = (
                batch.sequences // per_round * per_round,
                (batch.sequences // per_round + 1) * per_round,
            )
            either = f"{below} or {above}" if below else f"{above}"
            raise BadInput(
                "batch.sequences",
                batch.sequences,
                rule=f"{batch.sequences} = {product} has no whole answer: {batch.sequences} / {per_round} = "
                f"{batch.sequences / per_round:g}",
                fix=f"Use {either} sequences, or another microbatch",
            )
        return BatchSpec(batch.sequences, batch.sequences // per_round)
    if batch.sequences != per_round * batch.accumulation:
        raise BadInput(
            "batch.sequences",
            batch.sequences,
            rule=f"{batch.sequences} ≠ {product} = {per_round * batch.accumulation}",
            fix="Leave one of batch.sequences and batch.accumulation out",
        )
    return batch
