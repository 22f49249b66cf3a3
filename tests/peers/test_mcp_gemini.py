"""A real MCP host: Gemini CLI starts ``workflow mcp``, and a scripted model makes it call the tools."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp_types", reason="the extra mcp is not installed: pip install 'workflow-orchestrator[mcp]'")

from orchestrator.tool import DESCRIPTION
from tests.lifeline import Lifeline
from tests.peers.aimock import Aimock, aimock
from tests.peers.gemini_cli import gemini_cli

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 55
SCRIPT = """phase('Count')
const counts = await parallel(args.files.map((file) => () => agent(`wc -l < ${file}`, {label: file})))
return Object.fromEntries(args.files.map((file, index) => [file, Number(counts[index])]))"""
META = {"name": "count-lines", "description": "Counts lines"}


def tool_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": json.dumps(arguments)}]}


def host(mock: Aimock, home: Path, prompt: str) -> subprocess.Popen[str]:
    """Starts the host on one prompt, without a terminal."""
    work = home / "work"
    work.mkdir()
    for name, lines in (("one.txt", 1), ("three.txt", 3)):
        (work / name).write_text("line\n" * lines)
    # The host lets no one set PYTHONPATH for a server, and starts it in its own working directory.
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from orchestrator.cli import main; sys.exit(main())"
    server = {"command": sys.executable, "args": ["-c", start, "mcp", "--agent", "command:sh"], "trust": True}
    cli = gemini_cli(home, mock.gemini_url, settings={"mcpServers": {"flows": server}})
    return subprocess.Popen(
        [*cli.argv, "--prompt", prompt, "--output-format", "json"],
        cwd=work,
        env={**os.environ, **cli.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def asked(mock: Aimock, home: Path, prompt: str) -> Iterator[subprocess.Popen[str]]:
    with host(mock, home, prompt) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()


def tool_answers(request: Mapping[str, Any]) -> list[str]:
    """What the model was given as the results of its tool calls."""
    return [json.loads(message["content"])["output"] for message in request["messages"] if message["role"] == "tool"]


@pytest.mark.timeout(90)
def test_gemini_cli_offers_the_tools_calls_them_and_hands_their_results_to_its_model(tmp_path: Path) -> None:
    arguments = {"script": SCRIPT, "meta": META, "args": {"files": ["one.txt", "three.txt"]}}
    fixtures = [
        {"match": {"toolResultContains": " can run."}, "response": tool_call("mcp_flows_workflow", arguments)},
        {"match": {"toolResultContains": "completed"}, "response": {"content": "They have one and three lines."}},
        {"match": {"userMessage": "count"}, "response": tool_call("mcp_flows_workflow_check", arguments)},
    ]
    with aimock(fixtures) as mock, asked(mock, tmp_path, "count the lines") as process:
        output, errors = process.communicate(timeout=PATIENCE)
        requests = [entry["body"] for entry in mock.journal(method="POST")]
    assert process.returncode == 0, errors
    outcome = json.loads(output)
    assert outcome["response"] == "They have one and three lines."
    assert outcome["stats"]["tools"]["totalSuccess"] == 2

    first, second, third = requests
    offered = {tool["function"]["name"]: tool["function"]["description"] for tool in first["tools"]}
    assert offered["mcp_flows_workflow"] == DESCRIPTION
    assert "mcp_flows_workflow_check" in offered
    assert tool_answers(first) == []
    (checked,) = tool_answers(second)
    assert 'workflow "count-lines" can run.\nMeta:\n{\n  "name": "count-lines"' in checked
    (_, ran) = tool_answers(third)
    assert 'workflow "count-lines" completed (2 agents).\nReturn value:\n{\n  "one.txt": 1,\n  "three.txt": 3\n}' in ran


@pytest.mark.timeout(90)
def test_the_model_of_gemini_cli_reads_where_its_script_is_wrong(tmp_path: Path) -> None:
    broken = tool_call("mcp_flows_workflow", {"script": "const x = 1\nreturn y", "meta": META})
    fixtures = [
        {"match": {"hasToolResult": True}, "response": {"content": "I see."}},
        {"match": {"userMessage": "count"}, "response": broken},
    ]
    with aimock(fixtures) as mock, asked(mock, tmp_path, "count the lines") as process:
        output, errors = process.communicate(timeout=PATIENCE)
        told = mock.journal(method="POST")[-1]["body"]["messages"][-1]
    assert process.returncode == 0, errors
    assert json.loads(output)["response"] == "I see."
    assert told["role"] == "tool"
    assert "Error: workflow run failed: ReferenceError: y is not defined (line 2, column 1)" in told["content"]


@pytest.mark.timeout(90)
def test_gemini_cli_killed_in_the_middle_of_a_run_leaves_no_process(tmp_path: Path) -> None:
    hang = f"exec 3>{tmp_path}/lifeline; echo at work >&3; exec sleep 1000"
    arguments = {"script": "return await agent(args.command)", "meta": META, "args": {"command": hang}}
    fixtures = [{"match": {"userMessage": "count"}, "response": tool_call("mcp_flows_workflow", arguments)}]
    with contextlib.closing(Lifeline(tmp_path / "lifeline")) as lifeline, aimock(fixtures) as mock:
        with asked(mock, tmp_path, "count the lines") as process:
            assert lifeline.hear() == b"at work\n"
            tree = psutil.Process(process.pid).children(recursive=True)
            hosts = [child for child in tree if child.name().startswith(("node", "gemini"))]
            ours = [child for child in tree if child not in hosts]
            assert len(ours) >= 4  # the server, the zygote, a worker, the agent
            process.kill()
            for child in hosts:
                child.kill()
            _gone, alive = psutil.wait_procs(ours, timeout=20)
            assert alive == []
        assert not lifeline.held()
