"""A mixture of experts equals the sum that defines it, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from shardwright.model.moe import MixtureOfExperts
from shardwright.spec import Experts

SPEC = Experts(count=8, active=3, feed_forward=12, balance_loss=0.5)


def layer(spec: Experts) -> MixtureOfExperts:
    torch.manual_seed(0)
    made = MixtureOfExperts(16, spec)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def token_by_token(moe: MixtureOfExperts, x_bsd: torch.Tensor) -> torch.Tensor:
    spec, experts = moe.spec, moe.experts
    out = []
    for token in x_bsd.flatten(0, 1):
        logits = moe.router.weight @ token
        scores = logits.softmax(-1) if spec.scores == "softmax" else logits.sigmoid()
        allowed = scores.clone()
        if spec.groups > spec.active_groups:
            grouped = scores.view(spec.groups, -1)
            worst = grouped.topk(2, -1).values.sum(-1).argsort()[: spec.groups - spec.active_groups]
            allowed.view(spec.groups, -1)[worst] = -1
        chosen = allowed.argsort(descending=True)[: spec.active]
        weights = scores[chosen]
        if spec.normalize:
            weights = weights / weights.sum()
        total = torch.zeros(16)
        for expert, weight in zip(chosen, weights * spec.scale):
            inner = F.silu(experts.gate[expert] @ token) * (experts.up[expert] @ token)
            total = total + weight * (experts.down[expert] @ inner)
        if moe.shared is not None:
            total = total + moe.shared(token)
        out.append(total)
    return torch.stack(out).view_as(x_bsd)


CASES = {
    "softmax": SPEC,
    "sigmoid, scaled": replace(SPEC, scores="sigmoid", scale=2.5),
    "not normalised": replace(SPEC, normalize=False),
    "shared": replace(SPEC, shared=2),
    "groups": replace(SPEC, groups=4, active_groups=2),
    "one expert a token": replace(SPEC, active=1),
    "all experts": replace(SPEC, active=8),
}


@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_equals_the_definition(spec: Experts) -> None:
    moe, x = layer(spec), torch.randn(2, 10, 16, requires_grad=True)
    actual, _ = moe(x)
    expected = token_by_token(moe, x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(actual)
    mine = torch.autograd.grad((actual * direction).sum(), [x, *moe.parameters()])
    theirs = torch.autograd.grad((expected * direction).sum(), [x, *moe.parameters()])
    for ours, other in zip(mine, theirs):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_an_expert_without_tokens_is_normal() -> None:
    moe = layer(replace(SPEC, active=1))
    with torch.no_grad():
        moe.router.weight[1:] = -moe.router.weight[:1]
    x = moe.router.weight[:1].detach().expand(5, -1)[None]  # every token prefers expert 0
    out, balance = moe(x)
    (out.sum() + balance).backward()
    assert torch.isfinite(out).all()
    gradient = moe.experts.gate.grad
    assert gradient is not None
    assert gradient[0].any()
    assert not gradient[1:].any()


def test_balance_loss_is_a_sum_over_sequences() -> None:
    """However sequences are grouped into batches, their balance losses add up to the same: layout-free mathematics."""
    moe, x = layer(SPEC), torch.randn(4, 10, 16)
    _, together = moe(x)
    apart = sum(moe(x[row : row + 1])[1] for row in range(4))
    torch.testing.assert_close(together, apart)
    even = torch.zeros(1, 10, 16)  # no preference: the loss is its minimum, coefficient × tokens
    _, least = moe(even)
    assert least.item() >= 0.5 * 10 - 1e-4
