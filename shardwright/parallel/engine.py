"""What a training loop needs of a model, however it is spread: gradients of a batch, and a loss without them.

`Whole` has the whole model on every rank (or a shard or a slice of every layer); `Staged` has some stages of a
pipeline. The loop, the optimizer and the checkpoint treat them alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from shardwright.data import Batch
from shardwright.model import Decoder
from shardwright.parallel.data import GradientSync
from shardwright.parallel.pipeline import Pipeline
from shardwright.parallel.sharded import ShardedGradients
from shardwright.parallel.shards import COPY


class Engine(Protocol):
    """A model, spread, that can be trained."""

    gradients: GradientSync | ShardedGradients

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters under the whole model's names; a second copy of one is marked with `COPY`."""

    def forward_backward(self, batch: Batch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of Σ losses / `tokens`, summed over the data ranks; returns this rank's summed losses.

        Dividing by the count of the whole global batch, not averaging averages, makes any split into microbatches and
        ranks equal to one large batch.
        """

    def evaluate(self, batch: Batch) -> Tensor:
        """The summed next-token loss of some sequences, without gradients; zero on ranks that do not hold the head."""


class Whole:
    """One model, its microbatches one after the other."""

    def __init__(
        self, model: Decoder, gradients: GradientSync | ShardedGradients, microbatch: int, device: torch.device
    ) -> None:
        self.model, self.gradients = model, gradients
        self.microbatch, self.device = microbatch, device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's own."""
        return self.model.named_parameters()

    def forward_backward(self, batch: Batch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and backward of each microbatch; the last one sends gradients while it computes them."""
        next_token, balance = torch.zeros(2, dtype=torch.float64, device=self.device).unbind()
        pieces = batch.split(self.microbatch)
        for number, piece in enumerate(pieces, 1):
            piece = piece.to(self.device)
            with self.gradients.last_backward(number == len(pieces)):
                losses = self.model(piece.inputs, piece.targets, piece.documents)
                ((losses.next_token + losses.balance) / tokens).backward()
            next_token += losses.next_token.detach()
            balance += losses.balance.detach()
        return next_token, balance

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """One forward pass."""
        piece = batch.to(self.device)
        return self.model(piece.inputs, piece.targets, piece.documents).next_token


class Staged:
    """Some stages of a pipeline; torch's schedule decides what runs when."""

    def __init__(self, pipeline: Pipeline, gradients: GradientSync | ShardedGradients, device: torch.device) -> None:
        self.pipeline, self.gradients, self.device = pipeline, gradients, device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of all its stages; the head's copy of a tied embedding table is marked."""
        copy = self.pipeline.table_copy
        for stage in self.pipeline.stages.values():
            for name, parameter in stage.named_parameters():
                yield (f"{name}{COPY}" if parameter is copy else name), parameter

    def forward_backward(self, batch: Batch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """All microbatches through the schedule; replicated gradients are summed when it has ended."""
        batch = batch.to(self.device)
        losses = self.pipeline.forward_backward(batch.inputs, batch.targets, batch.documents, tokens)
        if isinstance(self.gradients, GradientSync):
            self.gradients.sum_now()
        return losses

    def evaluate(self, batch: Batch) -> Tensor:
        """Stage after stage."""
        batch = batch.to(self.device)
        return self.pipeline.evaluate(batch.inputs, batch.targets, batch.documents)[0]
