"""Every kind of source gives its documents, and every bad one is refused in words that help."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from shardwright.data import sources
from shardwright.data.readers import documents
from shardwright.data.sources import locate, pieces
from shardwright.spec.errors import BadInput
from shardwright.spec.run import DataSpec


def read(spec: DataSpec) -> list[str]:
    found = locate(spec, spec.source)
    return [text for piece in pieces(found, spec.text_field) for text in documents(piece, spec)]


def write_lines(path: Path, records: list[object], opener: object = open) -> Path:
    with opener(path, "wt", encoding="utf-8") as file:  # type: ignore[operator]
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def table(texts: list[str | None], column: str = "text") -> pyarrow.Table:
    return pyarrow.table({"id": list(range(len(texts))), column: texts})


def test_the_standard_library_is_source_code_without_tests() -> None:
    found = locate(DataSpec(), "python-stdlib")
    names = [file.name for file in found.files]
    assert "ast.py" in names
    assert "json/decoder.py" in names
    assert not any({"test", "tests", "site-packages", "__pycache__"} & set(name.split("/")) for name in names)
    assert len(found.files) > 300
    assert locate(DataSpec(), "python-stdlib") == found
    piece = next(piece for piece in pieces(found, "text") if piece.path.endswith("/ast.py"))
    assert "def literal_eval" in next(documents(piece, DataSpec()))


def test_a_folder_of_text_is_read_in_order_and_by_pattern(tmp_path: Path) -> None:
    for name, text in {"b.txt": "two", "a/z.txt": "one", "c.py": "three", ".hidden": "no", "empty.txt": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read(DataSpec(source=str(tmp_path))) == ["one", "two", "three"]
    assert read(DataSpec(source=str(tmp_path), pattern="*.txt")) == ["one", "two"]
    assert read(DataSpec(source=str(tmp_path / "b.txt"))) == ["two"]


def test_lines_plain_compressed_and_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {number} " + "é" * (number % 7) for number in range(50)]
    records = [{"text": text, "n": 1} for text in texts]
    plain = write_lines(tmp_path / "a.jsonl", records)
    zipped = write_lines(tmp_path / "b.jsonl.gz", records, gzip.open)
    also = write_lines(tmp_path / "c.json", records)
    for path in (plain, zipped, also):
        assert read(DataSpec(source=str(path))) == texts
    for size in (1, 7, 64, 1000):  # wherever the cuts fall, each line is read once
        monkeypatch.setattr(sources, "_LINES_PIECE", size)
        assert read(DataSpec(source=str(plain))) == texts


def test_a_null_text_and_a_blank_line_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n\n{"text": null}\n{"text": ""}\n{"text": "two"}')
    assert read(DataSpec(source=str(path))) == ["one", "two"]


def test_parquet_row_groups_are_pieces(tmp_path: Path) -> None:
    texts = [f"row {number}" for number in range(10)]
    pyarrow.parquet.write_table(table([*texts, None]), tmp_path / "a.parquet", row_group_size=3)
    (tmp_path / "README.md").write_text("about")
    spec = DataSpec(source=str(tmp_path))
    assert len(pieces(locate(spec, spec.source), "text")) == 4
    assert read(spec) == texts


def save_dataset(folder: Path, shards: list[list[str | None]]) -> None:
    """A folder as `datasets.Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, texts in zip(names, shards):
        content = table(texts)
        with pyarrow.OSFile(str(folder / name), "wb") as file, pyarrow.ipc.new_stream(file, content.schema) as writer:
            writer.write_table(content, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_hugging_face_dataset_and_a_dictionary_of_them(tmp_path: Path) -> None:
    save_dataset(tmp_path / "both" / "train", [["a", "b", "c"], ["d", None, "e"]])
    save_dataset(tmp_path / "both" / "test", [["never"]])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(DataSpec(source=str(tmp_path / "both"))) == list("abcde")
    assert read(DataSpec(source=str(tmp_path / "both" / "train"))) == list("abcde")
    (tmp_path / "both" / "train").rename(tmp_path / "both" / "validation")
    with pytest.raises(BadInput, match=r"without a split called train; it has test, validation"):
        read(DataSpec(source=str(tmp_path / "both")))


def test_a_missing_file_of_a_dataset_is_named(tmp_path: Path) -> None:
    save_dataset(tmp_path / "set", [["a"], ["b"]])
    (tmp_path / "set" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(BadInput, match=r"data-00001-of-00002\.arrow is missing"):
        read(DataSpec(source=str(tmp_path / "set")))


def complaint(spec: DataSpec) -> str:
    with pytest.raises(BadInput) as caught:
        read(spec)
    return str(caught.value)


def test_what_is_not_there_or_empty(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    assert 'Did you mean "corpus"?' in complaint(DataSpec(source=str(tmp_path / "corpsu")))
    assert "the folder is empty" in complaint(DataSpec(source=str(tmp_path / "corpus")))
    (tmp_path / "corpus" / "a.txt").write_text("a")
    assert "*.rst" in complaint(DataSpec(source=str(tmp_path / "corpus"), pattern="*.rst"))
    assert "*.parquet" in complaint(DataSpec(source=str(tmp_path / "corpus"), format="parquet"))


def test_a_folder_of_several_kinds_is_not_guessed_at(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "line"}])
    (tmp_path / "b.txt").write_text("file")
    assert "several kinds (a.jsonl and b.txt)" in complaint(DataSpec(source=str(tmp_path)))
    assert read(DataSpec(source=str(tmp_path), format="jsonl")) == ["line"]
    assert read(DataSpec(source=str(tmp_path), format="text", pattern="*.txt")) == ["file"]


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(table(["a"], "content"), tmp_path / "a.parquet")
    message = complaint(DataSpec(source=str(tmp_path), text_field="contents"))
    assert "it has id, content" in message
    assert 'Did you mean "content"?' in message
    assert "holds int64, not text" in complaint(DataSpec(source=str(tmp_path), text_field="id"))
    lines = write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"txt": "b"}])
    message = complaint(DataSpec(source=str(lines)))
    assert f"{lines}:2 has no such key; it has txt" in message
    lines = write_lines(tmp_path / "b.jsonl", [{"text": 5, "body": "b"}])
    assert "holds int there, not text" in complaint(DataSpec(source=str(lines)))


def test_lines_that_are_not_json_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n{"text": \n')
    monkeypatch.setattr(sources, "_LINES_PIECE", 20)  # the line number counts from the file, not from the piece
    assert f"{path}:3" in complaint(DataSpec(source=str(path)))
    path.write_text("[1, 2]\n")
    assert "is not an object" in complaint(DataSpec(source=str(path)))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 this is none")
    assert "a.parquet" in complaint(DataSpec(source=str(tmp_path / "a.parquet")))
    (tmp_path / "b.arrow").write_bytes(b"neither this one")
    assert "b.arrow" in complaint(DataSpec(source=str(tmp_path / "b.arrow")))
    whole = gzip.compress(b'{"text": "a"}\n' * 1000)
    (tmp_path / "c.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert "c.jsonl.gz" in complaint(DataSpec(source=str(tmp_path / "c.jsonl.gz")))


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow.parquet.write_table(table(["a"]), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'shardwright[parquet]'" in complaint(DataSpec(source=str(tmp_path)))


def test_text_that_is_not_utf8_is_refused_skipped_or_mended(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"good")
    (folder / "b.txt").write_bytes(b"caf\xe9 bad")
    message = complaint(DataSpec(source=str(folder)))
    assert "b.txt, byte 3 is not UTF-8" in message
    assert '"skip"' in message
    assert read(DataSpec(source=str(folder), bad_text="skip")) == ["good"]
    assert read(DataSpec(source=str(folder), bad_text="replace")) == ["good", "caf\ufffd bad"]


def test_bad_text_in_lines_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": "\xff"}\n{"text": "\\ud800"}\n')
    assert "byte 27 is not UTF-8" in complaint(DataSpec(source=str(path)))
    assert read(DataSpec(source=str(path), bad_text="skip")) == ["good"]
    assert read(DataSpec(source=str(path), bad_text="replace")) == ["good", "\ufffd", "?"]
    path.write_bytes(b'{"text": "good"}\n{"text": "\\ud800"}\n')
    assert f"{path}:2 is not UTF-8" in complaint(DataSpec(source=str(path)))
    bad = pyarrow.array([b"good", b"\xff"], type=pyarrow.binary()).cast(pyarrow.binary())
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), tmp_path / "a.parquet")
    spec = DataSpec(source=str(tmp_path / "a.parquet"))
    assert "row 1, byte 0 is not UTF-8" in complaint(spec)
    assert read(DataSpec(source=spec.source, bad_text="skip")) == ["good"]


def test_tokens_are_recognised(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16))
    assert locate(DataSpec(), str(tmp_path)).kind == "tokens"
    assert locate(DataSpec(), str(tmp_path / "a.npy")).kind == "tokens"
