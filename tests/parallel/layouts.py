"""The parity table: every layout here must give the losses of one process."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN: tuple[str, ...] = ()
TIED = ("model.tied_embeddings=true",)
RICH = ("model.qk_norm=true", "model.qkv_bias=true", "model.output_bias=true")
MULTI_HEAD = ("model.heads=8", "model.kv_heads=8")
DEEP = ("model.layers=5",)
DEEP_TIED = ("model.layers=5", "model.tied_embeddings=true")
VARIANTS = {"plain": PLAIN, "tied": TIED, "rich": RICH, "multi-head": MULTI_HEAD, "deep": DEEP, "deep tied": DEEP_TIED}


@dataclass(frozen=True)
class Entry:
    """One layout, on one variant of the model."""

    ranks: int
    layout: str
    variant: tuple[str, ...] = PLAIN
    is_slow: bool = False
    """Left to `make test-all`: many ranks on few cores."""

    def __str__(self) -> str:
        (kind,) = (name for name, variant in VARIANTS.items() if variant == self.variant)
        return f"{self.ranks}: {self.layout} {kind}"


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
    Entry(4, "tp=4,microbatch=8", RICH),
    Entry(4, "tp=2,microbatch=4"),
    Entry(4, "tp=2,zero=1,microbatch=2"),
    Entry(4, "tp=2,zero=2,microbatch=4", TIED),
    Entry(4, "tp=2,zero=3,microbatch=4", RICH),
    Entry(8, "tp=8,microbatch=8", is_slow=True),
    Entry(8, "tp=4,zero=3,microbatch=2", is_slow=True),
    Entry(8, "tp=2,zero=3,shard=2,microbatch=1", is_slow=True),
]

# Five layers over two or four stages: none even.
PIPELINE = [
    *(
        Entry(2, f"pp=2,schedule={schedule},microbatch=1", variant)
        for schedule in (
            "gpipe", "1f1b", "interleaved,interleave=2", "zero-bubble", "zero-bubble,interleave=2", "zbv,interleave=2",
            "dualpipev,interleave=2",
        )
        for variant in (DEEP, DEEP_TIED)
    ),
    Entry(2, "pp=2,microbatch=4"),
    Entry(2, "pp=2,microbatch=2", RICH),
    Entry(4, "pp=4,microbatch=1", DEEP),
    Entry(4, "pp=2,microbatch=1", DEEP_TIED),
    Entry(4, "pp=4,microbatch=2", DEEP_TIED),
]  # fmt: skip

THREE_DIMENSIONS = [
    *(
        Entry(4, f"pp=2,zero={zero},schedule={schedule},microbatch=1", DEEP_TIED)
        for zero in (1, 2, 3)
        for schedule in ("gpipe", "1f1b", "interleaved,interleave=2", "zero-bubble,interleave=2", "zbv,interleave=2",
                         "dualpipev,interleave=2")
        if not (zero == 2 and schedule in ("gpipe", "zbv,interleave=2"))
    ),
    *(
        Entry(4, f"pp=2,tp=2,schedule={schedule},microbatch=4", variant, is_slow=schedule != "1f1b")
        for schedule, variant in (
            ("gpipe", RICH), ("1f1b", DEEP_TIED), ("interleaved,interleave=2", DEEP), ("zbv,interleave=2", DEEP),
        )
    ),
    Entry(8, "pp=2,tp=2,zero=1,microbatch=4", TIED),
    Entry(8, "pp=2,tp=2,zero=1,microbatch=1", DEEP_TIED, is_slow=True),
    Entry(8, "pp=2,tp=2,zero=3,schedule=interleaved,interleave=2,microbatch=1", DEEP, is_slow=True),
    Entry(8, "pp=2,zero=2,shard=2,microbatch=1", DEEP),
]  # fmt: skip

TABLE = [*ZERO, *TENSOR, *PIPELINE, *THREE_DIMENSIONS]
