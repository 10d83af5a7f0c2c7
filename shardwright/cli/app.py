"""The `shardwright` command: its sub-commands, its exit codes, its way of saying that something is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from shardwright.cli.data import data
from shardwright.cli.parity import parity
from shardwright.cli.show import show
from shardwright.cli.train import train
from shardwright.spec import BadInput
from shardwright.version import __version__

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

app = App(
    name="shardwright",
    version=__version__,
    help="Plan, rehearse, train and keep alive large-model runs, on two cores or 16,000 GPUs.",
    help_epilogue="Example: shardwright train trains a small model on this machine.",
    help_format="plaintext",
)
app.command(train, help_epilogue="Example: shardwright train --set name=mine --set steps=50")
app.command(parity, help_epilogue="Example: shardwright parity first dp=2,microbatch=4 tp=2,microbatch=4")
app.command(show, help_epilogue="Example: shardwright show llama3-70b")
app.command(data)
app.register_install_completion_command(add_to_startup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()), BAD_INPUT)
    except BadInput as error:
        return _complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except RuntimeError as error:
        if type(error).__name__ != "RankFailed":  # its class lives beside torch; anything else is ours to mend
            raise
        return _complain(str(error), FAILED)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    if os.environ.get("RANK", "0") == "0":  # ranks that torchrun or srun started have one speaker
        print(f"error: {message}", file=sys.stderr)
    return code
