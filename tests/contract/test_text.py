"""Text that crosses: half a character becomes U+FFFD everywhere, whole ones stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import (
    AgentEnded,
    AgentFailed,
    AgentRequest,
    AgentResult,
    AgentStarted,
    LogWritten,
    PhaseStarted,
    WorkflowError,
)
from tests.contract.conftest import RunScript

HALF = "'😀'.slice(0, 1)"
HALVES = [
    ("'😀'.slice(0, 1)", "\ufffd"),
    ("'😀'.slice(1)", "\ufffd"),
    ("'a😀b'.slice(0, 2)", "a\ufffd"),
    ("'\\udc00\\ud800'", "\ufffd\ufffd"),
    ("'😀\\ud83d😀'", "😀\ufffd😀"),
    ("'\\ud83d' + '\\ude00'", "😀"),
]


@pytest.mark.parametrize(("js", "text"), HALVES)
def test_in_a_result_as_value_and_as_key(js: str, text: str, value: Callable[..., Any]) -> None:
    assert value(f"const h = {js}; return {{ h, list: [h], [h]: h }}") == {"h": text, "list": [text], text: text}


@pytest.mark.parametrize(("js", "text"), HALVES)
def test_in_everything_an_agent_gets(js: str, text: str, script: RunScript) -> None:
    requests: list[AgentRequest] = []

    async def agent(request: AgentRequest) -> str:
        requests.append(request)
        return request.prompt

    options = "label: h, phase: h, model: h, provider: h, schema: { type: 'object', title: h, properties: { [h]: {} } }"
    ran = script(
        f"const h = {js}; log(h); phase(h); return [await agent(h), await agent(h, {{ {options} }})]", agent=agent
    )
    plain, full = requests
    assert (plain.prompt, plain.label, plain.phase) == (text, text, text)
    assert (full.prompt, full.label, full.phase, full.model, full.provider) == (text,) * 5
    assert full.schema == {"type": "object", "title": text, "properties": {text: {}}}
    for event in ran.events:
        match event:
            case LogWritten(message=seen) | PhaseStarted(title=seen):
                assert seen == text
            case AgentStarted() | AgentEnded():
                assert (event.label, event.phase) == (text, text)
            case _:
                pass


@pytest.mark.parametrize(
    "throw", ["new Error(h)", "h", "{ message: h }", "{ a: h }", "Object.assign(new Error('m'), { name: h })"]
)
def test_in_an_error_of_the_script(throw: str, failure: Callable[..., Any]) -> None:
    _, error = failure(f"const h = {HALF}; throw {throw}")
    assert "\ufffd" in error
    error.encode()


@pytest.mark.parametrize("bad", ["{ [h]: () => 1 }", "{ a: { [h]: 1n } }", "{ get [h]() { throw new Error(h) } }"])
def test_in_the_path_of_a_refusal(bad: str, failure: Callable[..., Any]) -> None:
    _, error = failure(f"const h = {HALF}; return {bad}")
    assert '["\ufffd"]' in error
    error.encode()


def test_in_an_unknown_option_and_in_a_warning(script: RunScript, failure: Callable[..., Any]) -> None:
    assert 'agent() option "\ufffd" is not recognized' in failure(f"await agent('x', {{ [{HALF}]: 1 }})")[1]
    assert script(f"return {{ [{HALF}]: undefined }}").result.warnings[0].startswith('workflow result["\ufffd"]')


def test_in_the_source_itself(value: Callable[..., Any]) -> None:
    assert value("return 'a\ud83db'") == "a\ufffdb"
    with pytest.raises(WorkflowError, match="does not parse") as caught:
        value("const a = '\ud83d\nreturn 1")
    str(caught.value).encode()


def test_in_args(value: Callable[..., Any]) -> None:
    assert value("return args", args={"\ud83d": ["\ud83d", "\ud83d\ude00"]}) == {"\ufffd": ["\ufffd", "😀"]}


def test_in_an_agents_answer(value: Callable[..., Any]) -> None:
    async def agent(request: AgentRequest) -> AgentResult:
        return AgentResult(text="a\ud83d", structured={"\ud83d": "\udc00", "whole": "\ud83d\ude00"})

    schema = "{ type: 'object', properties: { whole: { maxLength: 1 } } }"
    text = f"return [await agent('q'), await agent('q', {{ schema: {schema} }})]"
    assert value(text, agent=agent) == ["a\ufffd", {"\ufffd": "\ufffd", "whole": "😀"}]


def test_in_an_agents_failure_and_in_a_providers_error(script: RunScript, failure: Callable[..., Any]) -> None:
    async def fails(request: AgentRequest) -> AgentResult:
        if request.prompt == "raise":
            raise AgentFailed("no \ud83d")
        return AgentResult(stop_reason="error", error="no \ud83d")

    async def breaks(_: AgentRequest) -> str:
        raise RuntimeError("broke \ud83d")

    ran = script("await agent('raise'); await agent('return')", agent=fails)
    assert [failed.reason for failed in ran.result.failures] == ["no \ufffd", "no \ufffd"]
    assert "RuntimeError: broke \ufffd" in failure("await agent('x')", agent=breaks)[1]


def test_in_meta(script: RunScript) -> None:
    ran = script("return 1", meta={"name": "n\ud83d", "description": "d\ud83d", "phases": [{"title": "t\ud83d"}]})
    meta = ran.events[0].run.meta
    assert (meta.name, meta.description, meta.phases[0].title) == ("n\ufffd", "d\ufffd", "t\ufffd")


WHOLE = (
    "plain",
    "ünïcödé",
    "日本語",
    "😀👩‍👩‍👧🇩🇪",
    "\u2028\u2029",
    "\u0000\u001f\u007f",
    "\ufeff",
    '"\\/`${}',
    "\r\n\t",
    "\U0010ffff",
    "e\u0301",
)


@pytest.mark.parametrize("text", WHOLE)
def test_every_whole_character_goes_everywhere_unchanged(text: str, script: RunScript) -> None:
    requests: list[AgentRequest] = []

    async def agent(request: AgentRequest) -> str:
        requests.append(request)
        return request.prompt

    ran = script("log(args); return { [args]: await agent(args, { label: args }) }", agent=agent, args=text)
    assert ran.result.value == {text: text}
    assert (requests[0].prompt, requests[0].label) == (text, text)
    assert [event.message for event in ran.events if isinstance(event, LogWritten)] == [text]
