"""Supervises a run: starts its ranks, watches them, says which one failed and why.

`rank.py` is one rank from its first line to its last, however it was started. `supervise.py` starts the ranks of this
machine through TorchElastic's agent, passes signals on to them, restarts them when the run allows it, and turns a
failure into one sentence that names the rank and its own error.

May touch: torch, processes and signals, and every floor below.

Start reading at `rank.py`.
"""
