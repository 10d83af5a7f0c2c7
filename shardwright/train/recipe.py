"""The recipes of `layout.state`: in which type weights, gradients and optimizer state are kept.

| state | weights | gradients | master | moments | bytes a parameter        |
|-------|---------|-----------|--------|---------|--------------------------|
| 16    | bf16    | bf16      | fp32   | fp32    | 2 + 2 + 4 + 4 + 4        |
| 18    | fp32    | fp32      | itself | fp32    | 4 + 4 + 4 + 4, and 2 for |
|       |         |           |        |         | bf16 copies while used   |
| 8     | bf16    | bf16      | none   | bf16    | 2 + 2 + 2 + 2            |
| fp32  | fp32    | fp32      | itself | fp32    | 4 + 4 + 4 + 4            |

Gradients have the type of the weights. Gradient sums over ranks are fp32 in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwright.spec import Layout


@dataclass(frozen=True)
class Recipe:
    """Types of everything that is kept."""

    weights: torch.dtype
    """Of the model's parameters and their gradients."""
    compute: torch.dtype
    """Of activations and matrix products."""
    master: bool
    """Whether the optimizer keeps an fp32 copy of the weights."""


RECIPES = {
    "16": Recipe(torch.bfloat16, torch.bfloat16, master=True),
    "18": Recipe(torch.float32, torch.bfloat16, master=False),
    "8": Recipe(torch.bfloat16, torch.bfloat16, master=False),
    "fp32": Recipe(torch.float32, torch.float32, master=False),
}


def recipe_of(layout: Layout) -> Recipe:
    """The recipe that a layout names; `parallel.engine_runs` has refused the others."""
    return RECIPES[layout.state]
