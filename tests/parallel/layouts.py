"""The parity table: every layout here must give the losses of one process."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN: tuple[str, ...] = ()
TIED = ("model.tied_embeddings=true",)
RICH = ("model.qk_norm=true", "model.qkv_bias=true", "model.output_bias=true")
MULTI_HEAD = ("model.heads=8", "model.kv_heads=8")


@dataclass(frozen=True)
class Entry:
    """One layout, on one variant of the model."""

    ranks: int
    layout: str
    variant: tuple[str, ...] = PLAIN

    def __str__(self) -> str:
        kind = {PLAIN: "", TIED: " tied", RICH: " rich", MULTI_HEAD: " multi-head"}[self.variant]
        return f"{self.ranks}: {self.layout}{kind}"


ZERO = [
    Entry(2, "zero=1,microbatch=4"),
    Entry(2, "zero=1,microbatch=1"),
    Entry(2, "zero=2,microbatch=2"),
    Entry(2, "zero=3,microbatch=1"),
    Entry(2, "zero=3,microbatch=4", TIED),
    Entry(2, "zero=2,microbatch=4", RICH),
    Entry(4, "zero=1,microbatch=1", TIED),
    Entry(4, "zero=2,microbatch=1"),
    Entry(4, "zero=3,microbatch=2"),
    Entry(4, "zero=3,shard=2,microbatch=1"),
    Entry(4, "zero=2,shard=2,microbatch=1", TIED),
    Entry(4, "zero=1,shard=2,microbatch=1"),
    Entry(8, "zero=3,microbatch=1"),
    Entry(8, "zero=1,shard=4,microbatch=1"),
]

TENSOR = [
    Entry(2, "tp=2,microbatch=8"),
    Entry(2, "tp=2,microbatch=2", TIED),
    Entry(2, "tp=2,microbatch=4", RICH),
    Entry(2, "tp=2,microbatch=4", MULTI_HEAD),
    Entry(4, "tp=4,microbatch=4", RICH),
    Entry(4, "tp=2,microbatch=2"),
    Entry(4, "tp=2,zero=1,microbatch=1"),
    Entry(4, "tp=2,zero=2,microbatch=2", TIED),
    Entry(4, "tp=2,zero=3,microbatch=4", RICH),
    Entry(8, "tp=8,microbatch=8"),
    Entry(8, "tp=4,zero=3,microbatch=2"),
    Entry(8, "tp=2,zero=3,shard=2,microbatch=1"),
]

TABLE = [*ZERO, *TENSOR]
