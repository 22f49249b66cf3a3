"""What tests of the ``workflow`` command share: starting it as a user would, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import SANDBOX_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = [sys.executable, "-m", "orchestrator"]
META = json.dumps({"name": "demo", "description": "a demo"})
PATIENCE = 45
"""Seconds a command may take: under the timeout of a test, so that its output is shown when it hangs."""


def _confined(arguments: Sequence[str]) -> Sequence[str]:
    """A run in the mode these tests were started with, unless it names its own."""
    mode = os.environ.get(SANDBOX_VARIABLE)
    own = any(argument.startswith("--sandbox") for argument in arguments)
    return (*arguments, f"--sandbox={mode}") if mode and not own and arguments[:1] == ("run",) else arguments


def workflow(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs the command to its end."""
    return subprocess.run(
        [*WORKFLOW, *_confined(arguments)], input=stdin, capture_output=True, timeout=PATIENCE, check=False
    )


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a script that comes on standard input."""
    return workflow("run", "-", "--meta", META, *arguments, stdin=script.encode())


@contextlib.contextmanager
def running(script: str, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A run of its own that is killed when the test fails before it ended."""
    Path("script.js").write_text(script)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    process = subprocess.Popen([*WORKFLOW, *_confined(("run", "script.js", "--meta", META, *arguments))], **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def read_until(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"{text!r} was never printed"
