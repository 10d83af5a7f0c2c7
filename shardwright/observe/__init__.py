"""What is known about a run while it trains and after it ended: its directory, metrics, events, progress line.

A run leaves one folder behind (`directory.py` draws it). `RunDirectory.open` makes it, or resumes it when the run is
the same; it refuses, with each difference named, when it is not. A `Recorder` then takes one call a step (`metrics`)
and one for each thing that happens (`event`), and hands both to its sinks: the folder's own JSONL files, always, and
exporters such as `TensorBoard`. `write_manifest` puts down what each start ran on. `progress_for` shows a person how
far it is.

Three promises hold here. *Observing never stalls training*: every file is written by a thread of its own behind a
bounded queue (`writer.py`); a disk that hangs or is full costs records, which are counted, not steps. *No file is ever
half written*: what is replaced is replaced in one step, what is appended is appended whole, and what a crash tore is
cut off when the file is opened again (`files.py`). *A resumed run's metrics are those of an uninterrupted one*:
`Recorder.flush` before a checkpoint is published, `Recorder.rewind` after one is loaded.

May touch: `shardwright.spec`, `shardwright.cost`, the standard library, psutil; rich and tensorboard where they are
used, imported late. Never torch: the board, `doctor` and the launchers read runs without it.

Start reading at `directory.py`, then `recorder.py`. `format.py` and `host.py` are the small helpers: numbers for
people, and what this machine has.
"""

from shardwright.observe.directory import RunDirectory, differences, runs_folder
from shardwright.observe.files import last_record, read_records, write_atomically
from shardwright.observe.format import duration, gib, percent
from shardwright.observe.host import (
    free_disk,
    peak_memory,
    reset_peak_memory,
    resident_memory,
    total_memory,
    usable_cores,
)
from shardwright.observe.manifest import read_manifest, write_manifest
from shardwright.observe.progress import Progress, progress_for
from shardwright.observe.recorder import JsonFiles, Recorder, Sink
from shardwright.observe.tensorboard import TensorBoard
from shardwright.observe.writer import JsonLines

__all__ = [
    "JsonFiles",
    "JsonLines",
    "Progress",
    "Recorder",
    "RunDirectory",
    "Sink",
    "TensorBoard",
    "differences",
    "duration",
    "free_disk",
    "gib",
    "last_record",
    "peak_memory",
    "percent",
    "progress_for",
    "read_manifest",
    "read_records",
    "reset_peak_memory",
    "resident_memory",
    "runs_folder",
    "total_memory",
    "usable_cores",
    "write_atomically",
    "write_manifest",
]
