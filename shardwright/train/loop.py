"""Training, on one screen."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from shardwright.data import Prefetch
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
    tokens = session.mesh.sum_over_data((batch.targets != NO_TARGET).sum().to(session.world.device))
    next_token, balance = session.engine.forward_backward(batch, tokens)
    rate = learning_rate(session.step, session.run)
    norm = session.optimizer.step(rate)
    session.engine.gradients.zero()
    session.step += 1
    return meter.push(
        session.step, next_token=next_token, balance=balance, tokens=tokens, norm=norm, stop=session.stop.requested,
        learning_rate=rate, data_seconds=data_seconds, clock=clock,
    )  # fmt: skip


def evaluate(session: Session) -> float | None:
    """The held-out loss, noted as an event."""
    if session.held_out is None:
        return None
    loss = held_out_loss(session.engine, session.held_out, session.mesh, session.world)
    session.event("evaluate", {"loss": loss}, f"step {session.step}: held-out loss {loss:.4f}")
    return loss


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one."""
    return every > 0 and step % every == 0
