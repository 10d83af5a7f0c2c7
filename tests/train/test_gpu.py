"""On a CUDA device: the same model, the same loop, in bf16. Skipped, and said so, where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shardwright.model import build, materialise
from shardwright.model.loss import NO_TARGET, cross_entropy_in_torch
from shardwright.model.moe import grouped_linear
from shardwright.spec import ModelSpec
from shardwright.spec.toml import parse_settings
from tests.train.runs import TINY, join_as_rank, largest_difference, losses, records

pytestmark = pytest.mark.gpu


def train_alone(runs: Path, *settings: str) -> None:
    """One rank, in this process."""
    runs.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
            patch.setenv(name, value)
        join_as_rank(TINY, parse_settings(settings), str(runs))


def test_first_weights_are_those_of_the_cpu() -> None:
    spec = ModelSpec.named("tiny")
    for device in ("cpu", "cuda"):
        model = build(spec)
        materialise(model, seed=4, device=device)
        weights = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
        if device == "cpu":
            expected = weights
    for name, weight in weights.items():
        # The bits are the same; logarithm and cosine may differ in their last place.
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("precision", "state"), [("fp32", "fp32"), ("bf16", "16"), ("bf16", "18"), ("bf16", "8")])
def test_training_follows_the_cpu(precision: str, state: str, tmp_path: Path) -> None:
    train_alone(tmp_path / "cpu", "device=cpu", "steps=6")
    train_alone(tmp_path / "gpu", "device=cuda", "steps=6", f"layout.precision={precision}", f"layout.state='{state}'")
    tolerance = 1e-5 if precision == "fp32" else 2**-7
    assert largest_difference(losses(tmp_path / "gpu"), losses(tmp_path / "cpu")) <= tolerance
    assert len(records(tmp_path / "gpu")) == 6  # every step has its record, though each is read one step late


def test_resume_is_bit_exact(tmp_path: Path) -> None:
    gpu = ("device=cuda", "layout.precision=bf16", "checkpoint.every=4", "schedule.name=constant")
    train_alone(tmp_path / "whole", *gpu, "steps=8")
    train_alone(tmp_path / "parts", *gpu, "steps=4")
    train_alone(tmp_path / "parts", *gpu, "steps=8")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_kernel_equals_its_twin(dtype: torch.dtype) -> None:
    from shardwright.model.kernels import cross_entropy_

    torch.manual_seed(1)
    logits = (4 * torch.randn(37, 20_011, device="cuda")).to(dtype)
    targets = torch.randint(0, 20_011, (37,), device="cuda")
    targets[3], targets[5], targets[6] = NO_TARGET, 0, 20_010
    losses, gradient = cross_entropy_in_torch(logits.clone(), targets)
    mine = cross_entropy_(logits, targets)
    torch.testing.assert_close(mine, losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, gradient, rtol=1e-5 if dtype is torch.float32 else 2**-7, atol=1e-7)
    assert mine[3] == 0
    assert not logits[3].any()


def test_grouped_products_equal_one_by_one() -> None:
    torch.manual_seed(0)
    x = torch.randn(100, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(5, 32, 64, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([10, 10, 55, 99, 100], device="cuda")  # the second expert has no token
    grouped = grouped_linear(x, weight, ends)
    apart = grouped_linear(x.cpu(), weight.cpu(), ends.cpu())
    torch.testing.assert_close(grouped.cpu().float(), apart.float(), rtol=2**-6, atol=2**-4)


def test_experts_train(tmp_path: Path) -> None:
    moe = ("model={preset='tiny-moe', layers=2}", "steps=6")
    train_alone(tmp_path / "cpu", "device=cpu", *moe)
    train_alone(tmp_path / "gpu", "device=cuda", "layout.precision=bf16", *moe)
    assert largest_difference(losses(tmp_path / "gpu"), losses(tmp_path / "cpu")) <= 2**-6


def test_predicted_memory_is_measured(tmp_path: Path) -> None:
    """Promise 4, where memory can be measured to the byte: within 10 % for a model of some size."""
    from shardwright.cost.memory import memory_of
    from shardwright.spec import RunFile

    model = "model={preset='llama3.2-1b', layers=4, tied_embeddings=false, vocabulary=32000}"
    settings = (model, "device=cuda", "layout.precision=bf16", "data.sequence=2048", "steps=3")
    runs = tmp_path
    train_alone(runs, *settings)
    run = RunFile(TINY, None, parse_settings(settings)).resolve(1)
    predicted = memory_of(replace(run), "cuda").total / 2**30
    measured = records(runs)[-1]["memory_gib"]
    assert measured == pytest.approx(predicted, rel=0.1)
