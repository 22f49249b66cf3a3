"""Fatal errors are real errors of the script's realm: catchable, re-thrown through fan-out at once, not forgeable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import AgentEnded, AgentRequest, AgentResult, AgentStarted, EngineConfig, ErrorCode
from tests.contract.conftest import RunScript
from tests.support import run_script

SOURCES = {
    "a wrong argument": ("agent('')", "INVALID_ARGUMENT"),
    "an unknown option": ("agent('x', { nope: 1 })", "UNSUPPORTED_OPTION"),
    "an option the provider lacks": ("agent('x', { effort: 'high' })", "UNSUPPORTED_OPTION"),
    "a wrong schema": ("agent('x', { schema: { type: 'string' } })", "UNSUPPORTED_SCHEMA"),
    "a broken provider": ("agent('boom')", "AGENT_RESULT"),
    "a wrong parallel": ("parallel([1])", "INVALID_ARGUMENT"),
    "a wrong phase": ("(async () => phase(1))()", "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_fatal_error_is_a_real_error_of_the_scripts_realm(name: str, value: Callable[..., Any]) -> None:
    call, code = SOURCES[name]
    text = f"""try {{ await {call} }} catch (e) {{
      return [e instanceof Error, Object.prototype.toString.call(e), e.name, e.code, typeof e.message, String(e) ===
        'WorkflowError: ' + e.message, e.constructor === Error, Object.keys(e), typeof e.stack,
      Object.getOwnPropertyNames(e).sort()] }}"""
    expected = [
        True,
        "[object Error]",
        "WorkflowError",
        code,
        "string",
        True,
        True,
        ["code"],
        "string",
        ["code", "message", "name"],
    ]
    assert value(text) == expected


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "wrap",
    [
        "parallel([async () => {call}, () => agent('hang')])",
        "pipeline([1, 2], async (_, n) => n === 1 ? {call} : agent('hang'))",
        "parallel([() => pipeline([1], () => parallel([() => {call}, () => agent('hang')]))])",
    ],
)
def test_fan_out_throws_a_fatal_error_on_at_once(name: str, wrap: str, value: Callable[..., Any]) -> None:
    """A sibling that never ends by itself does not hold it up."""
    call, code = SOURCES[name]
    assert value(f"try {{ await {wrap.replace('{call}', call)} }} catch (e) {{ return e.code }}") == code


@pytest.mark.parametrize("name", SOURCES)
def test_a_fatal_error_that_nobody_catches_ends_the_run_with_its_code(name: str, failure: Callable[..., Any]) -> None:
    call, code = SOURCES[name]
    assert failure(f"await parallel([() => {call}])")[0] == code
    assert failure(f"throw await {call}.catch((e) => e)")[0] == code


FORGED = {
    "an object of the shape": "Object.assign({}, { name: 'WorkflowError', code: 'AGENT_CAP', message: 'm' })",
    "an error of the shape": "Object.assign(new Error('m'), { name: 'WorkflowError', code: 'AGENT_CAP' })",
    "a class of the name": "new (class WorkflowError extends Error { name = 'WorkflowError'; code = 'AGENT_CAP' })()",
    "a copy of a real one": "Object.assign(Object.create(real), { message: 'm' })",
    "a proxy of a real one": "new Proxy(real, {})",
    "a clone of a real one": "Object.assign(new Error(real.message), real, { name: real.name })",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_error_stays_an_ordinary_one(name: str, script: RunScript) -> None:
    catch = "let real; try { await agent('') } catch (e) { real = e }\n"
    inside = script(f"{catch}return await parallel([() => {{ throw {FORGED[name]} }}, () => 1])").result
    assert inside.value == [None, 1]
    piped = script(
        f"{catch}return await pipeline([1, 2], (n) => {{ if (n === 1) throw {FORGED[name]}; return n }})"
    ).result
    assert piped.value == [None, 2]
    thrown = script(f"{catch}throw {FORGED[name]}").result
    assert (thrown.stop_reason, thrown.code) == ("error", ErrorCode.SCRIPT_ERROR)


def test_a_real_one_that_was_changed_stays_fatal(failure: Callable[..., Any]) -> None:
    text = "try { await agent('') } catch (e) { e.name = 'Other'; e.message = 'mine'; "
    text += "await parallel([() => { throw e }]) }"
    code, error = failure(text)
    assert code == ErrorCode.INVALID_ARGUMENT
    assert error.startswith("Other: mine")


def test_the_code_of_a_fatal_error_cannot_be_changed(value: Callable[..., Any]) -> None:
    text = """try { await agent('') } catch (e) {
      try { e.code = 'X' } catch {} try { delete e.code } catch {} return e.code }"""
    assert value(text) == "INVALID_ARGUMENT"


def test_an_unknown_option_while_others_wait_ends_the_run_now() -> None:
    """The reported error is the option, the waiting calls never start, the running ones are aborted."""
    aborted: list[str] = []

    async def agent(request: AgentRequest) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            aborted.append(request.prompt)
            raise
        return "never"

    text = """await parallel([...'abcdef'].map((p) => () => agent(p)).concat([
      () => new Promise((r) => setTimeout(r, 5)).then(() => agent('x', { nope: 1 }))]))"""
    ran = run_script(text, agent=agent, config=EngineConfig(max_concurrent_agents=2, spare_workers=0))
    assert ran.result.code == ErrorCode.UNSUPPORTED_OPTION
    assert 'agent() option "nope" is not recognized' in str(ran.result.error)
    assert sorted(aborted) == ["a", "b"]
    assert [event.seq for event in ran.events if isinstance(event, AgentStarted)] == [1, 2]
    assert [event.outcome for event in ran.events if isinstance(event, AgentEnded)] == ["cancelled", "cancelled"]


def test_one_broken_agent_ends_the_run_with_its_own_error_and_not_a_siblings_abort() -> None:
    async def agent(request: AgentRequest) -> str:
        if request.prompt == "boom":
            raise RuntimeError("the provider broke")
        await asyncio.Event().wait()
        return "never"

    ran = run_script("await parallel(['a', 'b', 'boom', 'c'].map((p) => () => agent(p)))", agent=agent)
    assert ran.result.code == ErrorCode.AGENT_RESULT
    assert "RuntimeError: the provider broke" in str(ran.result.error)
    outcomes = {event.seq: event.outcome for event in ran.events if isinstance(event, AgentEnded)}
    assert outcomes == {1: "cancelled", 2: "cancelled", 3: "failed", 4: "cancelled"}


def test_an_agent_aborted_by_its_own_provider_fails_alone(script: RunScript) -> None:
    async def agent(request: AgentRequest) -> str:
        if request.prompt == "b":
            raise asyncio.CancelledError
        return request.prompt

    ran = script("return await parallel(['a', 'b', 'c'].map((p) => () => agent(p)))", agent=agent)
    assert ran.result.value == ["a", None, "c"]
    assert [failure.seq for failure in ran.result.failures] == [2]


class _Odd:
    """A provider whose run is whatever it was given."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.disposed = 0

    async def start(self, request: AgentRequest) -> Any:
        return self.run

    async def dispose(self) -> None:
        self.disposed += 1


class _OddRun:
    id = "child"

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.disposed = 0

    @property
    def result(self) -> Any:
        async def answer() -> Any:
            return self._answer

        return answer()

    async def dispose(self) -> None:
        self.disposed += 1


ODD_ANSWERS = {
    "no AgentResult": ("text", "its result is a str, not an AgentResult"),
    "None": (None, "its result is a NoneType, not an AgentResult"),
    "a number as text": (AgentResult(text=5), "its text is a int, not a str"),  # type: ignore[arg-type]
    "a number as error": (AgentResult(stop_reason="error", error=5), "its result cannot be read"),  # type: ignore[arg-type]
    "text as usage": (AgentResult(text="x", usage="many"), "its result cannot be read"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_a_provider_that_answers_nonsense_is_fatal_and_disposed_and_hangs_nothing(name: str) -> None:
    answer, why = ODD_ANSWERS[name]
    run = _OddRun(answer)
    ran = run_script("return await agent('x')", agent=_Odd(run))
    assert ran.result.code == ErrorCode.AGENT_RESULT
    assert f"child agent run failed: {why}" in str(ran.result.error)
    assert run.disposed == 1
    assert ran.types == ["start", "agent-start", "agent-end", "end"]


def test_a_started_child_without_an_id_is_refused_and_disposed() -> None:
    class Nameless(_OddRun):
        @property
        def id(self) -> str:  # type: ignore[override]
            raise RuntimeError("no name")

    run = Nameless(AgentResult(text="x"))
    ran = run_script("return await agent('x')", agent=_Odd(run))
    assert ran.result.code == ErrorCode.AGENT_START
    assert "agent() could not start a child: RuntimeError: no name" in str(ran.result.error)
    assert (run.disposed, ran.types) == (1, ["start", "end"])
