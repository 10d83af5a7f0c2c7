"""The larder: text → tokens → global batches.

`prepare` turns what a run's `DataSpec` names (the standard library of Python, a folder of text, JSON lines, Parquet, a
Hugging Face dataset on disk, tokens that are already there) into shards of tokens, once. `GlobalBatches` then gives
the batch of any step, for any number of data ranks, as a pure function of (seed, step): there is no iterator, so
there is no iterator's state to save, resuming is a seek, and changing the layout changes no batch.

    data = prepare(DataSpec())
    batches = GlobalBatches(data, seed=42, sequence=256, sequences=8, document_mask=True)
    batch = batches.read(step=1_000_000, rank=3, ranks=4)

May touch: numpy, `shardwright.spec`, `shardwright.observe`, and what `shardwright.model` says of targets; torch in
`loader.py` only, which is imported when one of its names is first asked for, so that preparing data does not wait for
torch. Optional packages (tokenizers, pyarrow) are imported where they are needed, and a run that needs one that is
missing is told which extra brings it.

Start reading at `shards.py` (what lies on the disk, and why no offsets do), then `shuffle.py` and `mixture.py` (which
sample is the n-th, computed and never stored), and `loader.py` (a batch; reading ahead). The way there is `prepare.py`:
`sources.py` finds files and cuts them into pieces, `readers.py` and `columns.py` turn a piece into documents,
`tokenizers.py` a document into ids, `encode.py` a group of pieces into a shard, in processes of `workers.py`;
`tokens.py` takes ready arrays, and `publish.py` makes a finished folder appear at once or not at all.
"""

from typing import TYPE_CHECKING, Any

from shardwright.data.prepare import PreparedData, Progress, data_root, prepare
from shardwright.data.shards import Corpus, Shard, Split
from shardwright.data.tokenizers import Tokenizer, check_vocabulary, tokenizer_for

if TYPE_CHECKING:
    from shardwright.data.loader import NO_TARGET, Batch, GlobalBatches, Prefetch

__all__ = [
    "NO_TARGET",
    "Batch",
    "Corpus",
    "GlobalBatches",
    "Prefetch",
    "PreparedData",
    "Progress",
    "Shard",
    "Split",
    "Tokenizer",
    "check_vocabulary",
    "data_root",
    "prepare",
    "tokenizer_for",
]


def __getattr__(name: str) -> Any:
    if name not in ("NO_TARGET", "Batch", "GlobalBatches", "Prefetch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardwright.data import loader

    return getattr(loader, name)
