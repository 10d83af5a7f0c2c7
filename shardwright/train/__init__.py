"""Precision, optimizer, loss, the loop.

`loop.py` is the whole of training on one screen: read a batch, run its microbatches forward and backward, update, note
what happened. Everything it uses is made once in `session.py`: the model spread by `shardwright.parallel`, the
optimizer (`optimizer.py`, in the types that `recipe.py` lists), the batches, the run directory. `schedule.py` is the
learning rate as a pure function of the step; `meter.py` turns what a step leaves on the device into one line of
`metrics.jsonl` without stalling the device; `evaluate.py` measures the held-out split; `stop.py` hears the signals that
ask a run to save and end.

May touch: torch, and every floor below (`spec` … `checkpoint`).

Start reading at `loop.py`.
"""
