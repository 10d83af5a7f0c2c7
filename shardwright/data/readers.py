"""From a piece of a source to its documents.

A document without text (an empty file, a null in a column) is left out. Text that is not UTF-8 is refused, skipped or
mended, as `data.bad_text` says; a half of a surrogate pair that JSON escapes may hold counts as such.
"""

from __future__ import annotations

import gzip
import json
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path

from shardwright.data import columns
from shardwright.data.sources import Piece
from shardwright.spec.errors import BadInput, suggestion
from shardwright.spec.run import DataSpec

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def documents(piece: Piece, spec: DataSpec, field: str = "data.source") -> Iterator[str]:
    """The documents of a piece, in order. Every one can be written as UTF-8 and is not empty."""
    if piece.kind == "python":
        texts = _python(piece)
    elif piece.kind == "text":
        texts = _text(piece, spec)
    elif piece.kind == "jsonl":
        texts = _lines(piece, spec, field)
    else:
        texts = _rows(piece, spec, field)
    return (text for text in texts if text)


def _python(piece: Piece) -> Iterator[str | None]:
    """A source file, in the encoding that it declares (PEP 263); a library has a few that are wrong on purpose."""
    try:
        with tokenize.open(piece.path) as file:
            text = file.read()
        text.encode()
        yield text
    except (SyntaxError, UnicodeError):
        yield None


def _text(piece: Piece, spec: DataSpec) -> Iterator[str | None]:
    content = Path(piece.path).read_bytes()
    yield _decode(content.removeprefix(_BYTE_ORDER_MARK), spec, piece.path, len(content))


def _rows(piece: Piece, spec: DataSpec, field: str) -> Iterator[str | None]:
    if piece.kind == "parquet":
        place = f"{piece.path}, row group {piece.start}"
        rows = columns.read_parquet(piece.path, piece.start, spec.text_field, field)
    else:
        place = piece.path
        rows = columns.read_arrow(piece.path, spec.text_field, field)
    for number, content in enumerate(rows):
        yield None if content is None else _decode(content, spec, f"{place}, row {number}", len(content))


def _lines(piece: Piece, spec: DataSpec, field: str) -> Iterator[str | None]:
    for offset, line in _raw_lines(piece, field):
        content = line.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else line
        if not content.strip():
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            if spec.bad_text == "refuse":
                raise _not_utf8(piece.path, offset + error.start) from None
            if spec.bad_text == "skip":
                continue
            text = content.decode(errors="replace")
        yield _from_json(text, spec, piece, offset, field)


def _raw_lines(piece: Piece, field: str) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in a piece, each with the byte where it begins."""
    compressed = piece.path.endswith(".gz")
    with gzip.open(piece.path) if compressed else Path(piece.path).open("rb") as file:
        position = piece.start
        if position:
            # The line that crosses into this piece belongs to the one before; it ends at the first line break.
            file.seek(position - 1)
            position += len(file.readline()) - 1
        try:
            while piece.stop is None or position < piece.stop:
                line = file.readline()
                if not line:
                    return
                yield position, line
                position += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(
                field, piece.path, rule=f"cannot be read: {error}", fix="The file is damaged: fetch it again"
            ) from None


def _from_json(text: str, spec: DataSpec, piece: Piece, offset: int, field: str) -> str | None:
    """The text of one record."""
    try:
        record = json.loads(text)
    except ValueError as error:
        where = f"{piece.path}:{_line_number(piece.path, offset)}"
        raise BadInput(field, where, rule=f"not valid JSON: {error}", fix="Each line must be one object") from None
    if not isinstance(record, dict):
        where = f"{piece.path}:{_line_number(piece.path, offset)}"
        raise BadInput(field, where, rule="is not an object", fix='Each line must be like {"text": "…"}')
    if spec.text_field not in record:
        raise BadInput(
            "data.text_field",
            spec.text_field,
            rule=f"{piece.path}:{_line_number(piece.path, offset)} has no such key; it has {', '.join(record)}",
            fix=suggestion(spec.text_field, record),
        )
    value = record[spec.text_field]
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadInput(
            "data.text_field",
            spec.text_field,
            rule=f"{piece.path}:{_line_number(piece.path, offset)} holds {type(value).__name__} there, not text",
            fix=suggestion(spec.text_field, [key for key, one in record.items() if isinstance(one, str)]),
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        if spec.bad_text == "refuse":
            place = f"{piece.path}:{_line_number(piece.path, offset)}"
            raise _not_utf8(place, None) from None
        return None if spec.bad_text == "skip" else value.encode(errors="replace").decode()
    return value


def _line_number(path: str, offset: int) -> int:
    """The line that begins at a byte. Counted only when a complaint needs it."""
    with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
        number, left = 1, offset
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            number += chunk.count(b"\n")
            left -= len(chunk)
    return number


def _decode(content: bytes, spec: DataSpec, place: str, whole: int) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if spec.bad_text == "refuse":
            raise _not_utf8(place, whole - len(content) + error.start) from None
        return None if spec.bad_text == "skip" else content.decode(errors="replace")


def _not_utf8(place: str, offset: int | None) -> BadInput:
    where = place if offset is None else f"{place}, byte {offset}"
    return BadInput(
        "data.bad_text",
        "refuse",
        rule=f"{where} is not UTF-8",
        fix='Use "skip" to leave such documents out, or "replace" to mend them',
    )
