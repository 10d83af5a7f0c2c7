"""How a run is spread: the one value that planner, engine, checkpoint, guard and board speak.

`Layout.parse("dp=128,tp=8,pp=16,zero=1,schedule=1f1b")` and `str(layout)` are inverses. `complete` fills in
`dp` from the world's size; `check` holds a layout against a model, a cluster and a batch.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardwright.spec.errors import BadInput, suggestion
from shardwright.spec.fields import convert, field_types, require
from shardwright.spec.model import ModelSpec, nearest_divisors

if TYPE_CHECKING:
    from shardwright.spec.cluster import Cluster

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"]
Precision = Literal["bf16", "fp32", "fp16", "fp8-tensor", "fp8-row", "fp8-tile"]
State = Literal["16", "18", "12", "8", "fp32"]

LOOPED = ("interleaved", "zero-bubble", "zbv", "dualpipev")
"""Schedules in which a rank holds several stages."""


@dataclass(frozen=True)
class Layout:
    """Degrees of every axis, and how each rank computes and stores."""

    dp: int | None = None
    """Data-parallel ranks; left out, what the world's size leaves."""
    zero: Literal[0, 1, 2, 3] = 0
    """What data ranks share: nothing, optimizer state, + gradients, + parameters (ZeRO, arXiv:1910.02054)."""
    shard: int | None = None
    """Ranks in a hybrid-sharding group: shard inside it, replicate across; left out, all data ranks."""
    tp: int = 1
    """Tensor-parallel ranks."""
    sp: bool = True
    """With `tp`: norms and residuals split along the sequence."""
    pp: int = 1
    """Pipeline stages' ranks."""
    schedule: Schedule = "1f1b"
    """Pipeline schedule."""
    interleave: int = 1
    """Stages a pipeline rank holds."""
    cp: int = 1
    """Context-parallel ranks: the sequence split inside attention."""
    context: Literal["ring", "allgather", "ulysses", "usp"] = "ring"
    """How context-parallel ranks exchange keys and values."""
    placement: Literal["contiguous", "zigzag", "striped"] = "zigzag"
    """Which positions each context rank holds."""
    ep: int = 1
    """Expert-parallel ranks, inside dp × cp."""
    microbatch: int = 1
    """Sequences a rank computes at once."""
    recompute: str = "none"
    """Activations computed again in backward: none, full, selective, every:k, budget:fraction."""
    precision: Precision = "bf16"
    """Type of the matrix products."""
    state: State = "16"
    """Bytes a parameter of weights, gradients and optimizer: which recipe keeps them."""
    offload: Literal["none", "optimizer", "optimizer-disk", "activations"] = "none"
    """What leaves the device's memory."""
    compile: bool = False
    """Compile each block with torch.compile."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "interleave", "microbatch", "shard"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        kind, _, amount = self.recompute.partition(":")
        if kind in ("none", "full", "selective"):
            require(not amount, "recompute", self.recompute, f'"{kind}" takes no amount', f'Write "{kind}"')
        elif kind == "every":
            require(
                amount.isdigit() and int(amount) >= 1,
                "recompute",
                self.recompute,
                "every:k needs a whole k",
                "Write every:2",
            )
        elif kind == "budget":
            valid = re.fullmatch(r"[01]?(\.\d+)?", amount) and amount and 0 <= float(amount) <= 1
            require(
                bool(valid),
                "recompute",
                self.recompute,
                "budget:f needs a fraction from 0 to 1",
                "Write budget:0.4",
            )
        else:
            known = ("none", "full", "selective", "every:2", "budget:0.4")
            raise BadInput("recompute", self.recompute, rule="not one of the choices", fix=suggestion(kind, known))
        if self.precision == "fp32" and self.state == "16":
            # fp32 compute keeps fp32 state; its recipe also costs 16 bytes, so the number is not wrong, only the name.
            object.__setattr__(self, "state", "fp32")
        require(
            (self.state == "fp32") == (self.precision == "fp32"),
            "state",
            self.state,
            f'does not go with precision = "{self.precision}"',
            'Use state = "fp32" with precision = "fp32" and only there',
        )
        if self.shard is not None:
            require(self.zero > 0, "shard", self.shard, "a sharding group needs zero = 1, 2 or 3")
            if self.dp is not None:
                require(
                    self.dp % self.shard == 0,
                    "shard",
                    self.shard,
                    f"must divide dp = {self.dp}",
                    f"Use {nearest_divisors(self.dp, self.shard)}",
                )
        if self.interleave > 1:
            require(
                self.schedule in LOOPED,
                "interleave",
                self.interleave,
                f'schedule = "{self.schedule}" holds one stage a rank',
                'Use schedule = "interleaved" or "zero-bubble", or interleave = 1',
            )
        if self.schedule in ("zbv", "dualpipev") and self.pp > 1 and self.interleave != 2:
            raise BadInput(
                "interleave",
                self.interleave,
                rule=f'schedule = "{self.schedule}" holds exactly two stages a rank',
                fix="Use interleave = 2",
            )

    # -- text ------------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, text: str, field: str = "layout") -> Layout:
        """From `dp=2,tp=4,zero=3`; unnamed fields take their defaults."""
        values = cls.values(text, field)
        try:
            return cls(**values)
        except BadInput as error:
            raise error.inside(field) from None

    @classmethod
    def values(cls, text: str, field: str = "layout") -> dict[str, Any]:
        """The fields that a layout's text names, each of its type, not yet checked against each other."""
        hints = field_types(cls)
        values: dict[str, Any] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, raw = part.partition("=")
            name, raw = name.strip(), raw.strip()
            if not equals:
                raise BadInput(field, part, rule="each part is name=value", fix="Write dp=2,tp=4")
            if name not in hints:
                raise BadInput(f"{field}.{name}", rule="unknown key", fix=suggestion(name, hints))
            if name in values:
                raise BadInput(f"{field}.{name}", raw, rule="is given twice")
            values[name] = convert(hints[name], _scalar(name, raw), f"{field}.{name}")
        return values

    def __str__(self) -> str:
        parts = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value == item.default or (item.name == "state" and value == "fp32"):
                continue
            parts.append(f"{item.name}={str(value).lower() if isinstance(value, bool) else value}")
        return ",".join(parts) or "tp=1"  # not dp=1: a layout without dp takes it from the world

    # -- sizes -----------------------------------------------------------------------------------------------

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of the model between them: cp × tp × pp."""
        return self.cp * self.tp * self.pp

    @property
    def data_ranks(self) -> int:
        """`dp`, once known."""
        if self.dp is None:
            raise BadInput("dp", rule="is not known yet", fix="Give dp, or complete the layout with a world size")
        return self.dp

    @property
    def world(self) -> int:
        """dp × cp × tp × pp."""
        return self.data_ranks * self.model_ranks

    def complete(self, world: int, field: str = "layout") -> Layout:
        """The same layout with `dp` filled in, for this many ranks; refuses degrees that do not multiply to it."""
        rest = self.model_ranks
        if self.dp is None:
            if world % rest:
                raise BadInput(
                    f"{field}.dp",
                    rule=f"world {world} = dp × cp {self.cp} × tp {self.tp} × pp {self.pp} has no whole dp: "
                    f"{world} / {rest} = {world / rest:g}",
                    fix=f"Use {max(world // rest, 1) * rest} ranks, or degrees whose product divides {world}",
                )
            try:
                return dataclasses.replace(self, dp=world // rest)
            except BadInput as error:
                raise error.inside(field) from None
        if self.world != world:
            raise BadInput(
                field,
                str(self),
                rule=f"dp {self.dp} × cp {self.cp} × tp {self.tp} × pp {self.pp} = {self.world}, "
                f"but the world has {world} ranks",
                fix=f"Use {self.world} ranks, or leave dp out",
            )
        return self

    # -- rules -----------------------------------------------------------------------------------------------

    def check(self, model: ModelSpec, *, sequence: int | None = None, cluster: Cluster | None = None) -> list[str]:
        """Hold the layout against a model (and a sequence length, and a cluster).

        Raises `BadInput` for what cannot work; returns warnings, one sentence each, for what can but should not.
        """
        if cluster is not None and self.dp is None:
            return self.complete(cluster.world).check(model, sequence=sequence, cluster=cluster)
        if cluster is not None:
            self.complete(cluster.world)
        self._check_tensor(model, sequence)
        self._check_pipeline(model)
        self._check_context(model, sequence)
        self._check_experts(model)
        warnings = []
        if cluster is not None and self.tp > cluster.domain:
            inside, across = cluster.inside.bandwidth, cluster.across.bandwidth
            price = f", {inside / across:.0f} times slower" if inside and across else ""
            warnings.append(
                f"layout.tp = {self.tp} is wider than the {cluster.domain} devices that share {cluster.inside.name}: "
                f"every layer's activations cross {cluster.across.name}{price}."
            )
        return warnings

    def _divides(self, name: str, number: int, what: str) -> None:
        degree = getattr(self, name)
        require(
            number % degree == 0,
            f"layout.{name}",
            degree,
            f"must divide the {number} {what}",
            f"Use {nearest_divisors(number, degree)}",
        )

    def _check_tensor(self, model: ModelSpec, sequence: int | None) -> None:
        self._divides("tp", model.heads, "heads")
        if model.latent is None:
            self._divides("tp", model.kv_heads, "key-value heads")
        self._divides("tp", model.vocabulary, "rows of the vocabulary")
        self._divides("tp", model.feed_forward, "columns of the feed-forward network")
        if sequence is not None and self.tp > 1 and self.sp:
            require(
                sequence % (self.tp * self.cp) == 0,
                "data.sequence",
                sequence,
                f"sequence parallelism cuts each context rank's part into tp = {self.tp} equal parts",
                f"Use a multiple of {self.tp * self.cp}",
            )

    def _check_pipeline(self, model: ModelSpec) -> None:
        stages = self.pp * self.interleave
        require(
            stages <= model.layers,
            "layout.pp",
            self.pp,
            f"pp {self.pp} × interleave {self.interleave} = {stages} stages, but the model has {model.layers} layers",
            f"Use at most {model.layers} stages",
        )

    def _check_context(self, model: ModelSpec, sequence: int | None) -> None:
        if self.cp == 1:
            return
        if self.context == "ulysses":
            heads = model.kv_heads // self.tp
            require(
                heads % self.cp == 0,
                "layout.cp",
                self.cp,
                f"Ulysses gives each rank whole heads, and a tensor rank has {heads} key-value heads",
                f'Use cp = {nearest_divisors(heads, self.cp)}, or context = "usp"',
            )
        if sequence is not None:
            chunks = self.cp * (2 if self.placement == "zigzag" else 1)
            below = sequence // chunks * chunks
            require(
                sequence % chunks == 0,
                "data.sequence",
                sequence,
                f'placement "{self.placement}" cuts it into {chunks} equal chunks for cp = {self.cp}',
                f"Use {below} or {below + chunks}" if below else f"Use {chunks}",
            )

    def _check_experts(self, model: ModelSpec) -> None:
        if self.ep == 1:
            return
        if model.experts is None:
            raise BadInput("layout.ep", self.ep, rule=f'model "{model.name}" has no experts', fix="Use ep = 1")
        self._divides("ep", model.experts.count, "experts")
        if self.dp is not None:
            self._divides("ep", self.dp * self.cp, f"ranks of dp {self.dp} × cp {self.cp}")

    def batch_warnings(self, microbatches: int) -> list[str]:
        """What a batch of this many microbatches a pipeline costs, if it is too few."""
        if self.pp == 1 or microbatches >= self.pp:
            return []
        bubble = (self.pp - 1) / (microbatches + self.pp - 1)
        advice = (
            f"{microbatches} microbatches for {self.pp} pipeline stages leave {bubble:.0%} of the step idle "
            f"((p−1)/(m+p−1)): use at least {self.pp}."
        )
        return [advice]


def _scalar(name: str, raw: str) -> Any:
    """A value written in a layout's text; `state=16` and `recompute=none` are text, `sp=true` is not."""
    if name in ("state", "schedule", "recompute"):
        return raw
    if raw in ("true", "false"):
        return raw == "true"
    return int(raw) if re.fullmatch(r"-?\d+", raw) else raw
