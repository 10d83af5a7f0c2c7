"""Training, on one screen."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from shardwright.data import Batch, Prefetch
from shardwright.model.loss import NO_TARGET
from shardwright.train.evaluate import held_out_loss
from shardwright.train.meter import GIB, Meter, StepClock
from shardwright.train.schedule import learning_rate
from shardwright.train.session import Outcome, Session


def train(session: Session) -> Outcome:
    """Train from where the run stands to its last step, or until it is asked to stop."""
    run, world = session.run, session.world
    meter, began = Meter(run, world, session.mesh), perf_counter()
    record, stopped = None, False
    before = evaluate(session) if session.step == 0 else None
    with batches_from(session) as batches:
        while session.step < run.steps and not stopped:
            for record in step(session, meter, batches):
                stopped = session.note(record) or stopped
            if session.step == run.steps or stopped:
                break
            if due(session.step, run.observe.evaluate_every):
                evaluate(session)
            if due(session.step, run.checkpoint.every):
                session.save()
    for record in meter.drain():
        session.note(record)
    saved = session.save()
    is_done = session.step == run.steps
    return Outcome(
        directory=str(session.directory.path),
        ranks=world.size,
        device=world.device.type,
        step=session.step,
        stopped=not is_done,
        tokens=session.step * run.tokens_per_step,
        loss=record["loss"] if record else None,
        held_out_loss=evaluate(session) if is_done else None,
        first_held_out_loss=before,
        seconds=perf_counter() - began,
        tokens_per_second=meter.mean_rate,
        mfu=None if meter.mean_rate is None else meter.utilisation(meter.mean_rate),
        memory_gib=record["memory_gib"] if record else 0.0,
        baseline_gib=session.baseline / GIB,
        sample=session.sample() if is_done else None,
        saved=saved,
    )


def batches_from(session: Session) -> Prefetch:
    """The batches of this rank, read ahead, from the step where the session stands."""
    ranks, on_gpu = session.run.layout.data_ranks, session.world.device.type == "cuda"
    return Prefetch(session.train, start=session.step, rank=session.mesh.data_rank, ranks=ranks, pin=on_gpu)


def step(session: Session, meter: Meter, batches: Prefetch) -> list[dict[str, Any]]:
    """One optimizer step; returns the records that are finished by now (on a GPU, the step before's)."""
    clock = StepClock(session.world.device)
    _, batch = next(batches)
    data_seconds = perf_counter() - clock.started
    next_token, balance, tokens = forward_backward(session, batch)
    rate = learning_rate(session.step, session.run)
    norm = session.optimizer.step(rate)
    session.gradients.zero()
    session.step += 1
    return meter.push(
        session.step, next_token=next_token, balance=balance, tokens=tokens, norm=norm, stop=session.stop.requested,
        learning_rate=rate, data_seconds=data_seconds, clock=clock,
    )  # fmt: skip


def forward_backward(session: Session, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a global batch: Σ losses / global tokens. Returns this rank's summed losses and the global tokens.

    Dividing by the count of the whole batch, not averaging averages, makes any split into microbatches and ranks equal
    to one large batch.
    """
    device = session.world.device
    tokens = session.mesh.sum_over_data((batch.targets != NO_TARGET).sum().to(device))
    next_token, balance = torch.zeros(2, dtype=torch.float64, device=device).unbind()
    pieces = batch.split(session.run.layout.microbatch)
    for number, piece in enumerate(pieces, 1):
        piece = piece.to(device)
        with session.gradients.last_backward(number == len(pieces)):
            losses = session.model(piece.inputs, piece.targets, piece.documents)
            ((losses.next_token + losses.balance) / tokens).backward()
        next_token += losses.next_token.detach()
        balance += losses.balance.detach()
    return next_token, balance, tokens


def evaluate(session: Session) -> float | None:
    """The held-out loss, noted as an event."""
    if session.held_out is None:
        return None
    loss = held_out_loss(session.model, session.held_out, session.run.layout, session.mesh, session.world.device)
    session.event("evaluate", {"loss": loss}, f"step {session.step}: held-out loss {loss:.4f}")
    return loss


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one."""
    return every > 0 and step % every == 0
