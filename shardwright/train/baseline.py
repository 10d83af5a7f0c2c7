"""What a process holds before its model: Python, torch, and what libraries load when they are first used."""

from __future__ import annotations

import torch

from shardwright.model import build, materialise
from shardwright.spec import ModelSpec, OptimizerSpec
from shardwright.train.meter import memory_in_use
from shardwright.train.optimizer import Optimizer
from shardwright.train.recipe import Recipe

_SPECK = ModelSpec(vocabulary=32, hidden=32, layers=1, heads=2, kv_heads=1, feed_forward=32, context=32)


def settled_memory(device: torch.device, recipe: Recipe) -> int:
    """Bytes in use after one training step of a model too small to count.

    Kernels, workspaces and thread pools are loaded at their first use and stay: a hundred MiB that belong to no model.
    """
    model = build(_SPECK)
    materialise(model, seed=0, device=device, dtype=recipe.weights)
    model.compute_dtype = recipe.compute
    optimizer = Optimizer(model.named_parameters(), OptimizerSpec(), recipe)
    tokens = torch.zeros(1, 17, dtype=torch.int64, device=device)
    model(tokens[:, :-1], tokens[:, 1:]).next_token.backward()
    optimizer.step(1e-3)
    return memory_in_use(device)
