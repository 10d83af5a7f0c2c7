"""`shardwright data prepare`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import App, Parameter

from shardwright.cli.options import Json, Settings, run_file
from shardwright.cli.preparation import Preparation

data = App(name="data", help="Prepare and look at training data.", help_format="plaintext")


@data.command(help_epilogue="Example: shardwright data prepare --set data.source=python-stdlib")
def prepare(
    run: Annotated[str | None, Parameter(help="A run.toml; left out, the default run.")] = None,
    /,
    *,
    settings: Settings = (),
    json_output: Json = False,
) -> None:
    """Turn a run's text into memory-mapped token shards, once.

    Works in parallel, shows its progress, and does nothing where the shards
    are already there. `train` does the same before it starts.
    """
    from shardwright.data import check_vocabulary, prepare, tokenizer_for

    file = run_file(run, settings)
    spec = file.spec()
    human = sys.stderr if json_output else sys.stdout
    check_vocabulary(tokenizer_for(spec.data), spec.model)
    prepared = prepare(spec.data, progress=Preparation(human))
    corpora = [
        {
            "source": corpus.source,
            "folder": str(corpus.folder),
            "train_tokens": corpus.tokens("train"),
            "held_out_tokens": corpus.tokens("held_out"),
            "documents": corpus.documents("train") + corpus.documents("held_out"),
        }
        for corpus in prepared.corpora
    ]
    if json_output:
        print(json.dumps({"fingerprint": prepared.fingerprint, "corpora": corpora}))
        return
    for facts in corpora:
        print(
            f"{facts['source']}: {facts['train_tokens']:,} tokens to train on and {facts['held_out_tokens']:,} held "
            f"out, of {facts['documents']:,} documents, in {facts['folder']}"
        )
