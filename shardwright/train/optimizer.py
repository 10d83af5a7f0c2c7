"""AdamW over named parameters: decay groups, clipping by the global norm, fp32 masters where the recipe keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from shardwright.spec import OptimizerSpec
from shardwright.train.recipe import Recipe


class Optimizer:
    """One update of all parameters from their gradients."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], spec: OptimizerSpec, recipe: Recipe) -> None:
        self.spec = spec
        self.weights = {name: parameter for name, parameter in named if parameter.requires_grad}
        # What AdamW updates: the weights themselves, or their fp32 masters.
        self.updated: dict[str, Tensor] = dict(self.weights)
        if recipe.master:
            self.updated = {name: weight.detach().float() for name, weight in self.weights.items()}
        decayed = [self.updated[name] for name in self.updated if is_decayed(name, self.weights[name])]
        others = [self.updated[name] for name in self.updated if not is_decayed(name, self.weights[name])]
        groups = [
            {"params": decayed, "weight_decay": spec.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            fused=True,
        )

    @property
    def has_masters(self) -> bool:
        """Whether fp32 copies of the weights are kept here."""
        return any(self.updated[name] is not self.weights[name] for name in self.weights)

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Clip, update, and return the gradients' global norm before clipping."""
        updated: list[Tensor] = list(self.updated.values())
        weights: list[Tensor] = list(self.weights.values())
        if self.has_masters:
            for master, weight in zip(updated, weights):
                master.grad = None if weight.grad is None else weight.grad.float()
        gradients = [tensor.grad for tensor in updated if tensor.grad is not None]
        norm = get_total_norm(gradients, foreach=True)
        if self.spec.clip:
            clip_grads_with_norm_(updated, self.spec.clip, norm, foreach=True)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        if self.has_masters:
            torch._foreach_copy_(weights, updated)
            for master in updated:
                master.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything that must be saved beside the weights: `first/NAME`, `second/NAME` and `master/NAME`."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.updated.items():
            moments = self.adamw.state.get(tensor)
            if moments:
                tensors[f"first/{name}"] = moments["exp_avg"]
                tensors[f"second/{name}"] = moments["exp_avg_sq"]
            if self.has_masters:
                tensors[f"master/{name}"] = tensor
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take back what `state` gave, after this many steps."""
        for name, tensor in self.updated.items():
            self.adamw.state[tensor] = {
                "step": torch.tensor(float(step), device=tensor.device),
                "exp_avg": tensors[f"first/{name}"].to(tensor),
                "exp_avg_sq": tensors[f"second/{name}"].to(tensor),
            }
            if self.has_masters:
                tensor.copy_(tensors[f"master/{name}"])


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Matrices are decayed; norms and biases are not, whatever their shape."""
    return parameter.ndim >= 2 and "norm" not in name and not name.endswith("bias")
