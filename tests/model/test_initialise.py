"""First weights are a function of (seed, name, position), on every device and for every shard."""

from __future__ import annotations

import pytest
import torch

from shardwright.model import build, initialise, materialise
from shardwright.spec import ModelSpec


def weights(seed: int) -> dict[str, torch.Tensor]:
    model = build(ModelSpec.named("tiny"))
    materialise(model, seed=seed, device="cpu")
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_same_seed_same_weights_other_seed_others() -> None:
    first, again, other = weights(1), weights(1), weights(2)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        assert "norm" in name or not torch.equal(tensor, other[name])


def test_no_two_parameters_share_values() -> None:
    first = weights(1)
    assert not torch.equal(first["layers.0.attention.query.weight"], first["layers.1.attention.query.weight"])


def test_a_shard_can_be_filled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 16 to 31 of a matrix, computed from their positions only, equal those of the whole."""
    whole = weights(5)["layers.2.attention.query.weight"]
    index = torch.arange(16 * 64, 32 * 64).view(16, 64)
    shard = initialise.normal(index, "layers.2.attention.query.weight", 5) * 64**-0.5
    assert torch.equal(shard, whole[16:32])
    monkeypatch.setattr(initialise, "CHUNK", 1000)  # neither does the chunk size matter
    assert torch.equal(weights(5)["layers.2.attention.query.weight"], whole)


def test_values_are_standard_normal() -> None:
    values = initialise.normal(torch.arange(1_000_000), "w", 0)
    # Standard errors of mean, variance and kurtosis over 10⁶ samples: 0.001, 0.0014, 0.005; four of each.
    assert abs(values.mean()) < 0.004
    assert abs(values.var() - 1) < 0.0057
    assert abs((values**4).mean() - 3) < 4 * 0.0098
    neighbours = torch.corrcoef(torch.stack((values[:-1], values[1:])))[0, 1]
    assert abs(neighbours) < 0.004


def test_depth_scales_what_enters_the_residual_stream() -> None:
    first = weights(1)
    inner = first["layers.0.feed_forward.up.weight"].std()
    outer = first["layers.0.feed_forward.down.weight"].std()
    # 128 inputs against 64, and 1/√(2 · 8 layers)
    assert outer / inner == pytest.approx((64 / 128) ** 0.5 / 4, rel=0.05)
    assert first["embedding.weight"].std() == pytest.approx(1, rel=0.05)
    assert torch.equal(first["norm.weight"], torch.ones(64))
