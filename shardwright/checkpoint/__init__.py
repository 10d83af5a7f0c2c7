"""State on disk: weights and optimizer by parameter name, independent of the layout that wrote them.

A checkpoint is a folder `step-00000100` with two safetensors files and a small JSON file. It is written beside the
others under another name, made durable (files, then the folder), and published by one rename: a kill at any moment
leaves either no new checkpoint or a whole one. Nothing is ever unpickled.

May touch: torch, safetensors, and the floors `spec`, `policy`, `observe`, `model`.

Start reading at `store.py`.
"""

from shardwright.checkpoint.store import Checkpoint, CheckpointStore

__all__ = ["Checkpoint", "CheckpointStore"]
