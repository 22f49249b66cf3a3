"""The openai: agent against a server that says exactly what a test wants: retries, fallbacks, structured answers."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator import AbortController, AgentRequest, AgentResult, WorkflowError
from orchestrator.providers.openai import OpenAIProvider, OpenAISettings, OpenAIStats, openai_settings_from_spec
from orchestrator.workflow_file import read_workflow_file
from protocol.events import RunId, WorkflowMeta, WorkflowRunInfo
from tests.conftest import run_async
from tests.peers.scripted_server import Reply, error, scripted_server, text

pytest.importorskip("openai", reason="the OpenAI SDK is not installed: pip install 'workflow-orchestrator[openai]'")

KEY = "sk-test-0123456789"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"verdict": {"enum": ["good", "bad"]}},
    "required": ["verdict"],
}
FAST: dict[str, Any] = {"retry_delay": 0.001, "max_retry_delay": 0.01}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One known key, and nothing else of the SDK's variables."""
    for name in ("OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Asked(msgspec.Struct, frozen=True):
    """One agent's result, what its provider counted, and what the server got."""

    result: AgentResult
    stats: OpenAIStats
    bodies: list[dict[str, Any]]
    headers: list[dict[str, str]]


def request_of(prompt: str = "judge this", **fields: Any) -> AgentRequest:
    info = WorkflowRunInfo(id=RunId("run"), meta=WorkflowMeta(name="n", description="d"))
    fields.setdefault("signal", AbortController().signal)
    return AgentRequest(prompt=prompt, seq=1, label="one", run=info, **fields)


async def answer_of(provider: OpenAIProvider, request: AgentRequest) -> AgentResult:
    run = await provider.start(request)
    try:
        return await run.result
    finally:
        await run.dispose()


def ask(
    replies: Sequence[Reply] | Callable[[int, dict[str, Any]], Reply],
    *,
    settings: dict[str, Any] | None = None,
    agents: int = 1,
    **fields: Any,
) -> Asked:
    """Asks one agent after the other; the result is the last one's. The last reply goes on for ever."""

    def reply(number: int, body: dict[str, Any]) -> Reply:
        return replies(number, body) if callable(replies) else replies[min(number, len(replies) - 1)]

    async def main() -> Asked:
        async with scripted_server(reply) as server:
            chosen = {"model": "small", "base_url": server.url, **FAST, **(settings or {})}
            provider = OpenAIProvider(OpenAISettings(**chosen))
            for _ in range(agents):
                result = await answer_of(provider, request_of(**fields))
            await server.until(lambda server: server.open == 0)
            return Asked(result, provider.stats, server.bodies, server.headers)

    return run_async(main())


# --- requests ---


def test_the_answer_is_the_text_of_all_chunks_and_usage_is_what_the_server_counted() -> None:
    asked = ask([text("fine as it is")])
    assert asked.result == AgentResult(text="fine as it is", usage=asked.result.usage)
    assert asked.result.usage is not None
    assert (asked.result.usage.input_tokens, asked.result.usage.output_tokens) == (10, 5)
    assert asked.bodies[0]["messages"] == [{"role": "user", "content": "judge this"}]
    assert asked.headers[0]["authorization"] == f"Bearer {KEY}"


def test_every_setting_reaches_the_server() -> None:
    asked = ask(
        [text("ok")],
        settings={
            "system_prompt": "Be brief.",
            "temperature": 0.5,
            "max_tokens": 77,
            "headers": {"X-Team": "audit"},
            "extra_body": {"top_k": 3},
        },
        model="large",
        options={"effort": "low"},
    )
    body = asked.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["model"], body["temperature"], body["max_tokens"], body["top_k"]) == ("large", 0.5, 77, 3)
    assert body["reasoning_effort"] == "low"
    assert asked.headers[0]["x-team"] == "audit"


def test_a_server_without_a_key_gets_no_authorization_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-not-for-this-server")
    asked = ask([text("ok")])
    assert asked.result.text == "ok"
    assert "authorization" not in asked.headers[0]


# --- retries ---


def test_a_rate_limited_request_waits_at_least_as_long_as_retry_after_says() -> None:
    asked = ask([error(429, "slow down", Retry_After="0.2"), text("ok")], settings={"max_retry_delay": 5})
    assert asked.result.text == "ok"
    assert (asked.stats.requests, asked.stats.retries, asked.stats.rate_limited) == (2, 1, 1)
    assert asked.stats.retry_seconds >= 0.2


def test_waits_grow_vary_and_never_exceed_their_limit() -> None:
    provider = OpenAIProvider(OpenAISettings(model="m", retry_delay=1, max_retry_delay=20))
    provider.random = random.Random(7)
    waits = [provider.wait_before_retry(retry, None) for retry in (1, 2, 3, 4, 5, 90)]
    for retry, wait in enumerate(waits[:5]):
        assert 2**retry / 2 <= wait <= 2**retry
    assert 10 <= waits[5] <= 20
    assert len(set(waits)) == len(waits)
    assert 3 <= provider.wait_before_retry(1, 3.0) <= 3.75
    assert provider.wait_before_retry(1, 86_400.0) == 20


def test_an_answer_lost_in_the_middle_is_asked_for_again_and_not_glued_together() -> None:
    half = msgspec.structs.replace(text("only half"), end="drop", events=text("only half").events[:1])
    asked = ask([half, text("the whole")])
    assert asked.result.text == "the whole"
    assert (asked.stats.retries, asked.stats.connections) == (1, 1)


def test_a_stream_that_ends_without_saying_why_is_asked_for_again() -> None:
    asked = ask([text("cut", finish=None), text("the whole")])
    assert asked.result.text == "the whole"
    assert asked.stats.connections == 1


@pytest.mark.parametrize("events", [("{not json",), ("[1, 2]",), ('{"choices": [{"delta": 5}]}',), ("null",), ()])
def test_an_answer_that_is_no_stream_of_chunks_is_retried_and_then_a_failure(events: tuple[str, ...]) -> None:
    asked = ask([Reply(events=events)], settings={"max_retries": 2})
    assert asked.result.stop_reason == "error"
    assert "after 2 retries" in (asked.result.error or "")
    assert (asked.stats.requests, asked.stats.connections) == (3, 2)


def test_an_error_inside_the_stream_is_retried_as_what_it_is() -> None:
    asked = ask([Reply(events=('{"error": {"message": "out of memory", "code": 500}}',)), text("ok")])
    assert asked.result.text == "ok"
    assert asked.stats.server_errors == 1


def test_the_failure_says_what_happened_and_how_often_it_was_tried() -> None:
    asked = ask([error(503, "overloaded")], settings={"max_retries": 3})
    assert asked.result.stop_reason == "error"
    assert (asked.result.error or "").endswith("failed (503: overloaded), after 3 retries")
    assert asked.stats.requests == 4


def test_a_server_that_is_not_there_is_an_ordinary_failure() -> None:
    async def main() -> AgentResult:
        async with scripted_server(lambda _number, _body: text("")) as server:
            url = server.url
        return await answer_of(
            OpenAIProvider(OpenAISettings(model="m", base_url=url, max_retries=1, **FAST)), request_of()
        )

    result = run_async(main())
    assert result.stop_reason == "error"
    assert "check base_url and that it is running, after 1 retry" in (result.error or "")


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (401, f"Incorrect API key provided: {KEY}", "refused the API key (401: Incorrect API key provided: …)"),
        (404, "no such model", "has no model 'small' (404: no such model); check model and base_url"),
        (400, "too long", "refused the request (400: too long)"),
        (429, "insufficient_quota: pay first", "the quota at"),
    ],
)
def test_what_a_retry_cannot_change_fails_at_once_without_showing_the_key(
    status: int, message: str, expected: str
) -> None:
    asked = ask([error(status, message)])
    assert asked.result.stop_reason == "error"
    assert expected in (asked.result.error or "")
    assert KEY not in (asked.result.error or "")
    assert asked.stats.requests == 1


# --- answers that are none ---


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (text("half a sent", finish="length"), "raise max_tokens"),
        (text("", finish="content_filter"), "content filter"),
        (text("  "), "answered nothing"),
        (Reply(events=('{"choices": [{"delta": {"refusal": "No."}, "finish_reason": "stop"}]}',)), "refused: No."),
    ],
)
def test_an_answer_that_is_none_is_an_ordinary_failure_with_its_cost(reply: Reply, expected: str) -> None:
    asked = ask([reply])
    assert asked.result.stop_reason == "error"
    assert expected in (asked.result.error or "")


# --- structured answers ---


def test_a_schema_goes_to_the_server_as_response_format() -> None:
    asked = ask([text('{"verdict": "good"}')], schema=SCHEMA)
    assert asked.result.structured == {"verdict": "good"}
    assert asked.bodies[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert asked.bodies[0]["messages"] == [{"role": "user", "content": "judge this"}]


def test_an_invalid_answer_is_told_its_errors_in_the_same_conversation() -> None:
    asked = ask([text('{"verdict": "ugly"}'), text("none"), text('{"verdict": "bad"}')], schema=SCHEMA)
    assert asked.result.structured == {"verdict": "bad"}
    assert asked.result.usage is not None
    assert (asked.result.usage.input_tokens, asked.result.usage.output_tokens) == (30, 15)
    roles = [message["role"] for message in asked.bodies[2]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    first_feedback = asked.bodies[1]["messages"][2]["content"]
    assert "$.verdict" in first_feedback
    assert "ugly" in first_feedback
    assert (
        '"enum":["good","bad"]' in asked.bodies[1]["messages"][0]["content"]
    )  # a schema that was ignored is spelt out
    assert asked.stats.invalid_answers == 2


def test_an_answer_that_stays_invalid_fails_with_what_is_wrong() -> None:
    asked = ask([text('{"verdict": "ugly"}')], settings={"structured_retries": 1}, schema=SCHEMA)
    assert asked.result.stop_reason == "error"
    assert "after 2 attempts: $.verdict" in (asked.result.error or "")
    assert (asked.stats.requests, asked.stats.invalid_answers) == (2, 2)
    assert asked.result.usage is not None
    assert asked.result.usage.output_tokens == 10


def refuses_schemas(_number: int, body: dict[str, Any]) -> Reply:
    kind = body.get("response_format", {}).get("type")
    if kind in ("json_schema", "json_object"):
        return error(400, f"response_format of type {kind} is not supported")
    return text('Sure!\n```json\n{"verdict": "good"}\n```')


def test_a_server_that_refuses_response_format_is_asked_in_words_from_then_on() -> None:
    asked = ask(refuses_schemas, schema=SCHEMA, agents=2)
    assert asked.result.structured == {"verdict": "good"}
    assert [body.get("response_format", {}).get("type") for body in asked.bodies] == [
        "json_schema",
        "json_object",
        None,
        None,
    ]
    assert '"enum":["good","bad"]' in asked.bodies[-1]["messages"][0]["content"]
    assert (asked.stats.fallbacks, asked.stats.retries) == (2, 0)


def test_a_refusal_that_is_not_about_the_format_changes_nothing_for_later_agents() -> None:
    def reply(number: int, _body: dict[str, Any]) -> Reply:
        return error(400, "the prompt is too long") if number < 3 else text('{"verdict": "good"}')

    asked = ask(reply, schema=SCHEMA, agents=2)
    assert asked.result.structured == {"verdict": "good"}
    assert asked.bodies[3]["response_format"]["type"] == "json_schema"


def test_a_model_that_is_not_there_is_not_asked_for_in_other_ways() -> None:
    asked = ask([error(404, "no such model")], schema=SCHEMA)
    assert "has no model 'small'" in (asked.result.error or "")
    assert asked.stats.requests == 1


def test_a_mode_that_was_chosen_is_kept() -> None:
    asked = ask(refuses_schemas, settings={"structured": "json_schema"}, schema=SCHEMA)
    assert asked.result.stop_reason == "error"
    assert asked.stats.requests == 1


def test_a_server_that_cannot_count_tokens_is_not_asked_to() -> None:
    def reply(_number: int, body: dict[str, Any]) -> Reply:
        return error(400, "unknown field stream_options") if "stream_options" in body else text("ok", usage=None)

    asked = ask(reply, agents=2)
    assert asked.result == AgentResult(text="ok")
    assert ["stream_options" in body for body in asked.bodies] == [True, False, False]


# --- limits and ends ---


def test_an_agent_that_shows_no_sign_of_life_fails_and_its_connection_is_closed() -> None:
    hanging = Reply(events=text("begun").events[:1], end="hang")
    asked = ask([hanging], options={"stallMs": 50})
    assert asked.result.error == "no sign of life for 0.05 s (stallMs)"
    assert asked.stats.requests == 1


def test_an_answer_that_takes_longer_than_the_timeout_is_a_failure() -> None:
    asked = ask([Reply(end="hang")], settings={"timeout": 0.05})
    assert asked.result.error == "no complete answer within 0.05 s (timeout)"


@pytest.mark.parametrize("replied", [Reply(end="hang"), Reply(events=text("begun").events[:1], end="hang")])
def test_an_abort_closes_the_connection_while_the_server_still_writes(replied: Reply) -> None:
    async def main() -> tuple[AgentResult, OpenAIStats]:
        async with scripted_server(lambda _number, _body: replied) as server:
            controller = AbortController()
            provider = OpenAIProvider(OpenAISettings(model="m", base_url=server.url))
            run = await provider.start(request_of(signal=controller.signal))
            await server.until(lambda server: len(server.bodies) == 1)
            await asyncio.to_thread(controller.abort, "enough")
            result = await run.result
            await run.dispose()
            await server.until(lambda server: server.open == 0)
            assert controller.signal.listener_count == 0
            return result, provider.stats

    result, stats = run_async(main())
    assert (result.stop_reason, result.error) == ("cancelled", "aborted: enough")
    assert stats.active == 0


def test_an_abort_ends_the_wait_before_a_retry() -> None:
    class Announcing(OpenAIProvider):
        def wait_before_retry(self, retry: int, asked: float | None) -> float:
            waits.set()
            return super().wait_before_retry(retry, asked)

    waits = asyncio.Event()

    async def main() -> AgentResult:
        async with scripted_server(lambda _number, _body: error(429, "later", Retry_After="60")) as server:
            controller = AbortController()
            run = await Announcing(OpenAISettings(model="m", base_url=server.url)).start(
                request_of(signal=controller.signal)
            )
            await waits.wait()
            controller.abort("enough")
            result = await run.result
            await run.dispose()
            return result

    assert run_async(main(), timeout=20).stop_reason == "cancelled"


def test_closing_the_provider_ends_what_still_runs() -> None:
    async def main() -> None:
        async with scripted_server(lambda _number, _body: Reply(end="hang")) as server:
            provider = OpenAIProvider(OpenAISettings(model="m", base_url=server.url))
            await asyncio.gather(*[provider.start(request_of()) for _ in range(3)])
            await server.until(lambda server: server.open == 3)
            await provider.aclose()
            await server.until(lambda server: server.open == 0)
            assert provider.stats.active == 0

    run_async(main())


def test_connections_are_kept_while_an_agent_is_at_work_and_none_outlives_the_last() -> None:
    def reply(number: int, _body: dict[str, Any]) -> Reply:
        return Reply(end="hang") if number == 0 else text("ok")

    async def main() -> None:
        async with scripted_server(reply) as server:
            provider = OpenAIProvider(OpenAISettings(model="m", base_url=server.url))
            at_work = await provider.start(request_of())
            await server.until(lambda server: len(server.bodies) == 1)
            for _ in range(3):
                assert (await answer_of(provider, request_of())).text == "ok"
            assert server.accepted == 2
            await at_work.dispose()
            await server.until(lambda server: server.open == 0)
            assert (await answer_of(provider, request_of())).text == "ok"  # and it can be used again
            await server.until(lambda server: server.open == 0)

    run_async(main())


# --- what cannot start, and settings ---


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        ({}, {}, "knows no model"),
        ({"model": "m"}, {"options": {"stallMs": -1}}, "stallMs of more than 0"),
        ({"model": "m"}, {"options": {"effort": 3}}, "effort that is a string"),
        ({"model": "m", "api_key_env": "NOT_SET_HERE"}, {}, "set the environment variable NOT_SET_HERE"),
    ],
)
def test_what_cannot_start_at_all_refuses_to(settings: dict[str, Any], fields: dict[str, Any], expected: str) -> None:
    async def main() -> None:
        await OpenAIProvider(OpenAISettings(**settings)).start(request_of(**fields))

    with pytest.raises(WorkflowError, match=expected):
        run_async(main())


@pytest.mark.parametrize(
    ("spec", "model", "base_url"),
    [
        ("gpt-5-mini", "gpt-5-mini", None),
        ("gemma@http://127.0.0.1:8080/v1", "gemma", "http://127.0.0.1:8080/v1"),
        ("@cf/meta/llama@https://example.com/v1", "@cf/meta/llama", "https://example.com/v1"),
    ],
)
def test_the_short_form_names_a_model_and_a_server(spec: str, model: str, base_url: str | None) -> None:
    assert openai_settings_from_spec(spec) == OpenAISettings(model=model, base_url=base_url)


@pytest.mark.parametrize("spec", ["", " ", "@http://127.0.0.1/v1", "m@http://"])
def test_a_short_form_that_names_nothing_says_what_to_write(spec: str) -> None:
    with pytest.raises(ValueError, match="openai:MODEL@http://HOST:PORT/v1"):
        openai_settings_from_spec(spec)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"modle": "m"}, "modle"),
        ({"max_retries": -1}, "max_retries must be a count from 0 to 100"),
        ({"max_retries": "many"}, r"\$\.max_retries"),
        ({"base_url": "localhost:8080"}, "base_url must be an http"),
        ({"api_key_env": "sk-123"}, "api_key_env must be the name of an environment variable"),
        ({"structured": "xml"}, r"\$\.structured"),
        ({"extra_body": {"stream": False}}, "extra_body must be members other than"),
    ],
)
def test_a_senseless_setting_is_named_with_what_it_accepts(table: dict[str, Any], expected: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=expected):
        msgspec.convert(table, OpenAISettings)


def test_the_documentation_names_every_setting_and_its_table_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "openai.md").read_text("utf-8")
    assert [name for name in OpenAISettings.__struct_fields__ if f"`{name}`" not in page] == []
    file = tmp_path / "workflow.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0], "utf-8")
    assert read_workflow_file(file).agents["reviewer"].settings == OpenAISettings(
        model="gpt-5-mini", system_prompt="You review Python code. Be brief.", max_tokens=2000
    )


def test_without_the_extra_the_provider_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        """Hides the package from the import system, as if it were not installed."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "openai":
                raise ModuleNotFoundError("No module named 'openai'", name="openai")

    for name in [name for name in sys.modules if name.partition(".")[0] == "openai"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'workflow-orchestrator\[openai\]'$"):
        OpenAIProvider(OpenAISettings(model="m"))
