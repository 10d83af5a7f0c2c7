"""The learning rate as a function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

from math import cos, pi

from shardwright.spec import RunSpec


def learning_rate(step: int, run: RunSpec) -> float:
    """The rate for step 0, 1, …, steps − 1. Warm-up rises to the peak; the last step ends at `final` of it."""
    schedule, peak = run.schedule, run.optimizer.learning_rate
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    after, length = step - schedule.warmup, run.steps - schedule.warmup
    if schedule.name == "wsd":
        decay = schedule.decay if schedule.decay is not None else max(1, run.steps // 5)
        after, length = after - (length - decay), decay
    # How much of the descent is done: 0 at its first step, 1 at the run's last.
    done = min(1.0, max(0.0, after / max(1, length - 1)))
    if schedule.name == "constant":
        return peak
    remaining = 0.5 * (1 + cos(pi * done)) if schedule.name == "cosine" else 1 - done
    return peak * (schedule.final + (1 - schedule.final) * remaining)
