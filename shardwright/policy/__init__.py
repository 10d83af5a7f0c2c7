"""Decisions as pure functions: no clock, no files, no torch.

What is decided here can be simulated as it runs: the engine, the guard and the simulator all ask the same functions.

Start reading at `retention.py` (which checkpoints are kept).
"""

from shardwright.policy.retention import kept

__all__ = ["kept"]
