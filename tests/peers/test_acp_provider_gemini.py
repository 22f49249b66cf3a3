"""The acp: agent drives a real coding agent: Gemini CLI in ACP mode, with aimock as its model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AbortController, EngineConfig, WorkflowEngine, WorkflowError, WorkflowStartRequest
from orchestrator.agents import Usage
from tests.conftest import run_async
from tests.peers.acp_support import NUMBER, answer_of, closing, request_of, said_something
from tests.peers.aimock import Aimock, aimock
from tests.peers.gemini_cli import gemini_cli
from tests.peers.processes import SLEEP, processes

from orchestrator.providers.acp import AcpProvider, AcpSettings  # isort: skip

pytestmark = pytest.mark.timeout(120)

Fixtures = Sequence[Mapping[str, Any]]
Test = Callable[[AcpProvider, Aimock], Awaitable[Any]]
TOKENS = {"prompt_tokens": 21, "completion_tokens": 4}
HELLO = {"match": {"userMessage": "say hello"}, "response": {"content": "Hello from the model.", "usage": TOKENS}}


def with_gemini(home: Path, fixtures: Fixtures, test: Test, *, signed_in: bool = True, **settings: Any) -> Any:
    """Runs a test with Gemini CLI in a directory of its own; then nothing but the model may be left."""
    work = home / "work"
    work.mkdir()

    async def main(model: Aimock) -> Any:
        cli = gemini_cli(home, model.gemini_url, signed_in=signed_in)
        made = AcpSettings(argv=(*cli.argv, "--acp"), env=cli.env, cwd=str(work), **settings)
        async with closing(AcpProvider(made)) as provider:
            result = await test(provider, model)
        assert processes() == {model.pid}
        return result

    gemini_cli(home, None)  # skips before anything is started
    with aimock(fixtures) as model:
        return run_async(main(model), timeout=100)


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": arguments}]}


def test_a_workflow_is_done_by_gemini_cli_with_text_structured_answers_and_tokens(tmp_path: Path) -> None:
    fixtures = [
        {"match": {"userMessage": "Your last answer was not valid"}, "response": {"content": '{"n": 3}'}},
        {"match": {"userMessage": "count the files"}, "response": {"content": "There are three."}},
        HELLO,
    ]
    script = """
    const texts = await parallel([1, 2, 3].map((n) => () => agent(`say hello ${n}`)))
    const counted = await agent('count the files', { schema: args.schema })
    return { texts, n: counted.n }
    """

    async def test(provider: AcpProvider, model: Aimock) -> None:
        async with WorkflowEngine(EngineConfig(spare_workers=0, max_concurrent_agents=3)) as engine:
            engine.agents.register("default", provider)
            meta = {"name": "files", "description": "counts files"}
            request = WorkflowStartRequest(script=script, meta=meta, args={"schema": NUMBER})
            async with await engine.start(request) as run:
                result = await run.result
        assert (result.value, result.failures) == ({"texts": ["Hello from the model."] * 3, "n": 3}, ())
        assert len(model.journal(path="GenerateContent")) == 5

    with_gemini(tmp_path, fixtures, test)


def test_tokens_are_those_that_the_model_reported_to_gemini_cli(tmp_path: Path) -> None:
    async def test(provider: AcpProvider, model: Aimock) -> None:
        assert (await answer_of(provider, "say hello")).usage == Usage(input_tokens=21, output_tokens=4)

    with_gemini(tmp_path, [HELLO], test)


def test_the_model_of_a_call_is_the_one_gemini_cli_asks(tmp_path: Path) -> None:
    async def test(provider: AcpProvider, model: Aimock) -> None:
        assert (await answer_of(provider, "say hello", model="gemini-2.5-pro")).stop_reason == "completed"
        assert "/models/gemini-2.5-pro:" in model.journal()[-1]["path"]
        with pytest.raises(WorkflowError, match="Gemini CLI has no model 'gpt-5'"):
            await answer_of(provider, "say hello", model="gpt-5")

    with_gemini(tmp_path, [HELLO], test)


@pytest.mark.parametrize(("permissions", "written"), [("refuse", False), ("allow", True)])
def test_a_tool_of_gemini_cli_runs_only_where_permissions_are_allowed(
    tmp_path: Path, permissions: str, written: bool
) -> None:
    target = tmp_path / "work" / "made.txt"
    call = tool_call("write_file", file_path=str(target), content="made by a tool")
    fixtures = [
        {"match": {"hasToolResult": True}, "response": {"content": "I am done."}},
        {"match": {"userMessage": "make a file"}, "response": call},
    ]

    async def test(provider: AcpProvider, model: Aimock) -> None:
        result = await answer_of(provider, "make a file")
        assert (result.stop_reason, result.text) == ("completed", "I am done.")
        assert target.exists() is written

    with_gemini(tmp_path, fixtures, test, permissions=permissions)


def test_a_cancel_in_the_middle_of_an_answer_stops_the_model_and_keeps_the_process(tmp_path: Path) -> None:
    slow = {"match": {"userMessage": "tell a story"}, "response": {"content": "once " * 500}, "latency": 400}

    async def test(provider: AcpProvider, model: Aimock) -> None:
        controller = AbortController()
        run = await provider.start(request_of("tell a story", signal=controller.signal))
        await said_something(run)
        controller.abort("enough")
        assert (await run.result).stop_reason == "cancelled"
        await run.dispose()
        before = processes()
        assert (await answer_of(provider, "say hello")).text == "Hello from the model."
        assert processes() == before

    with_gemini(tmp_path, [slow, HELLO], test)


@pytest.mark.parametrize("reuse", [True, False])
def test_a_command_that_gemini_cli_started_is_gone_after_a_cancel(tmp_path: Path, reuse: bool) -> None:
    fixtures = [
        {"match": {"userMessage": "wait"}, "response": tool_call("run_shell_command", command=f"sleep {SLEEP}")}
    ]

    async def test(provider: AcpProvider, model: Aimock) -> None:
        controller = AbortController()
        run = await provider.start(request_of("wait", signal=controller.signal))
        idle = processes()
        async with asyncio.timeout(60):
            while len(processes()) <= len(idle):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        controller.abort("enough")
        await run.dispose()
        await provider.aclose()
        assert processes() == {model.pid}

    with_gemini(tmp_path, fixtures, test, reuse=reuse, permissions="allow")


def test_gemini_cli_without_a_login_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async def test(provider: AcpProvider, model: Aimock) -> None:
        with pytest.raises(WorkflowError, match=r"Gemini CLI requires authentication: .*key is missing.*; log in "):
            await answer_of(provider, "say hello")

    with_gemini(tmp_path, [], test, signed_in=False)
