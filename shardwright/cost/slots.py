"""What a pipeline schedule costs in idle slots and in microbatches held at once, read off an order of actions.

The order may be planned or recorded from a real step; the clock here is ideal: each action takes a fixed number of
slots, messages take none. What remains is the schedule's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "backward", "input-gradient", "weight-gradient"]

SLOTS: dict[Kind, int] = {"forward": 1, "backward": 2, "input-gradient": 1, "weight-gradient": 1}
"""How long each takes: the two gradients of a matrix product cost as much as the product, each."""


@dataclass(frozen=True)
class Action:
    """One piece of work of a rank."""

    kind: Kind
    """Backward is both gradients at once; zero-bubble schedules take them one by one."""
    stage: int
    """The stage that worked."""
    microbatch: int
    """What it worked on."""
    began: float = 0.0
    """Seconds on the rank's own clock, where it was measured."""
    ended: float = 0.0
    """The same, at the end."""


def idle_slots(orders: Sequence[Sequence[Action]], slots: Mapping[Kind, int] = SLOTS) -> list[int]:
    """Slots in which each rank waits, from the first action of any rank to the last of all.

    Ranks start each action as soon as they are free and its input is there: a forward waits for the stage before it, a
    backward for the stage after it.
    """
    last_stage = max(action.stage for order in orders for action in order)
    finished: dict[tuple[str, int, int], int] = {}
    clocks, places = [0] * len(orders), [0] * len(orders)
    progress = True
    while progress:
        progress = False
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                needed = _needed(action, last_stage)
                if needed is not None and needed not in finished:
                    break
                clocks[rank] = max(clocks[rank], finished.get(needed, 0) if needed else 0) + slots[action.kind]
                finished[_done(action)] = clocks[rank]
                places[rank] += 1
                progress = True
    for rank, order in enumerate(orders):
        if places[rank] < len(order):
            raise ValueError(f"rank {rank} waits forever for the input of {order[places[rank]]}")
    return [max(clocks) - sum(slots[action.kind] for action in order) for order in orders]


def peak_live(order: Sequence[Action]) -> int:
    """Most microbatches whose activations a rank holds at once, each stage's counted by itself."""
    live = peak = 0
    for action in order:
        if action.kind == "forward":
            live += 1
            peak = max(peak, live)
        elif action.kind != "input-gradient":  # the weights' gradients still need the activations
            live -= 1
    return peak


def _done(action: Action) -> tuple[str, int, int]:
    """What others may wait for: a stage's output, or its input's gradient."""
    phase = "gradient" if action.kind in ("backward", "input-gradient") else action.kind
    return phase, action.stage, action.microbatch


def _needed(action: Action, last_stage: int) -> tuple[str, int, int] | None:
    if action.kind == "forward":
        return ("forward", action.stage - 1, action.microbatch) if action.stage else None
    if action.kind == "weight-gradient":
        return "gradient", action.stage, action.microbatch
    if action.stage == last_stage:
        return "forward", action.stage, action.microbatch
    return "gradient", action.stage + 1, action.microbatch
