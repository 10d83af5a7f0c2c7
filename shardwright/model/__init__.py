"""The transformer, dense and with experts, in plain PyTorch.

Modules here contain no process group, rank or mesh: they are what one machine with enough memory would run. How a
model is spread is decided outside (`shardwright.parallel`), and parameter names are the same in every layout: exactly
those of `shardwright.spec.parameters`.

A model is built on the meta device (`build`), so that nothing is allocated before it is known where each piece goes;
then `materialise` gives it memory and fills it. Every initial value is a function of (seed, parameter name, position in
the parameter): any shard can be filled by itself, on any device, and all layouts start from the same weights.

May touch: torch, `shardwright.spec`, and what `shardwright.cost` says of memory.

Start reading at `decoder.py`; it is the whole model. `attention.py`, `feed_forward.py` and `moe.py` are its parts,
`stage.py` a stretch of it that computes by itself, `rope.py` its positions, `loss.py` its loss (the full logits are
never held), `initialise.py` its first weights and `generate.py` what it writes.

Letters in tensor names are axes: b sequences, s positions, d hidden, h heads, k head width, e experts, v vocabulary.
"""

from shardwright.model.decoder import Decoder, Losses
from shardwright.model.generate import generate
from shardwright.model.initialise import build, materialise
from shardwright.model.stage import Stage, build_stage, passes_balance

__all__ = ["Decoder", "Losses", "Stage", "build", "build_stage", "generate", "materialise", "passes_balance"]
