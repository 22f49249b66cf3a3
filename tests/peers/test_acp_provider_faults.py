"""The acp: agent on agents that break, stall, flood, ignore a cancel or die: reasons, bounds, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator import AbortController, AgentResult, EngineConfig, WorkflowEngine, WorkflowError, WorkflowStartRequest
from tests.conftest import run_async
from tests.peers.acp_support import (
    NAME,
    NUMBER,
    about,
    answer_of,
    ask,
    closing,
    request_of,
    said_something,
    scripted,
    with_provider,
)
from tests.peers.processes import processes

from orchestrator.providers.acp import AcpProvider, AcpSettings  # isort: skip
from orchestrator.providers.json_lines_child import SLICE  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"cancel_grace": 0.2, "kill_grace": 0.2}


def refusal(*modes: str, **settings: Any) -> str:
    with pytest.raises(WorkflowError) as caught:
        ask("echo never", *modes, settings=settings)
    assert caught.value.code == "AGENT_START"
    return caught.value.message


# -------------------------------------------------------------------------------------------------- the beginning


def test_a_program_that_exits_at_once_refuses_the_agent_with_its_exit_code_and_its_last_words() -> None:
    assert refusal("exit") == f"agent acp: {NAME} exited with code 1: error: unknown option --acp"


def test_a_program_that_speaks_no_acp_is_told_by_what_it_printed() -> None:
    assert refusal("garbage", "exit") == (
        f"agent acp: {NAME} exited with code 1: error: unknown option --acp; it printed no Agent Client Protocol "
        "message but: usage: agent [--acp]"
    )


def test_an_agent_of_another_protocol_version_is_refused() -> None:
    assert refusal("version") == (
        f"agent acp: {NAME} speaks version 7 of the Agent Client Protocol, not 1: install another release of it"
    )


def test_an_agent_that_does_not_answer_is_given_up_after_the_start_timeout() -> None:
    assert refusal("silent", start_timeout=0.5) == (
        f"agent acp: {NAME} did not get ready within 0.5 s (start_timeout): waiting for nothing"
    )


def test_an_answer_to_initialize_that_is_none_is_refused() -> None:
    assert refusal("odd") == f"agent acp: {NAME} does not answer `initialize` as the Agent Client Protocol asks"


def test_an_agent_that_wants_a_login_is_refused_with_what_to_do() -> None:
    assert refusal("login") == (
        f"agent acp: {NAME} requires authentication; log in with the program itself, give it its key in env, "
        "or set auth_method (auth_method may be browser-login)"
    )


def test_an_agent_that_dies_of_a_new_session_is_refused_with_its_last_words() -> None:
    assert refusal("crash-on-new") == f"agent acp: {NAME} exited with code 1: no room for a session"


@pytest.mark.parametrize("reuse", [True, False])
def test_a_program_that_is_not_there_is_refused_by_name(reuse: bool) -> None:
    provider = AcpProvider(AcpSettings(argv=("no-such-agent", "--acp"), reuse=reuse))
    with pytest.raises(WorkflowError) as caught:
        with_provider(lambda: provider, lambda provider: answer_of(provider, "hi"))
    assert caught.value.message == "agent acp: no-such-agent was not found; install it, or name another program"


def test_many_calls_on_a_program_that_cannot_start_start_it_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    argv = ("sh", "-c", f"echo x >> {count}; echo broken >&2; exit 3")

    async def test(provider: AcpProvider) -> list[Any]:
        return await asyncio.gather(*(answer_of(provider, "hi") for _ in range(6)), return_exceptions=True)

    errors = with_provider(lambda: AcpProvider(AcpSettings(argv=argv)), test)
    assert {str(error) for error in errors} == {"agent acp: sh exited with code 3: broken"}
    assert count.read_text() == "x\n"


def test_an_abort_during_the_start_ends_the_wait_for_it() -> None:
    async def test(provider: AcpProvider) -> None:
        controller = AbortController()
        starting = asyncio.ensure_future(provider.start(request_of("hi", signal=controller.signal)))
        while not processes():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        controller.abort("enough")
        with pytest.raises(WorkflowError, match="the run was aborted: enough"):
            await starting
        assert controller.signal.listener_count == 0

    for reuse in (True, False):
        with_provider(lambda reuse=reuse: scripted("silent", reuse=reuse, **QUICK), test)


def test_without_the_sdk_the_error_says_what_to_install() -> None:
    code = """
    import sys
    sys.modules["acp"] = None
    from orchestrator.providers.acp import AcpProvider, AcpSettings
    try:
        AcpProvider(AcpSettings(argv=("agent",)))
    except ModuleNotFoundError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == ("the Agent Client Protocol SDK is missing: pip install 'workflow-orchestrator[acp]'\n")


# -------------------------------------------------------------------------------------------------- while at work


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("exit 7", "exited with code 7: line one\nout of luck"), ("die", "was killed by SIGKILL")],
)
def test_an_agent_that_dies_is_a_failure_of_every_call_in_it_and_the_next_call_gets_another(
    prompt: str, said: str
) -> None:
    async def test(provider: AcpProvider) -> None:
        bystander = await provider.start(request_of("hang"))
        victim = await answer_of(provider, prompt)
        other = await bystander.result
        await bystander.dispose()
        assert (victim.stop_reason, victim.error) == ("error", f"{NAME} {said}")
        assert (other.stop_reason, other.error) == ("error", f"{NAME} {said}")
        assert (await answer_of(provider, "echo back")).text == "back "

    with_provider(scripted, test)


def test_a_process_that_died_between_two_calls_is_replaced() -> None:
    async def test(provider: AcpProvider) -> None:
        first = (await about(provider))["pid"]
        os.kill(first, signal.SIGKILL)
        assert (await about(provider))["pid"] != first

    with_provider(scripted, test)


def test_an_agent_that_closes_its_output_is_ended() -> None:
    assert ask("mute").error == f"{NAME} closed its output and was ended"


def test_a_call_without_a_sign_of_life_is_a_failure_and_the_others_go_on() -> None:
    async def test(provider: AcpProvider) -> None:
        stalled = await answer_of(provider, "hang", options={"stallMs": 200})
        assert stalled.error == f"{NAME} gave no sign of life for 0.2 s (stallMs)"
        assert (await about(provider))["calls"].count("initialize") == 1

    with_provider(scripted, test)


def test_updates_are_signs_of_life() -> None:
    # 30 MB of updates take longer than the limit, and none of them is a word of the answer.
    assert ask("updates 3000", options={"stallMs": 2000}).text == "done"


# ---------------------------------------------------------------------------------------------------------- floods


def test_an_answer_over_the_limit_is_a_failure() -> None:
    result = ask("flood 100000", settings={"max_output": 50_000, **QUICK})
    assert (result.text, result.error) == ("", f"{NAME} answered with more than 50000 characters (max_output)")


def test_an_answer_up_to_the_limit_is_kept_whole() -> None:
    assert len(ask("flood 50", settings={"max_output": 50_000}).text) == 50_000


def test_a_line_without_an_end_ends_the_agent() -> None:
    result = ask("line 40", settings={"max_output": 1000})
    assert result.error == f"{NAME} sent a message that is too long to be read, and was ended"


def test_an_agent_that_asks_without_reading_the_answers_is_not_read_without_end() -> None:
    async def test(provider: AcpProvider) -> None:
        run = await provider.start(request_of("nag", options={"stallMs": 300}))
        result = await run.result
        held = run._process._child._held  # bytes that were read and wait
        waiting = len(run._process._connection._tasks._tasks)
        assert result.error == f"{NAME} gave no sign of life for 0.3 s (stallMs)"
        assert held < 2 << 20
        assert waiting < 200
        await run.dispose()

    with_provider(lambda: scripted(**QUICK), test)


def test_a_flood_leaves_the_event_loop_its_turns() -> None:
    async def test(provider: AcpProvider) -> int:
        run = await provider.start(request_of("echo " + "x " * 20_000))
        handled = most = 0

        def count() -> None:
            nonlocal handled
            handled += 1

        call = asyncio.ensure_future(run.result)
        await said_something(run)
        run._session.on_update = count
        while not call.done():
            most, handled = max(most, handled), 0
            await asyncio.sleep(0)
        assert len((await call).text) > 20_000
        await run.dispose()
        return most

    assert 0 < with_provider(scripted, test) <= SLICE


# --------------------------------------------------------------------------------------------- cancel and dispose


async def cancelled(provider: AcpProvider, prompt: str, **fields: Any) -> AgentResult:
    """A call that is aborted while the agent works on it."""
    controller = AbortController()
    run = await provider.start(request_of(prompt, signal=controller.signal, **fields))
    await said_something(run)
    controller.abort("enough")
    result = await run.result
    await run.dispose()
    assert controller.signal.listener_count == 0
    return result


def test_a_cancelled_call_is_cancelled_by_the_protocol_and_the_process_goes_on() -> None:
    async def test(provider: AcpProvider) -> None:
        before = (await about(provider))["pid"]
        result = await cancelled(provider, "hang")
        assert (result.stop_reason, result.error) == ("cancelled", "aborted: enough")
        after = await about(provider)
        assert after["pid"] == before
        assert after["calls"].count("session/cancel") == 1

    with_provider(scripted, test)


def test_a_call_that_does_not_answer_its_cancel_costs_the_process_and_the_calls_in_it() -> None:
    async def test(provider: AcpProvider) -> None:
        before = (await about(provider))["pid"]
        bystander = await provider.start(request_of("hang"))
        assert (await cancelled(provider, "deaf")).stop_reason == "cancelled"
        assert not psutil.pid_exists(before)
        other = await bystander.result
        await bystander.dispose()
        assert other.error == (
            f"{NAME} did not answer the cancellation of a call within 0.2 s and was ended (cancel_grace; reuse = false "
            "gives each call a process of its own)"
        )
        assert (await about(provider))["pid"] != before

    with_provider(lambda: scripted(**QUICK), test)


@pytest.mark.parametrize("reuse", [True, False])
def test_an_agent_that_ignores_everything_is_killed_with_all_that_it_started(reuse: bool) -> None:
    async def test(provider: AcpProvider) -> None:
        await cancelled(provider, "deaf")
        assert processes() == set()

    with_provider(lambda: scripted("stubborn", reuse=reuse, **QUICK), test)


def test_a_call_that_ended_leaves_no_process_where_reuse_is_off() -> None:
    async def test(provider: AcpProvider) -> None:
        assert (await answer_of(provider, "echo x")).text == "x "
        assert processes() == set()

    with_provider(lambda: scripted("stubborn", reuse=False, **QUICK), test)


def test_a_dispose_without_an_abort_cancels_too() -> None:
    async def test(provider: AcpProvider) -> None:
        run = await provider.start(request_of("hang"))
        await said_something(run)
        await run.dispose()
        assert (await run.result).stop_reason == "cancelled"
        assert (await about(provider))["calls"].count("session/cancel") == 1

    with_provider(scripted, test)


def test_a_dispose_that_is_given_up_kills_at_once() -> None:
    async def test(provider: AcpProvider) -> None:
        run = await provider.start(request_of("deaf"))
        await said_something(run)
        disposing = asyncio.ensure_future(run.dispose())
        done, _ = await asyncio.wait({disposing}, timeout=0.3)
        assert not done
        disposing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await disposing
        await run._process._child.wait()  # would take an hour of grace otherwise
        assert processes() == set()

    with_provider(lambda: scripted("stubborn", cancel_grace=3600, kill_grace=3600), test)


def test_closing_the_provider_ends_kept_processes_with_all_that_they_started_and_fails_the_calls_in_them() -> None:
    async def main() -> None:
        async with closing(scripted("stubborn", **QUICK)) as provider:
            run = await provider.start(request_of("hang"))
            assert len(processes()) == 3
            await provider.aclose()
            assert processes() == set()
            assert (await run.result).error == f"{NAME} was ended with its provider"
            await run.dispose()

    run_async(main())


def test_a_loop_that_ends_without_closing_the_provider_leaves_no_process() -> None:
    provider = scripted("stubborn")

    async def main() -> None:
        assert (await answer_of(provider, "echo x")).text == "x "

    asyncio.run(main())
    assert processes() == set()

    async def again() -> None:  # a kept process belongs to its loop
        async with closing(provider):
            assert (await answer_of(provider, "echo y")).text == "y "

    provider = scripted()
    asyncio.run(main())
    run_async(again())


def test_kill_all_leaves_nothing() -> None:
    async def test(provider: AcpProvider) -> None:
        run = await provider.start(request_of("hang"))
        provider.kill_all()
        assert (await run.result).error == f"{NAME} was killed by SIGKILL"
        await run.dispose()
        assert processes() == set()

    with_provider(lambda: scripted("stubborn"), test)


# --------------------------------------------------------------------------------------------------- whole workflows


def test_a_workflow_of_many_agents_survives_one_that_kills_the_process_and_tells_the_reason() -> None:
    script = """
    const first = await parallel(args.prompts.map((prompt) => () => agent(prompt)))
    const judged = await agent(`answers '{"n": 4}'`, { schema: args.schema })
    return { first, n: judged.n }
    """

    async def main() -> Any:
        async with (
            closing(scripted()) as provider,
            WorkflowEngine(EngineConfig(max_concurrent_agents=1, spare_workers=0)) as engine,
        ):
            engine.agents.register("default", provider)
            meta = {"name": "many", "description": "many agents"}
            args = {"prompts": ["echo a", "exit 9", "echo b"], "schema": NUMBER}
            async with await engine.start(WorkflowStartRequest(script=script, meta=meta, args=args)) as run:
                return await run.result

    result = run_async(main())
    assert result.value == {"first": ["a ", None, "b "], "n": 4}
    assert [failure.reason for failure in result.failures] == [f"{NAME} exited with code 9: line one\nout of luck"]
    assert processes() == set()


def test_a_cancelled_workflow_cancels_its_agents_in_the_kept_process() -> None:
    async def main() -> None:
        async with closing(scripted()) as provider, WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
            engine.agents.register("default", provider)
            meta = {"name": "many", "description": "many agents"}
            script = "await parallel([1, 2, 3].map(() => () => agent('hang')))"
            async with await engine.start(WorkflowStartRequest(script=script, meta=meta)) as run:
                started = 0
                async for event in run.events():
                    started += event.type == "workflow/agent-start"
                    if started == 1:
                        run.cancel("enough")
                assert (await run.result).stop_reason == "cancelled"
            state = await about(provider)
            assert state["open"] == 1
            assert state["calls"].count("session/cancel") == state["calls"].count("session/prompt") - 1

    run_async(main())
    assert processes() == set()
