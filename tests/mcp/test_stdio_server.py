"""``workflow mcp`` as the SDK's client sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp_types", reason="the extra mcp is not installed: pip install 'workflow-orchestrator[mcp]'")

from mcp import Client, MCPError, stdio_client

from orchestrator.mcp.serve import REHEARSAL_NOTICE
from orchestrator.tool import DESCRIPTION, PARAMETERS, prompt_section
from tests.conftest import run_async
from tests.lifeline import Lifeline
from tests.mcp.host import META, call, connected, server_parameters, server_process, text_of

SH = ("--agent", "command:sh")
SHELLS = "return await parallel(args.commands.map((command) => () => agent(command)))"


class Seen:
    """The progress notifications of one call."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.messages: list[str] = []
        self._news = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        assert message is not None
        self.numbers.append(progress)
        self.messages.append(message)
        self._news.set()

    async def saw(self, text: str) -> None:
        """Waits for a message with this text."""
        while not any(text in message for message in self.messages):
            self._news.clear()
            await self._news.wait()


def test_the_tools_are_those_of_the_tool_layer_word_for_word() -> None:
    async def main() -> None:
        async with connected() as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert set(tools) == {"workflow", "workflow_check"}
            assert tools["workflow"].description == DESCRIPTION
            assert tools["workflow"].input_schema == tools["workflow_check"].input_schema == PARAMETERS
            assert tools["workflow_check"].annotations is not None
            assert tools["workflow_check"].annotations.read_only_hint
            with pytest.raises(MCPError, match="there is no tool 'other'; the tools are: workflow, workflow_check"):
                await session.call_tool("other", {})
            instructions = session.initialize_result.instructions if session.initialize_result else None
            assert instructions == f"{prompt_section('workflow').text}\n\n{REHEARSAL_NOTICE}"

    run_async(main())


def test_a_script_runs_on_shell_agents_and_answers_with_text_and_structure() -> None:
    async def main() -> None:
        async with connected(*SH) as session:
            result = await session.call_tool("workflow", call(SHELLS, args={"commands": ["echo one", "echo two"]}))
            assert not result.is_error
            assert text_of(result) == 'workflow "demo" completed (2 agents).\nReturn value:\n[\n  "one",\n  "two"\n]'
            assert len(result.content) == 1
            assert result.structured_content["runId"].startswith("wf_")
            assert result.structured_content["agentsStarted"] == 2
            assert result.structured_content["result"] == ["one", "two"]

    run_async(main())


def test_a_client_of_the_newest_protocol_gets_the_same_result_and_progress() -> None:
    async def main() -> None:
        seen = Seen()
        async with Client(stdio_client(server_parameters(*SH))) as client:
            assert client.protocol_version >= "2026"
            result = await client.call_tool("workflow", call("return await agent('echo hi')"), progress_callback=seen)
            assert result.structured_content["result"] == "hi"
            assert seen.messages[-1].startswith("Running\nAgents: 0 at work, 1 completed")

    run_async(main())


def test_progress_names_the_phase_the_counts_and_the_log_and_its_number_only_grows(tmp_path: Path) -> None:
    """Each agent waits until the client has seen the phase it works in."""
    script = """
        phase('Read'); log('two files')
        await parallel([() => agent('exit 3', {label: 'bad'}), () => agent('cat read.fifo', {label: 'slow'})])
        phase('Write'); log('one report')
        return await agent('cat write.fifo')"""

    async def main() -> None:
        seen = Seen()
        os.mkfifo(tmp_path / "read.fifo")
        os.mkfifo(tmp_path / "write.fifo")
        async with connected(*SH, cwd=tmp_path) as session:
            working = asyncio.ensure_future(session.call_tool("workflow", call(script), progress_callback=seen))
            await seen.saw(
                "Running: Read\nAgents: 1 at work, 0 completed, 1 failed, 0 cancelled\nAt work: slow\nLog: two"
            )
            await asyncio.to_thread((tmp_path / "read.fifo").write_text, "x")
            await seen.saw("Running: Write\nAgents: 1 at work, 1 completed, 1 failed, 0 cancelled")
            await asyncio.to_thread((tmp_path / "write.fifo").write_text, "the report")
            result = await working
            assert result.structured_content["result"] == "the report"
        assert "Agents: 0 at work, 2 completed, 1 failed, 0 cancelled\nLog: one report" in seen.messages[-1]
        assert seen.numbers == sorted(set(seen.numbers))
        assert int(seen.numbers[-1]) == 3
        shown = [message.split("\n", 1)[0] for message in seen.messages]
        assert shown == sorted(shown, key=["Running", "Running: Read", "Running: Write"].index)

    run_async(main())


def test_a_run_that_fails_is_a_tool_error_with_the_scripts_own_line() -> None:
    async def main() -> None:
        async with connected(*SH) as session:
            result = await session.call_tool("workflow", call("const x = 1\nthrow new TypeError('no x')"))
            assert result.is_error
            assert result.structured_content is None
            assert text_of(result).startswith("Error: workflow run failed: TypeError: no x (line 2")
            assert "throw new TypeError('no x')" in text_of(result)
            # The server is as it was.
            assert (await session.call_tool("workflow", call("return 1"))).structured_content["result"] == 1

    run_async(main())


def test_check_says_what_a_run_would_say_and_starts_no_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(*SH, cwd=tmp_path) as session:
            broken = call("phase('a')\nreturn (1 +")
            checked = await session.call_tool("workflow_check", broken)
            assert checked.is_error
            assert "does not parse" in text_of(checked)
            assert "(line 2, column" in text_of(checked)
            assert text_of(checked) == text_of(await session.call_tool("workflow", broken))

            meta = {**META, "phases": [{"title": "Work"}]}
            sneaky = "await agent('touch started', {provider: 'default'})\nreturn await agent('touch started')"
            checked = await session.call_tool("workflow_check", {"script": sneaky, "meta": meta})
            assert not checked.is_error
            assert text_of(checked).startswith('workflow "demo" can run.\nMeta:\n{\n  "name": "demo"')
            assert checked.structured_content == {"meta": meta}

            refused = await session.call_tool("workflow_check", {"script": "return 1", "meta": {"name": "x"}})
            assert refused.is_error
            assert "description" in text_of(refused)
            refused = await session.call_tool("workflow_check", {"skript": "return 1"})
            assert text_of(refused) == (
                "Error: the workflow tool has no parameter 'skript'; it takes script, meta and args"
            )

    run_async(main())
    assert list(tmp_path.iterdir()) == []


def test_agents_that_failed_are_listed_after_the_result() -> None:
    async def main() -> None:
        async with connected(*SH) as session:
            commands = ["echo good", "echo broken >&2; exit 7"]
            result = await session.call_tool("workflow", call(SHELLS, args={"commands": commands}))
            assert result.structured_content["result"] == ["good", None]
            (_, notes) = result.content
            assert notes.type == "text"
            assert notes.text.startswith("1 of 2 agents failed:\n- echo broken >&2; exit 7: ")
            assert notes.text.endswith("broken")

    run_async(main())


def test_without_an_agent_each_result_says_that_it_is_made_up() -> None:
    async def main() -> None:
        async with connected() as session:
            result = await session.call_tool("workflow", call("return await agent('hello')"))
            assert result.content[-1].type == "text"
            assert result.content[-1].text == REHEARSAL_NOTICE

    run_async(main())


def test_a_long_result_is_cut_for_the_model_and_whole_in_the_structure() -> None:
    async def main() -> None:
        async with connected(*SH) as session:
            result = await session.call_tool("workflow", call("return 'x'.repeat(70000)"))
            assert text_of(result).endswith("… [truncated: 20002 more characters]")
            assert result.structured_content["result"] == "x" * 70_000

    run_async(main())


def test_limits_of_the_command_line_hold_for_each_run() -> None:
    async def main() -> None:
        async with connected(*SH, "--max-agents", "1", "--timeout", "30", "--concurrency", "1") as session:
            result = await session.call_tool("workflow", call("await agent('echo 1'); return await agent('echo 2')"))
            assert result.is_error
            assert "this run reached its total agent cap (1)" in text_of(result)

    run_async(main())


def test_cancelling_a_request_ends_its_agents_and_leaves_the_server_at_work(tmp_path: Path) -> None:
    async def main(lifeline: Lifeline) -> None:
        hang = f"exec 3>{tmp_path}/lifeline; sleep 1000 & echo $! >&3; wait"
        async with connected(*SH, cwd=tmp_path) as session:
            working = asyncio.ensure_future(session.call_tool("workflow", call(SHELLS, args={"commands": [hang]})))
            child = psutil.Process(int(await lifeline.heard()))
            workers = {process.pid for process in server_process().children(recursive=True)}
            assert child.pid in workers
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            await lifeline.silent()
            _gone, alive = await asyncio.to_thread(psutil.wait_procs, [child], timeout=20)
            assert alive == []
            again = await session.call_tool("workflow", call(SHELLS, args={"commands": ["echo still here"]}))
            assert again.structured_content["result"] == ["still here"]

    with contextlib.closing(Lifeline(tmp_path / "lifeline")) as lifeline:
        run_async(main(lifeline))


def test_two_calls_at_once_never_cross(tmp_path: Path) -> None:
    """Each waits for the other's agent, so both are at work at the same time."""
    os.mkfifo(tmp_path / "there")
    os.mkfifo(tmp_path / "back")
    script = "phase(args.who); const got = await agent(args.command, {label: args.who}); return [args.who, got]"
    commands = {"left": "echo from left > there; cat back", "right": "cat there; echo from right > back"}
    answers = {"left": "from right", "right": "from left"}

    async def main() -> None:
        async with connected(*SH, cwd=tmp_path) as session:

            async def one(who: str) -> tuple[Any, Seen]:
                seen = Seen()
                arguments = call(script, args={"who": who, "command": commands[who]})
                return await session.call_tool("workflow", arguments, progress_callback=seen), seen

            outcomes = await asyncio.gather(one("left"), one("right"))
            runs = {result.structured_content["runId"] for result, _ in outcomes}
            assert len(runs) == 2
            for (result, seen), who, other in zip(outcomes, ("left", "right"), ("right", "left"), strict=True):
                assert result.structured_content["result"] == [who, answers[who]]
                assert any(f"Running: {who}" in message for message in seen.messages)
                assert not any(other in message for message in seen.messages)
                assert seen.numbers == sorted(set(seen.numbers))

    run_async(main())


HOST = """
import asyncio, sys
from tests.mcp.host import call, connected

async def main():
    async with connected("--agent", "command:sh") as session:
        await session.call_tool("workflow", call("return await agent(args.command)", args={"command": sys.argv[1]}))

asyncio.run(main())
"""


def test_a_host_that_is_killed_leaves_neither_server_nor_agents(tmp_path: Path) -> None:
    hang = f"exec 3>{tmp_path}/lifeline; echo at work >&3; exec sleep 1000"
    with (
        contextlib.closing(Lifeline(tmp_path / "lifeline")) as lifeline,
        subprocess.Popen([sys.executable, "-c", HOST, hang]) as process,
    ):
        try:
            assert lifeline.hear() == b"at work\n"
            tree = psutil.Process(process.pid).children(recursive=True)
            names = [" ".join(child.cmdline()) for child in tree]
            assert any("orchestrator mcp" in name for name in names)
            assert len(tree) >= 4  # the server, the zygote, a worker, the agent
        finally:
            process.kill()
        _gone, alive = psutil.wait_procs(tree, timeout=20)
        assert alive == []
        assert not lifeline.held()
