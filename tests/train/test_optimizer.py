"""The optimizer: AdamW's own update, decay groups, clipping, masters."""

from __future__ import annotations

import pytest
import torch

from shardwright.model import build, materialise
from shardwright.spec import ModelSpec, OptimizerSpec
from shardwright.train.optimizer import Optimizer, is_decayed
from shardwright.train.recipe import RECIPES

SPEC = ModelSpec(vocabulary=32, hidden=16, layers=1, heads=2, feed_forward=24, qkv_bias=True, qk_norm=True)


def model_with_gradients(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = build(SPEC)
    materialise(model, seed=1, device="cpu", dtype=dtype)
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def test_norms_and_biases_are_not_decayed() -> None:
    spared = {name for name, parameter in model_with_gradients().named_parameters() if not is_decayed(name, parameter)}
    assert spared == {name for name, _ in model_with_gradients().named_parameters() if "norm" in name or "bias" in name}
    assert "layers.0.attention.query.bias" in spared


def test_equals_plain_adamw_with_clipping() -> None:
    ours, plain = model_with_gradients(), model_with_gradients()
    spec = OptimizerSpec(learning_rate=0.01, weight_decay=0.2, clip=0.5)
    optimizer = Optimizer(ours.named_parameters(), spec, RECIPES["fp32"])
    decayed = [p for n, p in plain.named_parameters() if p.ndim > 1]
    others = [p for n, p in plain.named_parameters() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}], betas=spec.betas, lr=1.0
    )
    for rate in (0.01, 0.003):
        norm = optimizer.step(rate)
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        torch.testing.assert_close(norm, expected)
    for mine, theirs in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_no_clipping_when_off() -> None:
    model = model_with_gradients()
    before = model.norm.weight.grad.clone()
    Optimizer(model.named_parameters(), OptimizerSpec(clip=0.0), RECIPES["fp32"]).step(1e-3)
    assert torch.equal(model.norm.weight.grad, before)


def test_masters_keep_what_bf16_rounds_away() -> None:
    """Updates far below a bf16 weight's last bit add up in the master, and one day show in the weight."""
    model = model_with_gradients(torch.bfloat16)
    optimizer = Optimizer(model.named_parameters(), OptimizerSpec(weight_decay=0.0), RECIPES["16"])
    weight = model.norm.weight  # ones: the next bf16 below is 1 − 2⁻⁸
    gradient = torch.ones_like(weight)
    for _ in range(15):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        weight.grad = gradient.clone()
        optimizer.step(1e-4)
    assert torch.equal(weight, torch.ones_like(weight))
    assert optimizer.updated["norm.weight"].mean().item() == pytest.approx(1 - 15e-4, abs=2e-5)
    for _ in range(20):
        weight.grad = gradient.clone()
        optimizer.step(1e-4)
    assert (weight < 1).all()


def test_state_is_taken_back() -> None:
    first, second = model_with_gradients(torch.bfloat16), model_with_gradients(torch.bfloat16)
    one = Optimizer(first.named_parameters(), OptimizerSpec(), RECIPES["16"])
    one.step(1e-3)
    other = Optimizer(second.named_parameters(), OptimizerSpec(), RECIPES["16"])
    saved = {name: tensor.clone() for name, tensor in one.state().items()}
    assert {name.split("/")[0] for name in saved} == {"first", "second", "master"}
    second.load_state_dict(first.state_dict())
    other.load(saved, step=1)
    for model, optimizer in ((first, one), (second, other)):
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(1e-3)
    for mine, theirs in zip(first.parameters(), second.parameters()):
        assert torch.equal(mine, theirs)
