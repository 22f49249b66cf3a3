"""``workflow acp`` as a client starts it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("acp", reason="the extra acp is not installed")


def test_the_command_answers_initialize_and_ends_when_its_client_goes_away() -> None:
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "acp"],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[0])["result"]["protocolVersion"] == 1
    assert done.returncode == 0


def test_an_unknown_agent_is_one_line_and_exit_2() -> None:
    command = [sys.executable, "-m", "orchestrator", "acp", "--agent", "nobody"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "nobody" in done.stderr
