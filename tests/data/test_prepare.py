"""Preparation: the same shards however made, whole or not at all, and found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardwright.data import Progress, prepare, tokenizer_for, workers
from shardwright.data import prepare as _prepare_function
from shardwright.data.shards import read_corpus
from shardwright.spec.errors import BadInput
from shardwright.spec.run import DataSpec, Ingredient

from .helpers import write_texts, write_tokenizer

prepare_module = sys.modules[_prepare_function.__module__]


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of about two kilobytes, so that a small corpus has many."""
    monkeypatch.setattr(prepare_module, "SHARD_BYTES", (2000, 2000))


def spec_for(source: Path, folder: Path, **changes: object) -> DataSpec:
    values = {"source": str(source), "folder": str(folder), "sequence": 32, "held_out": 0.1, **changes}
    return DataSpec(**values)  # type: ignore[arg-type]


def streams(spec: DataSpec) -> dict[str, list[int]]:
    corpus = prepare(spec).corpora[0]
    return {
        split: [int(token) for shard in corpus.shards(split) for token in corpus.open(shard)]
        for split in ("train", "held_out")
    }


def split_documents(stream: list[int]) -> list[str]:
    text = tokenizer_for(DataSpec()).decode(stream)
    return text.split("\n")[1:]


def test_every_document_is_on_one_side_behind_a_separator(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "text", 80)
    both = streams(spec_for(source, tmp_path / "kept"))
    assert both["train"][0] == both["held_out"][0] == 256
    train, held_out = (split_documents(both[split]) for split in ("train", "held_out"))
    assert sorted(train + held_out) == sorted(path.read_text() for path in source.iterdir())
    assert 1 <= len(held_out) <= 20


@pytest.mark.usefixtures("small_shards")
def test_copies_of_a_document_stay_on_one_side(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "text", 40)
    for path in list(source.iterdir()):
        (source / f"copy-{path.name}").write_text(path.read_text())
    both = streams(spec_for(source, tmp_path / "kept", held_out=0.3))
    train, held_out = (split_documents(both[split]) for split in ("train", "held_out"))
    assert not set(train) & set(held_out)
    assert len(train) == 2 * len(set(train))


@pytest.mark.parametrize("tokenizer", ["bytes", "file"])
@pytest.mark.usefixtures("small_shards")
def test_the_number_of_workers_changes_nothing(tmp_path: Path, tokenizer: str) -> None:
    source = write_texts(tmp_path / "text", 60)
    if tokenizer == "file":
        tokenizer = str(write_tokenizer(tmp_path / "bpe", "</s>"))
    made = [
        prepare(spec_for(source, tmp_path / f"kept-{count}", tokenizer=tokenizer, workers=count)) for count in (1, 3)
    ]
    one, three = (data.corpora[0] for data in made)
    assert len(one.train) > 3
    assert one.train == three.train
    assert one.held_out == three.held_out
    assert made[0].fingerprint == made[1].fingerprint
    for shard in one.train + one.held_out:
        assert (one.folder / shard.file).read_bytes() == (three.folder / shard.file).read_bytes()
    three.verify()


def test_what_is_prepared_is_found_again_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_texts(tmp_path / "text", 30)
    spec = spec_for(source, tmp_path / "kept")
    reports: list[Progress] = []
    first = prepare(spec, progress=reports.append)
    assert reports[-1].done == reports[-1].total == sum(path.stat().st_size for path in source.iterdir())
    assert reports[-1].documents == 30
    assert reports[-1].tokens == first.tokens("train") + first.tokens("held_out")
    monkeypatch.setattr(prepare_module, "_build", lambda *_: pytest.fail("prepared again"))
    assert prepare(spec) == first
    monkeypatch.undo()
    (source / "new.txt").write_text("another document")
    assert prepare(spec).fingerprint != first.fingerprint
    assert prepare(spec_for(source, tmp_path / "kept", held_out=0.5)).fingerprint != first.fingerprint
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_the_fingerprint_names_the_tokens_not_the_place(tmp_path: Path) -> None:
    made = []
    for name in ("here", "there"):
        source = write_texts(tmp_path / name, 30)
        made.append(prepare(spec_for(source, tmp_path / f"kept-{name}")))
    assert made[0].corpora[0].key != made[1].corpora[0].key  # written at another time
    assert made[0].fingerprint == made[1].fingerprint


def test_a_damaged_corpus_is_noticed_and_made_again(tmp_path: Path) -> None:
    spec = spec_for(write_texts(tmp_path / "text", 30), tmp_path / "kept")
    corpus = prepare(spec).corpora[0]
    file = corpus.folder / corpus.train[0].file
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match="not those that were written"):
        corpus.verify()
    file.write_bytes(content[:50])
    prepare(spec).corpora[0].verify()


@pytest.mark.parametrize("held_out", [1e-9, 0.999999])
def test_neither_side_is_empty_while_there_are_two_documents(tmp_path: Path, held_out: float) -> None:
    spec = spec_for(write_texts(tmp_path / "text", 2), tmp_path / "kept", held_out=held_out)
    corpus = prepare(spec).corpora[0]
    assert corpus.documents("train") == corpus.documents("held_out") == 1
    assert streams(spec) == streams(spec_for(tmp_path / "text", tmp_path / "again", held_out=held_out))


def test_a_single_document_gives_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("abcdefghij" * 100)
    both = streams(spec_for(path, tmp_path / "kept"))
    assert len(both["held_out"]) == 100
    assert both["train"] + both["held_out"] == [256, *path.read_bytes()]
    assert streams(spec_for(path, tmp_path / "kept", held_out=0.0))["held_out"] == []


def test_arrays_are_used_where_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    stream = np.random.default_rng(0).integers(0, 257, 1000)
    for number, (part, kind) in enumerate(zip(np.split(stream, 4), ("uint16", "uint32", "int32", "int64"))):
        np.save(folder / f"{number}.npy", part.astype(kind))
    both = streams(spec_for(folder, tmp_path / "kept", held_out=0.3))
    assert both["train"] + both["held_out"] == stream.tolist()
    assert len(both["held_out"]) == 300
    corpus = prepare(spec_for(folder, tmp_path / "kept", held_out=0.3)).corpora[0]
    corpus.verify()
    assert corpus.documents("train") == np.count_nonzero(stream[:700] == 256)
    assert [path.name for path in corpus.folder.iterdir()] == ["index.json"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), dtype=np.uint16), "holds 2×3 of uint16"),
        (np.zeros(5), "holds 5 of float64"),
        (np.array([1, 257]), "holds the id 257; the tokenizer bytes has ids from 0 to 256"),
        (np.array([1, -1]), "holds the id -1"),
    ],
)
def test_arrays_that_are_not_tokens_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(BadInput, match=message):
        prepare(spec_for(tmp_path / "a.npy", tmp_path / "kept"))
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_prepared_folder_is_a_source(tmp_path: Path) -> None:
    made = prepare(spec_for(write_texts(tmp_path / "text", 30), tmp_path / "kept"))
    again = prepare(spec_for(made.corpora[0].folder, tmp_path / "other"))
    assert again == made
    bpe = str(write_tokenizer(tmp_path / "bpe", "</s>"))
    with pytest.raises(BadInput, match="not made by the tokenizer bpe"):
        prepare(spec_for(made.corpora[0].folder, tmp_path / "other", tokenizer=bpe))
    index = made.corpora[0].folder / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "format": 99}))
    with pytest.raises(BadInput, match="is written in format 99"):
        read_corpus(made.corpora[0].folder)


def test_a_mixture_is_prepared_source_by_source(tmp_path: Path) -> None:
    first, second = (write_texts(tmp_path / name, 20, seed=seed) for seed, name in enumerate(("a", "b")))
    mixture = (Ingredient(str(first), 3.0), Ingredient(str(second), 1.0))
    data = prepare(DataSpec(mixture=mixture, folder=str(tmp_path / "kept"), sequence=16))
    assert [corpus.source for corpus in data.corpora] == ["a (text)", "b (text)"]
    assert data.weights == (3.0, 1.0)
    with pytest.raises(BadInput, match=r"data\.mixture\[1\]\.source"):
        prepare(DataSpec(mixture=(mixture[0], Ingredient("nowhere")), folder=str(tmp_path / "kept"), sequence=16))


def test_too_little_text_and_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(BadInput, match="has 6 tokens to train on; one sequence and its last target need 33"):
        prepare(spec_for(tmp_path / "a.txt", tmp_path / "kept", held_out=0.0))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(BadInput, match="holds no text"):
        prepare(spec_for(tmp_path / "a.txt", tmp_path / "kept"))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("small_shards")
def test_a_failure_leaves_nothing_behind(tmp_path: Path, count: int) -> None:
    source = write_texts(tmp_path / "text", 60)
    (source / "0050.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"0050\.txt, byte 0 is not UTF-8"):
        prepare(spec_for(source, tmp_path / "kept", workers=count))
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.usefixtures("small_shards")
def test_a_worker_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = workers._start

    def start_and_kill() -> object:
        pipe, process = start()
        process.send_signal(signal.SIGKILL)
        return pipe, process

    monkeypatch.setattr(workers, "_start", start_and_kill)
    with pytest.raises(ChildProcessError, match="ended with code -9, probably for want of memory"):
        prepare(spec_for(write_texts(tmp_path / "text", 60), tmp_path / "kept", workers=2))
    assert list((tmp_path / "kept").iterdir()) == []


SLOW_PREPARATION = """
import sys, time
from shardwright.data import encode
from shardwright.data.prepare import prepare
from shardwright.spec.run import DataSpec

def slowly(piece, spec, field):
    yield from original(piece, spec, field)
    time.sleep(0.02)

original, encode.documents = encode.documents, slowly
prepare(DataSpec(source=sys.argv[1], folder=sys.argv[2], sequence=32, held_out=0.1))
"""


def test_a_killed_preparation_is_swept_away_and_done_again(tmp_path: Path) -> None:
    source, kept = write_texts(tmp_path / "text", 200), tmp_path / "kept"
    killed = subprocess.Popen([sys.executable, "-c", SLOW_PREPARATION, str(source), str(kept)])
    while not list(kept.glob("*.partial/*")) and not list(kept.glob(".*.partial/*")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert list(kept.glob(".*.partial"))
    corpus = prepare(spec_for(source, kept)).corpora[0]
    corpus.verify()
    assert corpus.documents("train") + corpus.documents("held_out") == 200
    assert list(kept.iterdir()) == [corpus.folder]


def test_racing_preparations_agree(tmp_path: Path) -> None:
    source, kept = write_texts(tmp_path / "text", 100), tmp_path / "kept"
    racers = [subprocess.Popen([sys.executable, "-c", SLOW_PREPARATION, str(source), str(kept)]) for _ in range(2)]
    assert [racer.wait(60) for racer in racers] == [0, 0]
    corpus = prepare(spec_for(source, kept)).corpora[0]
    corpus.verify()
    assert list(kept.iterdir()) == [corpus.folder]


def test_racing_without_locks_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module.publish, "_acquire", lambda *_: None)
    spec = spec_for(write_texts(tmp_path / "text", 100), tmp_path / "kept")
    found: list[str] = []
    racers = [threading.Thread(target=lambda: found.append(prepare(spec).fingerprint)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_stuck_holder_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module.publish, "STUCK_SECONDS", 0.3)
    source, kept = write_texts(tmp_path / "text", 200), tmp_path / "kept"
    stuck = subprocess.Popen([sys.executable, "-c", SLOW_PREPARATION, str(source), str(kept)])
    try:
        while not list(kept.glob(".*.partial/*")):
            assert stuck.poll() is None
            time.sleep(0.01)
        stuck.send_signal(signal.SIGSTOP)
        prepare(spec_for(source, kept)).corpora[0].verify()
    finally:
        stuck.send_signal(signal.SIGCONT)
    assert stuck.wait(60) == 0
    assert len(list(kept.iterdir())) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("count", [1, 2])
def test_a_full_disk_is_said_and_left_clean(
    tmp_path: Path, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(prepare_module, "SHARD_BYTES", (50_000, 50_000))
    source = write_texts(tmp_path / "text", 100, length=2000)
    with pytest.raises(BadInput, match=r"there is no room left for the tokens of text \(text\)"):
        prepare(spec_for(source, tiny_disk, workers=count))
    assert list(tiny_disk.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    source = write_texts(tmp_path / "text", 10)
    with pytest.raises(BadInput, match=r"data\.folder = .*cannot be written"):
        prepare(spec_for(source, tmp_path / "file"))


def test_where_corpora_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.data import data_root

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SHARDWRIGHT_DATA", raising=False)
    assert data_root(DataSpec()) == tmp_path / "cache" / "shardwright" / "data"
    monkeypatch.setenv("SHARDWRIGHT_DATA", str(tmp_path / "data"))
    assert data_root(DataSpec()) == tmp_path / "data"
    assert data_root(DataSpec(folder=str(tmp_path))) == tmp_path


def test_preparing_does_not_import_torch() -> None:
    code = "import sys, shardwright.data; assert 'torch' not in sys.modules; assert 'pyarrow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
