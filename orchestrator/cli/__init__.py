"""The ``workflow`` command: results on stdout, everything else on stderr.

Guarantees: bad input is one clear line and exit code 2, never a traceback; 0 is a completed run, 1 a failed one, 130
and 143 one that Ctrl-C or SIGTERM cancelled; a reader of stdout that goes away is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (the process's own by default) and returns the exit code."""
    _open_closed_streams()
    try:
        from orchestrator.cli.app import dispatch

        code = dispatch(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 1
    _give_up_on_a_broken_stdout()
    return code


def _open_closed_streams() -> None:
    """Gives a process that was started with ``2>&-`` streams that go nowhere, before a socket takes their number."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def _give_up_on_a_broken_stdout() -> None:
    """Lets the interpreter's own flush at exit succeed when whoever read stdout has gone."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
