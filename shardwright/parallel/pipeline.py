"""Pipeline parallelism: each rank holds stages of the model, and microbatches flow through them.

torch.distributed.pipelining runs the schedules; here they are given stages of our decoder and what a step of ours
needs. Between stages goes the residual stream (`model/stage.py`); its shape is known, so nobody has to ask. Targets and
documents never travel: every rank of a pipeline reads the same rows of a batch.

Gradients are those of Σ losses / global tokens, summed over microbatches and never averaged. Weight gradients of the
zero-bubble schedules do not pass through autograd's accumulation, so hooks on parameters do not see them: whoever sums
gradients over data ranks does it after `forward_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from shardwright.cost import held_stages
from shardwright.cost.slots import Action, Kind
from shardwright.model import Stage, passes_balance
from shardwright.parallel.sharded import SPLIT_BACKWARD
from shardwright.parallel.shards import local
from shardwright.spec import BadInput, Layout

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
SPLIT_BACKWARD_SINCE = "2.13"
"""The torch with which the split-backward schedules were seen to work; with 2.11 they were seen to fail."""
ONE_STAGE = ("gpipe", "1f1b")
"""Schedules of torch that take a stage, not a list of them."""


class Pipeline:
    """The stages of one rank, and the schedule that runs them together with the other ranks of `group`."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        layout: Layout,
        *,
        microbatches: int,
        sequence: int,
        group: dist.ProcessGroup,
        device: torch.device,
        sequence_ranks: int = 1,
    ) -> None:
        """`stages` by number, as `held_stages` gives them; `sequence_ranks` share the positions of the stream."""
        check_microbatches(layout, microbatches)
        self.group, self.device, self.microbatch = group, device, layout.microbatch
        self.sequence_ranks = sequence_ranks
        self.rank = dist.get_rank(group)
        self.stages = dict(sorted(stages.items()))
        self.count = layout.pp * layout.interleave
        self.placement = {stage: rank for rank in range(layout.pp) for stage in held_stages(layout, rank)}
        self.actions: list[Action] = []
        self._losses = StepLosses(device)
        wrapped = [
            RecordedStage(
                module, number, self.count, device, group=group, actions=self.actions,
                input_args=self._passed(module, sequence, into=True),
                output_args=self._passed(module, sequence, into=False),
            )
            for number, module in self.stages.items()
        ]  # fmt: skip
        # With fewer microbatches than ranks 1F1B never gets to alternate: it is GPipe, which torch then wants by name.
        schedule = "gpipe" if layout.schedule == "1f1b" and microbatches < layout.pp else layout.schedule
        self._schedule = SCHEDULES[schedule](
            wrapped[0] if schedule in ONE_STAGE else wrapped,
            n_microbatches=microbatches,
            loss_fn=self._losses,
            scale_grads=False,
        )

    def _passed(self, module: Stage, sequence: int, *, into: bool) -> tuple[Tensor, ...]:
        """What goes into a stage or comes out of it for one microbatch: shapes and types, no memory."""
        if module.is_first and into:
            return (torch.empty(self.microbatch, sequence, dtype=torch.int64, device="meta"),)
        loss = torch.empty((), device="meta").requires_grad_()
        if module.is_last and not into:
            return loss, loss
        shape = self.microbatch, sequence // self.sequence_ranks, module.spec.hidden
        x_bsd = torch.empty(shape, dtype=module.compute_dtype, device="meta").requires_grad_()
        return (x_bsd, loss) if passes_balance(module.spec) else (x_bsd,)

    # -- a step ----------------------------------------------------------------------------------------------

    def forward_backward(
        self, inputs_bs: Tensor, targets_bs: Tensor, documents_bs: Tensor | None, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the losses of all microbatches, divided by the global token count.

        Returns the summed next-token and balance losses on the rank that holds the last stage and zeros on the others:
        their sum over ranks counts each once.
        """
        self.actions.clear()
        self._losses.begin(tokens)
        self._schedule.step(
            inputs_bs,
            target=targets_bs,
            targets_bs=targets_bs,
            documents_bs=documents_bs,
            return_outputs=False,
        )
        self._sum_tied_gradients()
        return self._losses.next_token, self._losses.balance

    @torch.no_grad()
    def evaluate(self, inputs_bs: Tensor, targets_bs: Tensor, documents_bs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both losses without gradients, for any number of sequences; zeros where the last stage is not held.

        torch's schedules walk through their backward actions in an evaluation too, which the V-shaped ones do not
        survive; forward alone needs no schedule but stage after stage, all microbatches each.
        """
        self._losses.begin(torch.ones((), device=self.device))
        pieces = [
            (inputs, targets, None if documents_bs is None else documents_bs[start : start + len(targets)])
            for start, inputs, targets in zip(
                range(0, len(inputs_bs), self.microbatch),
                inputs_bs.split(self.microbatch),
                targets_bs.split(self.microbatch),
            )
        ]
        here: dict[int, tuple[Tensor, ...]] = {}
        sent: list[tuple[dist.Work, Tensor]] = []
        for number, module in self.stages.items():
            for piece, (inputs, targets, documents) in enumerate(pieces):
                if module.is_first:
                    passed: tuple[Tensor, ...] = (inputs,)
                elif piece in here:
                    passed = here.pop(piece)
                else:
                    passed = self._receive(module, number, targets)
                out = module(*passed, targets_bs=targets, documents_bs=documents)
                if module.is_last:
                    self._losses(out, targets)
                elif self.placement[number + 1] == self.rank:
                    here[piece] = out
                else:
                    sent += [(self._send(tensor, self.placement[number + 1]), tensor) for tensor in out]
        for work, _ in sent:
            work.wait()
        # Stages that keep gathered parameters between microbatches let go of them, as they do after a step.
        for module in self.stages.values():
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()
        return self._losses.next_token, self._losses.balance

    def _receive(self, module: Stage, number: int, targets_bs: Tensor) -> tuple[Tensor, ...]:
        buffers = tuple(
            torch.empty((len(targets_bs), *like.shape[1:]) if like.dim() else (), dtype=like.dtype, device=self.device)
            for like in self._passed(module, targets_bs.shape[1], into=True)
        )
        for buffer in buffers:
            dist.recv(buffer, group=self.group, group_src=self.placement[number - 1])
        return buffers

    def _send(self, tensor: Tensor, rank: int) -> dist.Work:
        work = dist.isend(tensor.contiguous(), group=self.group, group_dst=rank)
        assert work is not None
        return work

    # -- tied embeddings -------------------------------------------------------------------------------------

    @property
    def table_copy(self) -> Tensor | None:
        """The last stage's copy of a tied embedding table, if this rank holds that stage.

        It is trained like the table itself and stays equal to it; norms and checkpoints count the table alone.
        """
        last = self.stages.get(self.count - 1)
        return last.embedding.weight if last is not None and last.spec.tied_embeddings else None

    def _sum_tied_gradients(self) -> None:
        """Give the embedding table and the head's copy of it the sum of what both gathered."""
        ends = [module for module in self.stages.values() if module.is_first or module.is_last]
        if not ends or not ends[0].spec.tied_embeddings:
            return
        gradients = [_local_gradient(module.embedding.weight) for module in ends]
        if len(ends) == 2:
            other = gradients[1]
        else:
            other = torch.empty_like(gradients[0])
            peer = self.placement[self.count - 1 if ends[0].is_first else 0]
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, gradients[0], group=self.group, group_peer=peer),
                    dist.P2POp(dist.irecv, other, group=self.group, group_peer=peer),
                ]
            ):
                work.wait()
        total = gradients[0] + other
        for gradient in gradients:
            gradient.copy_(total)


def _local_gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a gradient, to be changed in place; split as the parameter is, not as autograd left it."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


class StepLosses:
    """The loss of each microbatch, for the schedule to start backward from, and their sums."""

    def __init__(self, device: torch.device) -> None:
        self.next_token, self.balance = torch.zeros(2, dtype=torch.float64, device=device).unbind()
        self.tokens = torch.ones((), device=device)

    def begin(self, tokens: Tensor) -> None:
        """A new step of this many tokens."""
        self.tokens = tokens
        self.next_token, self.balance = torch.zeros(2, dtype=torch.float64, device=self.next_token.device).unbind()

    def __call__(self, losses: tuple[Tensor, Tensor], _: Any) -> Tensor:
        next_token, balance = losses
        self.next_token += next_token.detach()
        self.balance += balance.detach()
        return (next_token + balance) / self.tokens


class RecordedStage(PipelineStage):
    """A stage of torch's that writes down what it did, when it began and when it ended."""

    def __init__(self, *arguments: Any, actions: list[Action], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._actions = actions

    def _recorded(self, kind: Kind, microbatch: int, work: Callable[[], Any]) -> Any:
        began = perf_counter()
        result = work()
        self._actions.append(Action(kind, self.stage_index, microbatch, began, perf_counter()))
        return result

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        forward = super().forward_one_chunk
        return self._recorded("forward", fwd_chunk_id, lambda: forward(fwd_chunk_id, *arguments, **options))

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        backward = super().backward_one_chunk
        kind: Kind = "backward" if full_backward else "input-gradient"
        self._recorded(kind, bwd_chunk_id, lambda: backward(bwd_chunk_id, loss, full_backward, last_backward))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        backward = super().backward_weight_one_chunk
        self._recorded("weight-gradient", bwd_chunk_id, lambda: backward(bwd_chunk_id, last_backward))


def check_microbatches(layout: Layout, microbatches: int) -> None:
    """Refuse what torch's implementation of the schedule cannot do: a number of microbatches, or all of it."""
    ranks, schedule = layout.pp, layout.schedule
    if schedule in SPLIT_BACKWARD and torch.__version__ < SPLIT_BACKWARD_SINCE:
        raise BadInput(
            "layout.schedule",
            schedule,
            rule=f"needs torch {SPLIT_BACKWARD_SINCE}, and this is {torch.__version__}, whose split backward fails",
            fix='Use schedule = "1f1b" or "interleaved"',
        )
    fix = f"Use a batch of {-(-microbatches // ranks) * ranks} microbatches, or another schedule"
    if schedule in ("interleaved", "zero-bubble"):
        rounds = max(1, microbatches // ranks)
        if microbatches % rounds:
            raise BadInput(
                "layout.schedule",
                schedule,
                rule=f"takes microbatches in equal rounds of at least pp = {ranks}, and {microbatches} microbatches "
                f"do not divide into {rounds} rounds",
                fix=fix,
            )
    if schedule == "dualpipev" and microbatches < 2 * ranks:
        raise BadInput(
            "layout.schedule",
            schedule,
            rule=f"needs a microbatch for each of its 2 × pp = {2 * ranks} stages, and a step has {microbatches}",
            fix=f"Use a batch of {2 * ranks} microbatches, or another schedule",
        )
