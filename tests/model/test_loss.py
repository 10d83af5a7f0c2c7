"""The sliced loss equals the plain one, and the full logits never exist."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.cost import memory
from shardwright.model.loss import NO_TARGET, next_token_loss


def case(tokens: int = 50, hidden: int = 16, vocabulary: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    states = torch.randn(tokens, hidden, dtype=torch.float64).float().requires_grad_()
    head = torch.randn(vocabulary, hidden).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,))
    targets[::7] = NO_TARGET
    return states, head, targets


@pytest.mark.parametrize("slice_rows", [1, 7, 50, 64])
def test_value_and_gradients_equal_cross_entropy(slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    states, head, targets = case()
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", slice_rows * len(head))
    loss = next_token_loss(states, head, targets)
    (loss / 3).backward()
    ours = loss.detach(), states.grad.clone(), head.grad.clone()  # type: ignore[union-attr]
    states.grad = head.grad = None
    plain = F.cross_entropy(F.linear(states, head), targets, ignore_index=NO_TARGET, reduction="sum")
    (plain / 3).backward()
    for actual, expected in zip(ours, (plain.detach(), states.grad, head.grad)):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_no_targets_at_all() -> None:
    states, head, targets = case()
    loss = next_token_loss(states, head, torch.full_like(targets, NO_TARGET))
    loss.backward()
    assert loss.item() == 0
    assert not states.grad.any()  # type: ignore[union-attr]
    assert not head.grad.any()  # type: ignore[union-attr]


class LargestTensor(TorchDispatchMode):
    """Watches every tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        out = function(*arguments, **(options or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_full_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    states, head, targets = case(tokens=512, vocabulary=300)
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", 64 * 300)
    with LargestTensor() as watched:
        next_token_loss(states, head, targets).backward()
    assert watched.elements <= 64 * 300
    with LargestTensor() as control:  # the watcher sees what it should
        F.cross_entropy(F.linear(states, head), targets).backward()
    assert control.elements >= 512 * 300


def test_evaluation_computes_no_gradients() -> None:
    states, head, targets = case()
    with torch.no_grad():
        loss = next_token_loss(states, head, targets)
    assert not loss.requires_grad


def test_bf16_heads_gather_their_gradient_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many slices must not lose the small contributions that a bf16 sum would."""
    torch.manual_seed(2)
    states = torch.randn(4096, 8).bfloat16()
    head = (0.1 * torch.randn(16, 8)).bfloat16().requires_grad_()
    targets = torch.randint(0, 16, (4096,))
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", 16 * 16)
    next_token_loss(states, head, targets).backward()
    exact = head.detach().float().requires_grad_()
    next_token_loss(states.float(), exact, targets).backward()
    error = (head.grad.float() - exact.grad).norm() / exact.grad.norm()  # type: ignore[union-attr]
    # Rounding of logits' gradients to bf16 is random; of the result, once. A bf16 running sum would be off by percents.
    assert error < 2**-8
