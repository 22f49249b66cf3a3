"""``workflow mcp`` as a process: what it writes to stdout, how it ends, and what it says when it cannot start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp_types", reason="the extra mcp is not installed: pip install 'workflow-orchestrator[mcp]'")

from tests.lifeline import Lifeline
from tests.mcp.host import ROOT, SERVER, call

PATIENCE = 40

NOISY = """
import atexit, os, subprocess, sys

print("printed while imported")
os.system("echo a child wrote while imported")
atexit.register(print, "printed at exit")

async def agent(request):
    print("printed by the agent")
    os.write(1, b"written to descriptor 1\\n")
    subprocess.run(["echo", "a child of the agent wrote"])
    return f"ok:{sys.stdin.read()}:{request.prompt}"
"""


class RawClient:
    """Frames to and from a server, without an SDK between."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._ids = iter(range(1, 1000))

    def send(self, method: str, params: Any, *, notification: bool = False) -> None:
        frame = {"jsonrpc": "2.0", "method": method, "params": params}
        if not notification:
            frame["id"] = next(self._ids)
        self.write(json.dumps(frame))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def initialize(self) -> None:
        client = {"name": "raw", "version": "1"}
        self.send("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        assert self.read()["result"]["serverInfo"]["name"] == "workflow"
        self.send("notifications/initialized", {}, notification=True)

    def call(self, script: str) -> None:
        self.send("tools/call", {"name": "workflow", "arguments": call(script)})

    def hang_up(self) -> bytes:
        """Closes the server's input. Returns what else it wrote to stdout."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.end()

    def end(self) -> bytes:
        """Reads stdout to its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read()


@contextlib.contextmanager
def serving(*options: str, cwd: Path | None = None, **streams: Any) -> Iterator[RawClient]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen([sys.executable, *SERVER, *options], env=environment, cwd=cwd or ROOT, **streams) as process:
        try:
            yield RawClient(process)
        finally:
            if process.poll() is None:
                process.kill()


def errors_of(client: RawClient) -> str:
    assert client.process.stderr is not None
    return client.process.stderr.read().decode()


def test_whatever_prints_stdout_carries_frames_alone(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    with serving("--agent", "python:noisy:agent", cwd=tmp_path) as client:
        client.initialize()
        client.call("return await agent('p')")
        assert client.read()["result"]["structuredContent"]["result"] == "ok::p"
        assert client.hang_up() == b""
        printed = errors_of(client)
        assert client.process.wait(PATIENCE) == 0
    for text in (
        "printed while imported",
        "a child wrote while imported",
        "printed by the agent",
        "written to descriptor 1",
        "a child of the agent wrote",
        "printed at exit",
    ):
        assert text in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("number", "code"), [(None, 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["end of input", "TERM", "INT"]
)
def test_an_end_in_the_middle_of_a_run_leaves_no_process(
    tmp_path: Path, number: signal.Signals | None, code: int
) -> None:
    hang = f"exec 3>{tmp_path}/lifeline; echo at work >&3; exec sleep 1000"
    with (
        contextlib.closing(Lifeline(tmp_path / "lifeline")) as lifeline,
        serving("--agent", "command:sh") as client,
    ):
        client.initialize()
        client.call(f"return await agent({json.dumps(hang)})")
        assert lifeline.hear() == b"at work\n"
        tree = psutil.Process(client.process.pid).children(recursive=True)
        assert len(tree) >= 3  # the zygote, a worker, the agent
        if number is None:
            rest = client.hang_up()
        else:
            client.process.send_signal(number)
            client.process.send_signal(number)  # an impatient host does not cut the end short
            rest = client.end()
        assert client.process.wait(PATIENCE) == code
        assert not lifeline.held()
        _gone, alive = psutil.wait_procs(tree, timeout=20)
        assert alive == []
        for line in rest.splitlines():
            assert "error" in json.loads(line)
        assert "Traceback" not in errors_of(client)


def test_a_cancelled_request_is_not_answered_and_the_next_one_is(tmp_path: Path) -> None:
    hang = f"exec 3>{tmp_path}/lifeline; echo at work >&3; exec sleep 1000"
    with (
        contextlib.closing(Lifeline(tmp_path / "lifeline")) as lifeline,
        serving("--agent", "command:sh") as client,
    ):
        client.initialize()
        client.call(f"return await agent({json.dumps(hang)})")
        assert lifeline.hear() == b"at work\n"
        client.send("notifications/cancelled", {"requestId": 2, "reason": "enough"}, notification=True)
        client.call("return 'next'")
        answer = client.read()
        assert answer["id"] == 3
        assert answer["result"]["structuredContent"]["result"] == "next"
        assert client.hang_up() == b""
        assert not lifeline.held()


def test_a_call_without_a_progress_token_gets_no_notifications() -> None:
    with serving("--agent", "command:sh") as client:
        client.initialize()
        client.call("phase('a'); log('b'); return await agent('echo done')")
        assert client.read()["result"]["structuredContent"]["result"] == "done"
        assert client.hang_up() == b""


def test_lines_that_are_no_messages_cost_nothing_but_a_line_in_the_log() -> None:
    with serving("--agent", "command:sh") as client:
        client.initialize()
        client.write("{ no json")
        client.write("[]")
        client.write('{"jsonrpc": "1.0", "method": 3}')
        client.call("return 'alive'")
        assert client.read()["result"]["structuredContent"]["result"] == "alive"
        client.hang_up()
        assert client.process.wait(PATIENCE) == 0
        assert "no JSON-RPC message" in errors_of(client)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--agent", "nobody"), "--agent: unknown agent 'nobody'"),
        (("--agent", "python:no_such_module:agent"), "no_such_module"),
        (("--max-agents", "0"), "--max-agents must be a whole number of at least 1"),
        (("--timeout", "soon"), "--timeout"),
    ],
)
def test_a_start_that_cannot_be_is_one_line_and_exit_2(options: tuple[str, ...], told: str) -> None:
    with serving(*options) as client:
        assert client.hang_up() == b""
        printed = errors_of(client)
        assert client.process.wait(PATIENCE) == 2
    assert told in printed
    assert len(printed.splitlines()) == 1


def test_plain_files_instead_of_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("")
    with (tmp_path / "input").open() as file, serving(stdin=file) as client:
        assert client.end() == b""
        assert errors_of(client) == (
            "workflow: the Model Context Protocol needs pipes as stdin and stdout, not files\n"
        )
        assert client.process.wait(PATIENCE) == 2


@pytest.mark.parametrize("missing", ["mcp", "mcp_types"])
def test_without_the_extra_one_line_says_how_to_install_it(missing: str) -> None:
    source = f"import sys; sys.modules[{missing!r}] = None; from orchestrator.cli import main; sys.exit(main(['mcp']))"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, input=b"", capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("pip install 'workflow-orchestrator[mcp]'")
