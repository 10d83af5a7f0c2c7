"""Text to ids and back, separators, and the check against a model."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.data import check_vocabulary, tokenizer_for
from shardwright.spec.errors import BadInput
from shardwright.spec.model import ModelSpec
from shardwright.spec.run import DataSpec

from .helpers import write_tokenizer


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_come_back(text: str) -> None:
    tokenizer = tokenizer_for(DataSpec())
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocabulary == 257
    assert tokenizer.separator == 256
    assert 256 not in ids


def test_broken_bytes_and_separators_are_shown_not_raised() -> None:
    assert tokenizer_for(DataSpec()).decode([256, 104, 105, 0xC3, 256, 104]) == "\nhi\ufffd\nh"


def test_a_tokenizer_file_round_trips_and_crosses_processes(tmp_path: Path) -> None:
    spec = DataSpec(tokenizer=str(write_tokenizer(tmp_path / "bpe", "<|endoftext|>")))
    tokenizer = tokenizer_for(spec)
    text = "the cat <|endoftext|> naïve"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    # The words of the separator in a text are not the separator.
    assert tokenizer.separator not in ids
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(text).tolist() == ids.tolist()
    assert again.fingerprint == tokenizer.fingerprint
    assert tokenizer_for(DataSpec(tokenizer=f"{spec.tokenizer}/tokenizer.json")).vocabulary == tokenizer.vocabulary
    assert int(ids.max()) < tokenizer.vocabulary <= 300
    assert tokenizer.decode([tokenizer.separator, *tokenizer.encode("the")]) == "\nthe"


def test_separators_are_asked_for_configured_or_usual(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "bpe", "<stop>", "<|endoftext|>", "</s>")
    ids = {name: number for number, name in enumerate(["<stop>", "<|endoftext|>", "</s>"])}
    spec = DataSpec(tokenizer=str(folder))
    assert tokenizer_for(spec).separator == ids["<|endoftext|>"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert tokenizer_for(spec).separator == ids["</s>"]
    asked = tokenizer_for(DataSpec(tokenizer=str(folder), separator="<stop>"))
    assert asked.separator == ids["<stop>"]
    assert asked.fingerprint != tokenizer_for(spec).fingerprint
    with pytest.raises(BadInput, match='Did you mean "<stop>"'):
        tokenizer_for(DataSpec(tokenizer=str(folder), separator="<stpo>"))
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(BadInput, match="not a JSON object"):
        tokenizer_for(spec)


def test_bad_tokenizers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="there is no file"):
        tokenizer_for(DataSpec(tokenizer=str(tmp_path)))
    with pytest.raises(BadInput, match="separator of its own"):
        tokenizer_for(DataSpec(separator="</s>"))
    with pytest.raises(BadInput, match="none of the usual"):
        tokenizer_for(DataSpec(tokenizer=str(write_tokenizer(tmp_path / "without"))))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=r"cannot be read as a tokenizer\.json"):
        tokenizer_for(DataSpec(tokenizer=str(tmp_path)))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match=r"pip install 'shardwright\[tokenizers\]'"):
        tokenizer_for(DataSpec(tokenizer=str(tmp_path)))


def test_a_model_must_have_a_row_for_every_id() -> None:
    small = ModelSpec(vocabulary=256, hidden=8, layers=1, heads=1, feed_forward=8, context=8)
    with pytest.raises(BadInput, match=r"256: is smaller than the 257 ids of the tokenizer bytes"):
        check_vocabulary(tokenizer_for(DataSpec()), small)
    enough = ModelSpec(vocabulary=257, hidden=8, layers=1, heads=1, feed_forward=8, context=8)
    check_vocabulary(tokenizer_for(DataSpec()), enough)
