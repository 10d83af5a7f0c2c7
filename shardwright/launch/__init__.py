"""Starts runs where they belong: on this machine, or as part of a job that another launcher started.

`environment.py` finds out who started this process (torchrun, srun, nobody). `local.py` takes a run from its file to
its outcome on this machine: checks everything before any rank starts, prepares the data, opens the run directory, and
then either trains in this process, joins the ranks that are already there, or has `shardwright.guard` start them.

May touch: the standard library and every floor below; never torch by itself, so that a mistake in a run file is
reported in a fraction of a second.

Start reading at `local.py`.
"""

from shardwright.launch.local import start

__all__ = ["start"]
