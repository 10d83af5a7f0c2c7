"""AdamW over named parameters: decay groups, clipping by the global norm, fp32 masters where the recipe keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from shardwright.parallel.mesh import Mesh
from shardwright.parallel.shards import COPY, global_norm, local, local_gradient, region, whole
from shardwright.spec import OptimizerSpec
from shardwright.train.recipe import Recipe


class Optimizer:
    """One update of all parameters from their gradients."""

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], spec: OptimizerSpec, recipe: Recipe, mesh: Mesh | None = None
    ) -> None:
        self.spec, self.mesh = spec, mesh
        self.parameters: dict[str, Tensor] = {name: parameter for name, parameter in named if parameter.requires_grad}
        # AdamW is elementwise: it sees plain tensors, of each parameter the part that this rank holds.
        self.weights = {name: local(parameter.detach()) for name, parameter in self.parameters.items()}
        # What it updates: the weights themselves, or their fp32 masters.
        self.updated = {name: weight.float() if recipe.master else weight for name, weight in self.weights.items()}
        self.has_masters = recipe.master
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

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Clip, update, and return the gradients' global norm before clipping."""
        updated = list(self.updated.values())
        for tensor, parameter in zip(updated, self.parameters.values()):
            gradient = local_gradient(parameter)
            if gradient is None:
                raise RuntimeError("a parameter got no gradient in this step")
            tensor.grad = gradient.to(tensor.dtype)
        gradients = [tensor.grad for tensor in updated if tensor.grad is not None]
        norm = global_norm(self.parameters, gradients, self.mesh)
        if self.spec.clip:
            clip_grads_with_norm_(updated, self.spec.clip, norm, foreach=True)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        if self.has_masters:
            torch._foreach_copy_(list(self.weights.values()), updated)
        for tensor in updated:
            tensor.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything that must be saved beside the weights: `first/NAME`, `second/NAME` and `master/NAME`, whole.

        All ranks must call it: what is sharded is gathered.
        """
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.updated.items():
            if name.endswith(COPY):
                continue
            parameter = self.parameters[name]
            moments = self.adamw.state.get(tensor)
            if moments:
                tensors[f"first/{name}"] = whole(moments["exp_avg"], parameter)
                tensors[f"second/{name}"] = whole(moments["exp_avg_sq"], parameter)
            if self.has_masters:
                tensors[f"master/{name}"] = whole(tensor, parameter)
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take back what `state` gave, after this many steps: of each tensor, what this rank holds."""
        for full_name, tensor in self.updated.items():
            name, mine = full_name.removesuffix(COPY), region(self.parameters[full_name])
            self.adamw.state[tensor] = {
                "step": torch.tensor(float(step), device=tensor.device),
                "exp_avg": tensors[f"first/{name}"][mine].to(tensor, copy=True),
                "exp_avg_sq": tensors[f"second/{name}"][mine].to(tensor, copy=True),
            }
            if self.has_masters:
                tensor.copy_(tensors[f"master/{name}"][mine])


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Matrices are decayed; norms and biases are not, whatever their shape."""
    return parameter.ndim >= 2 and "norm" not in name and not name.endswith("bias")
