"""What the tests of the larder are fed with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers


def write_texts(folder: Path, count: int, length: int = 300, seed: int = 0) -> Path:
    """A folder of text files, each different from the others."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = np.random.default_rng(seed)
    for number in range(count):
        body = letters.integers(97, 123, length + number % 17).astype(np.uint8).tobytes().decode()
        (folder / f"{number:04d}.txt").write_text(f"{number} {body}", encoding="utf-8")
    return folder


def write_tokenizer(folder: Path, *specials: str) -> Path:
    """A byte-level tokenizer.json of a few hundred tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat with the hat"] * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    return folder
