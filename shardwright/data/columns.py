"""Columns of Parquet and Arrow files, through pyarrow.

Text is read as bytes and decoded by us: Arrow does not check that a string is UTF-8, and a run must be able to say
what happens to one that is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.spec.errors import BadInput, suggestion

_ROWS = 256


def row_groups(path: str, column: str, field: str) -> list[int]:
    """Bytes of the text in each row group of a Parquet file, after checking that there is such a column."""
    parquet = _package(path, field).parquet
    with _reading(path, field), parquet.ParquetFile(path) as file:
        _check_column(file.schema_arrow, path, column)
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            sum(
                group.column(place).total_uncompressed_size
                for place in range(group.num_columns)
                if group.column(place).path_in_schema == column
            )
            for group in groups
        ]


def check_arrow(path: str, column: str, field: str) -> None:
    """Refuse an Arrow file that has no such column of text."""
    with _reading(path, field), _open_arrow(path, field) as reader:
        _check_column(reader.schema, path, column)


def read_parquet(path: str, group: int, column: str, field: str) -> Iterator[bytes | None]:
    """The texts of one row group, a few hundred rows in memory at a time."""
    parquet = _package(path, field).parquet
    with _reading(path, field), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
            yield from _texts(batch.column(0))


def read_arrow(path: str, column: str, field: str) -> Iterator[bytes | None]:
    """The texts of an Arrow file, in the streaming format that `datasets` writes or in the file format."""
    with _reading(path, field), _open_arrow(path, field) as reader:
        place = reader.schema.get_field_index(column)
        if hasattr(reader, "num_record_batches"):
            batches: Iterator[Any] = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield from _texts(batch.column(place).slice(start, _ROWS))


def _texts(array: Any) -> list[bytes | None]:
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    result: list[bytes | None] = array.cast(pyarrow.large_binary()).to_pylist()
    return result


def _open_arrow(path: str, field: str) -> Any:
    pyarrow = _package(path, field)
    file = pyarrow.memory_map(path)
    try:
        return pyarrow.ipc.open_stream(file)
    except pyarrow.ArrowInvalid:
        return pyarrow.ipc.open_file(file)


def _package(path: str, field: str) -> Any:
    """pyarrow with its parts, or the complaint that it is not there."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            field,
            path,
            rule="needs the package pyarrow, which is not installed",
            fix="pip install 'shardwright[parquet]'",
        ) from None
    return pyarrow


class _reading:  # noqa: N801 - used as a statement
    """Turns what pyarrow says about a damaged file into a complaint that names the file."""

    def __init__(self, path: str, field: str) -> None:
        self.path, self.field = path, field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Some of what pyarrow says about a damaged page comes as a plain OSError.
        if kind is not None and (kind.__module__ == "pyarrow.lib" or issubclass(kind, OSError)):
            raise BadInput(
                self.field, self.path, rule=f"cannot be read: {error}", fix="Look at the file, or fetch it again"
            ) from None


def _check_column(schema: Any, path: str, column: str) -> None:
    import pyarrow

    if column not in schema.names:
        raise BadInput(
            "data.text_field",
            column,
            rule=f"{path} has no such column; it has {', '.join(schema.names)}",
            fix=suggestion(column, schema.names),
        )
    kind = schema.field(column).type
    inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    readable = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    if not any(getattr(pyarrow.types, test)(inner) for test in readable):
        raise BadInput(
            "data.text_field",
            column,
            rule=f"this column of {path} holds {kind}, not text",
            fix=suggestion(column, schema.names),
        )
