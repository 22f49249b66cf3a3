"""How a child process ended, in the words of a failure's reason. Pure; every text is bounded and free of controls."""

from __future__ import annotations

import errno
import os
import re
import signal

__all__ = ["how_it_ended", "last_lines", "why_not_started"]

REASON_LINES = 5
REASON_CHARS = 600

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")


def how_it_ended(returncode: int) -> str:
    """``exited with code 3`` or ``was killed by SIGKILL``; ``returncode`` as in `subprocess`."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def last_lines(printed: bytes) -> str:
    """The end of what a program printed, behind a colon; nothing when it printed nothing."""
    text = _CONTROLS.sub("", printed.decode("utf-8", "replace").replace("\r", "\n"))
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    kept = "\n".join(lines[-REASON_LINES:])
    if len(kept) > REASON_CHARS:
        kept = "…" + kept[1 - REASON_CHARS :]
    return f": {kept}" if kept else ""


def why_not_started(error: OSError | ValueError) -> str:
    """The end of a sentence that begins with the program's name."""
    match error:
        case FileNotFoundError():
            return "was not found; install it, or name another program"
        case PermissionError():
            return "is not executable"
        case NotADirectoryError():
            return "cannot start in its working directory: it is no directory (cwd)"
        case OSError(errno=errno.ENOEXEC):
            return "is not a program: a script needs a first line such as #!/bin/sh"
        case OSError():
            return f"could not be started: {os.strerror(error.errno or 0).lower()}"
        case _:
            return f"could not be started: {error}"
