"""npm ``@copilotkit/aimock`` on loopback: a server that speaks the APIs of OpenAI, Gemini and others, with fault modes.

Found through ``WORKFLOW_AIMOCK``: the package's command (``…/node_modules/.bin/aimock``), its directory, or the
``node_modules`` it is installed in. Without it a test that asks for `aimock` is skipped.

The server takes a free port, says when it listens, and ends with the ``with`` block; it also ends when this process
dies. A fixture is ``{"match": {...}, "response": {...}}``, the first match wins and ``{}`` matches everything:
``{"match": {"userMessage": "part of the last user message"}, "response": {"content": "the answer"}}``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

INSTALL = "npm install @copilotkit/aimock, then set WORKFLOW_AIMOCK to node_modules/.bin/aimock (needs Node 20)"
_PACKAGE = Path("@copilotkit", "aimock")
_ENTRY = Path("dist", "index.js")
_LAUNCHER = Path(__file__).with_name("aimock_server.mjs")
_CONTROL_TIMEOUT = 10.0
_END_TIMEOUT = 10.0

Fixture = Mapping[str, Any]


class Aimock:
    """A running server.

    Args:
        url: its address, without a path.
        pid: its process.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    @property
    def openai_url(self) -> str:
        """The ``base_url`` of an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def gemini_url(self) -> str:
        """The base address of a Gemini client (``GOOGLE_GEMINI_BASE_URL``)."""
        return self.url

    def journal(self, **filters: str) -> list[dict[str, Any]]:
        """Every request it got, oldest first: ``path``, ``headers``, ``body``, ``response.status``.

        Args:
            filters: ``method``, ``path`` (a part of it), ``status``.
        """
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        return self._control("GET", f"journal?{query}" if query else "journal")

    def clear_journal(self) -> None:
        """Forgets the requests so far."""
        self._control("POST", "reset/journal")

    def add(self, *fixtures: Fixture) -> None:
        """More fixtures, tried after those there are."""
        self._control("POST", "fixtures", {"fixtures": list(fixtures)})

    def chaos(self, **rates: float) -> None:
        """Sets the fault modes for all requests from now on, replacing the former ones; none without arguments.

        Args:
            rates: ``dropRate`` (500), ``malformedRate``, ``disconnectRate``, ``rateLimitRate`` (429 with
                ``Retry-After``), each between 0 and 1, and ``latencyMs``.
        """
        self._control("POST", "chaos", dict(rates))

    def fail_next(self, status: int, **body: str) -> None:
        """The next request gets this HTTP status; call it again for the one after.

        Args:
            status: the HTTP status.
            body: ``message``, ``type`` and ``code`` of the error.
        """
        self._control("POST", "error", {"status": status, "body": body})

    def connections(self) -> int:
        """How many client connections it holds: the server's view of whether a client closed its own."""
        found = psutil.Process(self.pid).net_connections(kind="tcp")
        return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)

    def wait_for_connections(self, count: int) -> None:
        """Returns once it holds that many client connections; they are the only sign of answers that take long."""
        deadline = time.monotonic() + _CONTROL_TIMEOUT
        while (held := self.connections()) != count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"aimock holds {held} connections and not {count}")
            time.sleep(0.005)  # not a synchronisation: polls what the kernel tells, within the deadline

    def _control(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/__aimock/{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=_CONTROL_TIMEOUT) as response:
            return json.load(response)


@contextmanager
def aimock(fixtures: Sequence[Fixture], *, seed: int = 1, **options: Any) -> Iterator[Aimock]:
    """Runs a server for the ``with`` block.

    Args:
        fixtures: what it answers.
        seed: of the fault modes' dice.
        options: the package's own, such as ``latency`` (ms between chunks), ``chunkSize`` (characters), ``chaos``.
    """
    setup = json.dumps({"fixtures": list(fixtures), "options": options, "seed": seed})
    entry = _find_entry()
    with tempfile.TemporaryFile() as complaints:
        server = subprocess.Popen(
            ["node", str(_LAUNCHER), str(entry), setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        with server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().decode().strip()
                if not url:
                    server.wait(_END_TIMEOUT)
                    complaints.seek(0)
                    raise RuntimeError(f"aimock did not start: {complaints.read().decode(errors='replace')[-2000:]}")
                yield Aimock(url, server.pid)
            finally:
                _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _find_entry() -> Path:
    """The package's main module. Skips the test when the package or Node is absent."""
    named = os.environ.get("WORKFLOW_AIMOCK", "")
    if not named or shutil.which("node") is None:
        pytest.skip(f"aimock is not installed: {INSTALL}")
    path = Path(named).resolve()
    for root in (path, path / _PACKAGE, path / "node_modules" / _PACKAGE, *path.parents):
        if (root / _ENTRY).is_file():
            return root / _ENTRY
    raise RuntimeError(f"WORKFLOW_AIMOCK names no installation of @copilotkit/aimock; {INSTALL}")
