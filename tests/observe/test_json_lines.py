"""Files of records: never in the way, never torn, never longer than the run that wrote them."""

import json
import math
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.observe import JsonLines, last_record, read_records
from shardwright.observe.files import repair_lines
from shardwright.spec import BadInput


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_records_arrive_in_order_and_are_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for start in (0, 50):
        writer = JsonLines(path)
        for step in range(start, start + 50):
            assert writer.append({"step": step, "text": "naïve ×"})
        assert writer.close()
    assert [record["step"] for record in lines(path)] == list(range(100))


def test_numbers_that_json_cannot_hold_become_null(tmp_path):
    writer = JsonLines(tmp_path / "m.jsonl")
    writer.append({"loss": math.nan, "ranks": {"step_seconds": [1.0, math.inf]}, "step": 1})
    writer.close()
    assert lines(tmp_path / "m.jsonl") == [{"loss": None, "ranks": {"step_seconds": [1.0, None]}, "step": 1}]


def test_what_cannot_be_written_as_json_is_told_to_the_caller(tmp_path):
    writer = JsonLines(tmp_path / "m.jsonl")
    with pytest.raises(TypeError):
        writer.append({"loss": object()})
    assert writer.close()


def test_a_hanging_file_never_holds_up_the_caller(tmp_path):
    fifo = tmp_path / "metrics.jsonl"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = JsonLines(fifo, capacity=16)
    record = {"padding": "x" * 8000}  # a pipe holds 64 KiB: the writer hangs after eight of these
    slowest, taken = 0.0, 0
    for _ in range(400):
        begin = time.perf_counter()
        taken += writer.append(record)
        slowest = max(slowest, time.perf_counter() - begin)
        time.sleep(0.0002)
    assert slowest < 0.25  # waiting for the pipe would last for ever; two busy cores are allowed their hiccups
    assert 16 <= taken < 100
    assert not writer.flush(timeout=0.05)
    assert not writer.close(timeout=0.05)

    os.set_blocking(reader, True)
    received = bytearray()

    def read() -> None:
        while chunk := os.read(reader, 65536):
            received.extend(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    assert writer.close(timeout=10)
    thread.join(10)
    os.close(reader)
    records = [json.loads(line) for line in received.splitlines()]
    assert sum("padding" in record for record in records) == taken
    assert sum(record.get("dropped", 0) for record in records) == 400 - taken


def test_a_full_disk_is_reported_once_and_leaves_whole_lines(small_disk):
    path = small_disk / "metrics.jsonl"
    filler = small_disk / "filler"
    reports: list[str] = []
    writer = JsonLines(path, report=reports.append)
    writer.append({"step": 0})
    assert writer.flush()
    filler.write_bytes(b"x" * 56 * 1024)
    for step in range(1, 21):
        writer.append({"step": step, "padding": "x" * 3000})
        writer.flush()
    assert len(reports) == 1
    assert "No space left on device" in reports[0]
    assert "training goes on" in reports[0]
    assert writer.error is not None
    written = lines(path)
    assert written[0] == {"step": 0}
    assert len(written) < 21

    filler.unlink()  # room again: records go on, and what was lost is told
    writer.append({"step": 21})
    assert writer.close()
    after = lines(path)
    assert {"step": 21} in after
    assert after[-1] == {"dropped": 20 - (len(written) - 1)}
    assert len(reports) == 1


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(BadInput, match="cannot be written: No such file"):
        JsonLines(tmp_path / "nowhere" / "m.jsonl")


@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 3', b'{"step": 3}', b"\0\0\0\0", b"\0\0\0\n", b'{"a": "\xc3', b"[1]\n"]
)
def test_a_torn_last_line_is_cut(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
    assert [record["step"] for record in read_records(path) if record["step"] < 3] == [1, 2]
    writer = JsonLines(path)
    writer.append({"step": 3})
    writer.close()
    assert [record["step"] for record in lines(path)] == [1, 2, 3]


@given(whole=st.lists(st.integers(0, 200_000), max_size=4), torn=st.integers(0, 70_000))
def test_repair_keeps_every_whole_line_of_any_length(tmp_path_factory, whole, torn):
    path = tmp_path_factory.mktemp("lines") / "m.jsonl"
    kept = b"".join(json.dumps({"step": i, "padding": "x" * length}).encode() + b"\n" for i, length in enumerate(whole))
    path.write_bytes(kept + b'{"' + b"x" * torn)
    assert repair_lines(path) == torn + 2
    assert path.read_bytes() == kept
    last = last_record(path, "step")
    assert (last["step"] if last else None) == (len(whole) - 1 if whole else None)


def test_truncated_metrics_are_those_of_an_uninterrupted_run(tmp_path):
    path = tmp_path / "m.jsonl"
    writer = JsonLines(path)
    for step in range(1, 8):
        writer.append({"step": step, "loss": 1 / step})
    assert writer.truncate_after(4) == 3
    for step in range(5, 10):
        writer.append({"step": step, "loss": 1 / step})
    assert writer.truncate_after(9) == 0
    writer.close()
    assert lines(path) == [{"step": step, "loss": 1 / step} for step in range(1, 10)]
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_truncation_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    writer = JsonLines(path)
    for step in (1, 2, 3):
        writer.append({"step": step})
    writer.flush()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(BadInput, match="cannot be rewritten: No space"):
            writer.truncate_after(1)
    writer.append({"step": 4})
    writer.close()
    assert [record["step"] for record in lines(path)] == [1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [path]
