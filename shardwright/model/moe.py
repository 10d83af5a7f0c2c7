"""Mixture of experts: a router picks a few small networks for each token; none is dropped.

The balance loss is taken over each sequence by itself (as in DeepSeek-V3, arXiv:2412.19437, eq. 17–20) and weighted by
the sequence's tokens: a sum over sequences, so that it is the same however sequences are spread over ranks and
microbatches. A loss over the whole microbatch would change with the layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.model.feed_forward import FeedForward
from shardwright.spec import Experts


class Router(nn.Module):
    """Scores every expert for every token, in fp32: a rounded score would change which experts are chosen."""

    def __init__(self, hidden: int, spec: Experts) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.count, hidden))

    def forward(self, x_td: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each token: the chosen experts, their weights, and the scores of all."""
        logits_te = F.linear(x_td.float(), self.weight.float())
        scores_te = logits_te.softmax(-1) if self.spec.scores == "softmax" else logits_te.sigmoid()
        chosen_tk = self._within_groups(scores_te).topk(self.spec.active, dim=-1).indices
        weights_tk = scores_te.gather(-1, chosen_tk)
        if self.spec.normalize:
            weights_tk = weights_tk / (weights_tk.sum(-1, keepdim=True) + 1e-20)
        return chosen_tk, weights_tk * self.spec.scale, scores_te

    def _within_groups(self, scores_te: Tensor) -> Tensor:
        """Scores with the experts of all but the best groups ruled out; a group is as good as its best two."""
        groups, active = self.spec.groups, self.spec.active_groups
        if groups == active:
            return scores_te
        grouped_tge = scores_te.unflatten(-1, (groups, -1))
        best_tg = grouped_tge.topk(min(2, grouped_tge.shape[-1]), dim=-1).values.sum(-1)
        allowed_tg = torch.zeros_like(best_tg, dtype=torch.bool).scatter(-1, best_tg.topk(active, -1).indices, True)
        return grouped_tge.masked_fill(~allowed_tg[..., None], float("-inf")).flatten(-2)


class ExpertNetworks(nn.Module):
    """All routed experts of a layer, stacked: one tensor a projection, the expert its first axis."""

    def __init__(self, hidden: int, spec: Experts) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(spec.count, spec.feed_forward, hidden))
        self.up = nn.Parameter(torch.empty(spec.count, spec.feed_forward, hidden))
        self.down = nn.Parameter(torch.empty(spec.count, hidden, spec.feed_forward))

    def forward(self, x_td: Tensor, counts_e: Tensor) -> Tensor:
        """Tokens sorted by expert, and how many each expert has; an expert may have none."""
        ends_e = counts_e.cumsum(0)
        gate, up, down = (weight.to(x_td.dtype) for weight in (self.gate, self.up, self.down))
        inner = F.silu(grouped_linear(x_td, gate, ends_e)) * grouped_linear(x_td, up, ends_e)
        return grouped_linear(inner, down, ends_e)


def grouped_linear(x_td: Tensor, weight_efd: Tensor, ends_e: Tensor) -> Tensor:
    """`x @ weight[e].T` for each run of tokens; the runs end at `ends_e`.

    torch's grouped product is one kernel for all experts, in 16 bit; in fp32 the runs are multiplied one by one.
    """
    if x_td.dtype is torch.bfloat16 and x_td.is_cuda:
        return torch._grouped_mm(x_td, weight_efd.transpose(-2, -1), offs=ends_e.to(torch.int32))
    runs = torch.tensor_split(x_td, ends_e[:-1].cpu())
    # unbind, not indexing: its backward builds one gradient for the stack instead of one a slice.
    return torch.cat([F.linear(run, weight) for run, weight in zip(runs, weight_efd.unbind())])


class MixtureOfExperts(nn.Module):
    """Router, routed experts and shared experts in place of a block's feed-forward network."""

    def __init__(self, hidden: int, spec: Experts) -> None:
        super().__init__()
        self.spec = spec
        self.router = Router(hidden, spec)
        self.experts = ExpertNetworks(hidden, spec)
        self.shared = FeedForward(hidden, spec.shared * spec.feed_forward) if spec.shared else None

    def forward(self, x_bsd: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output, and its balance loss summed over tokens."""
        x_td = x_bsd.flatten(0, 1)
        chosen_tk, weights_tk, scores_te = self.router(x_td)
        order = chosen_tk.flatten().argsort(stable=True)
        token = order // self.spec.active
        counts_e = torch.bincount(chosen_tk.flatten(), minlength=self.spec.count)
        out_td = self.experts(x_td[token], counts_e) * weights_tk.flatten()[order, None].to(x_td.dtype)
        mixed_td = torch.zeros_like(x_td).index_add(0, token, out_td)
        if self.shared is not None:
            mixed_td = mixed_td + self.shared(x_td)
        return mixed_td.view_as(x_bsd), self._balance_loss(chosen_tk, scores_te, x_bsd.shape[0])

    def _balance_loss(self, chosen_tk: Tensor, scores_te: Tensor, sequences: int) -> Tensor:
        """For each sequence: experts · Σ (share of choices · mean normalised score), times its tokens, summed."""
        if not self.spec.balance_loss:
            return scores_te.new_zeros(())
        chosen_bse = torch.zeros_like(scores_te).scatter(-1, chosen_tk, 1.0).unflatten(0, (sequences, -1))
        scores_bse = (scores_te / scores_te.sum(-1, keepdim=True)).unflatten(0, (sequences, -1))
        share_be = chosen_bse.mean(1) / self.spec.active
        loss_b = self.spec.count * (share_be * scores_bse.mean(1)).sum(-1)
        return self.spec.balance_loss * loss_b.sum() * chosen_bse.shape[1]
