"""The ACP bridge over a tool registry: what one client is sent, in which order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.acp import AcpBridge, replay_updates
from orchestrator.sessions import MemorySessionLog
from orchestrator.tool import (
    ImageContent,
    ProgressView,
    TextContent,
    ToolCallIdentity,
    ToolCallStarted,
    ToolCard,
    ToolEvents,
    ToolLocation,
    ToolProgressed,
    ToolResult,
    ToolResultCard,
    ToolSettled,
)
from tests.conftest import run_async
from tests.tool.fakes import until

Sent = list[tuple[str, dict[str, Any]]]


class Client:
    """Keeps what it is sent. ``gate`` holds it back, ``error`` is raised instead."""

    def __init__(self) -> None:
        self.sent: Sent = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.attempts = 0

    async def session_update(self, session_id: str, update: Any) -> None:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append((session_id, update.model_dump(mode="json", by_alias=True, exclude_none=True)))

    def of(self, session_id: str) -> list[dict[str, Any]]:
        return [update for session, update in self.sent if session == session_id]

    @property
    def steps(self) -> list[str]:
        """Each update in a word: pending, its progress text, or its final status."""
        words: list[str] = []
        for _session, update in self.sent:
            text = "".join(block["content"].get("text", "") for block in update.get("content", []))
            words.append(text if update.get("status") == "in_progress" else update["status"])
        return words


def identity(call: str = "c", session: str = "s") -> ToolCallIdentity:
    return ToolCallIdentity(session, call, "t")


class Calls:
    """Emits the events of calls, as a registry does."""

    def __init__(self, events: ToolEvents) -> None:
        self.events = events

    def start(self, call: str = "c", session: str = "s", **card: Any) -> None:
        self.events.emit(ToolCallStarted(identity=identity(call, session), card=ToolCard(**{"title": "t", **card})))

    def report(self, text: str, call: str = "c", session: str = "s", **view: Any) -> None:
        made = ProgressView(content=(TextContent(text),), **view)
        self.events.emit(ToolProgressed(identity=identity(call, session), view=made))

    def settle(self, text: str = "done", call: str = "c", session: str = "s", error: bool = False, **card: Any) -> None:
        result = ToolResult(content=(TextContent(text),), is_error=error)
        self.events.emit(ToolSettled(identity=identity(call, session), result=result, card=ToolResultCard(**card)))


def bridged(test: Callable[[Calls, Client, AcpBridge], Any], **settings: Any) -> None:
    async def main() -> None:
        events, client = ToolEvents(), Client()
        bridge = AcpBridge(events, client, **settings)
        await test(Calls(events), client, bridge)
        await bridge.aclose()
        assert events.listener_count == 0

    run_async(main())


def test_a_call_is_a_pending_card_updates_in_progress_and_a_final_update() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start(
            title="workflow: demo",
            kind="execute",
            raw_input={"a": 1},
            locations=(ToolLocation("/a.py", 3), ToolLocation("/b")),
        )
        calls.report("one", title="better")
        calls.report("two")
        calls.settle("fine")
        await bridge.flush("s")
        text = {"type": "content", "content": {"type": "text"}}
        assert client.of("s") == [
            {
                "sessionUpdate": "tool_call", "toolCallId": "c", "title": "workflow: demo", "kind": "execute",
                "status": "pending", "rawInput": {"a": 1}, "locations": [{"path": "/a.py", "line": 3}, {"path": "/b"}],
            },
            {
                "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress", "title": "better",
                "content": [{**text, "content": {"type": "text", "text": "one"}}],
            },
            {
                "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress",
                "content": [{**text, "content": {"type": "text", "text": "two"}}],
            },
            {
                "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
                "content": [{**text, "content": {"type": "text", "text": "fine"}}],
            },
        ]  # fmt: skip

    bridged(test, coalesce_seconds=0)


def test_an_error_is_a_failed_card_with_its_text() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start()
        calls.settle("Error: workflow run was cancelled (because)", error=True)
        await bridge.flush("s")
        final = client.of("s")[-1]
        assert final["status"] == "failed"
        assert final["content"][0]["content"]["text"] == "Error: workflow run was cancelled (because)"

    bridged(test)


def test_the_result_card_may_replace_title_and_content() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start()
        calls.settle("for the model", title="done", content=(ImageContent("AA==", "image/png"),))
        await bridge.flush("s")
        final = client.of("s")[-1]
        assert final["title"] == "done"
        assert final["content"][0]["content"] == {"type": "image", "data": "AA==", "mimeType": "image/png"}

    bridged(test)


def test_nothing_is_sent_for_a_call_that_was_not_announced_or_is_over() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.report("never announced")
        calls.settle(call="never announced either")
        calls.start()
        calls.report("other", call="unknown")
        calls.settle()
        calls.report("late")
        calls.settle("twice")
        calls.start()
        calls.report("again")
        await bridge.flush("s")
        assert client.steps == ["pending", "completed"]

    bridged(test, coalesce_seconds=0)


def test_reports_between_two_sends_are_coalesced_and_the_last_one_comes_before_the_result() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start()
        calls.report("first")
        await bridge.flush("s")
        for number in range(100):
            calls.report(f"report {number}")
        await bridge.flush("s")
        assert client.steps == ["pending", "first"]
        calls.settle()
        await bridge.flush("s")
        assert client.steps == ["pending", "first", "report 99", "completed"]

    bridged(test, coalesce_seconds=60)


def test_a_settled_call_and_a_closed_session_leave_no_timer_armed() -> None:
    def armed() -> int:
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(not handle.cancelled() for handle in scheduled)

    async def test(calls: Calls, _client: Client, bridge: AcpBridge) -> None:
        before = armed()
        for call in ("settled", "closed"):
            calls.start(call)
            calls.report("first", call)
            await bridge.flush("s")
            calls.report("second", call)
        assert armed() == before + 2
        calls.settle(call="settled")
        assert armed() == before + 1
        await bridge.close_session("s")
        assert armed() == before

    bridged(test, coalesce_seconds=60)


def test_a_coalesced_report_is_sent_without_another_one_when_its_time_comes() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start()
        calls.report("first")
        await bridge.flush("s")
        calls.report("second")
        calls.report("third")
        await until(lambda: len(client.sent) == 3)
        assert client.steps == ["pending", "first", "third"]

    bridged(test, coalesce_seconds=0.01)


@pytest.mark.parametrize("coalesce", [0, 0.1])
def test_a_client_that_does_not_read_costs_a_bounded_backlog_and_sees_the_last_report(coalesce: float) -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        client.gate = asyncio.Event()
        calls.start()
        for number in range(10_000):
            calls.report(f"report {number}")
            if number % 100 == 0:
                await asyncio.sleep(0)
        calls.settle()
        client.gate.set()
        await bridge.flush("s")
        assert client.steps[0] == "pending"
        assert client.steps[-2:] == ["report 9999", "completed"]
        assert len(client.sent) < 100
        numbers = [int(step.split()[1]) for step in client.steps[1:-1]]
        assert numbers == sorted(set(numbers))

    bridged(test, coalesce_seconds=coalesce)


def test_sessions_do_not_cross_and_do_not_wait_for_each_other() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        for session in ("red", "blue"):
            calls.start("same", session, title=session)
        for number in range(3):
            for session in ("blue", "red"):
                calls.report(f"{session} {number}", "same", session)
        calls.settle("red done", "same", "red")
        calls.report("blue goes on", "same", "blue")
        calls.settle("blue done", "same", "blue")
        await asyncio.gather(bridge.flush("red"), bridge.flush("blue"))
        for session, other in (("red", "blue"), ("blue", "red")):
            updates = client.of(session)
            assert other not in json.dumps(updates)
            assert [update["status"] for update in updates][-1] == "completed"
            assert updates[0]["sessionUpdate"] == "tool_call"
        assert len(client.of("blue")) == len(client.of("red")) + 1

    bridged(test, coalesce_seconds=0)


@pytest.mark.parametrize("error", [ConnectionError("gone"), BrokenPipeError(), RuntimeError("a bug")])
def test_a_client_that_is_gone_costs_one_attempt_and_holds_nobody_up(error: Exception) -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        client.error = error
        calls.start()
        calls.report("x")
        calls.settle()
        await bridge.flush("s")
        calls.start("c2")
        calls.settle(call="c2")
        bridge.say("s", "hello?")
        await bridge.flush("s")
        assert (client.sent, client.attempts) == ([], 1)

    bridged(test, coalesce_seconds=0)


@pytest.mark.parametrize("close", ["session", "bridge"])
def test_closing_sends_nothing_more_even_while_a_send_is_held_up(close: str) -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        client.gate = asyncio.Event()
        calls.start()
        calls.report("x")
        await until(lambda: client.attempts == 1)
        await (bridge.close_session("s") if close == "session" else bridge.aclose())
        client.gate.set()
        calls.report("y")
        calls.settle()
        await bridge.flush("s")
        assert client.sent == []

    bridged(test)


def test_calls_of_somebody_elses_sessions_are_not_shown() -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start(session="mine")
        calls.start(session="theirs")
        calls.settle(session="theirs")
        await bridge.flush("acp-mine")
        assert [session for session, _ in client.sent] == ["acp-mine"]
        assert client.of("acp-mine")[0]["toolCallId"] == "acp-c"

    bridged(test, resolve=lambda who: ("acp-mine", f"acp-{who.call_id}") if who.session_id == "mine" else None)


@pytest.mark.parametrize("value", [-1, 61, True, "1", None, float("nan")])
def test_a_senseless_coalescing_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="coalesce_seconds must be a number from 0 to 60"):
        AcpBridge(ToolEvents(), Client(), coalesce_seconds=value)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (None, None),
        ("half \ud83d", "half \ufffd"),
        ({"a": ["\ud83d", 1.5, None]}, {"a": ["\ufffd", 1.5, None]}),
        ({"a": {1, 2}}, "[dict: not JSON]"),
        (float("nan"), "[float: not JSON]"),
        (object, "[type: not JSON]"),
    ],
)
def test_every_raw_input_is_shown_in_a_form_that_clients_can_read(raw: Any, shown: Any) -> None:
    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start(raw_input=raw, kind="no kind of ACP's", title="half \ud83d")
        await bridge.flush("s")
        (update,) = client.of("s")
        assert update.get("rawInput") == shown
        assert (update["kind"], update["title"]) == ("other", "half \ufffd")

    bridged(test)


def test_a_raw_input_too_deep_for_clients_is_shown_as_text() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]

    async def test(calls: Calls, client: Client, bridge: AcpBridge) -> None:
        calls.start(raw_input=deep)
        calls.start("c2", raw_input=[[1]])
        await bridge.flush("s")
        assert [type(update["rawInput"]) for update in client.of("s")] == [str, list]

    bridged(test)


def test_a_replay_is_messages_cards_and_results_in_their_order() -> None:
    log = MemorySessionLog("s")
    log.append("session/user-message", {"text": "run it"})
    log.append("tool/call", {"callId": "a", "tool": "t", "card": {"title": "A", "raw_input": "x"}})
    log.append("tool-workflow/run-start", {"runId": "r", "name": "n"})
    log.append("tool/result", {"callId": "a", "status": "failed", "content": [{"type": "text", "text": "Error: no"}]})
    log.append("session/agent-message", {"text": "it failed"})
    log.append("tool/call", {"callId": "b", "tool": "t", "card": {"title": "B"}})
    shown = [
        (update.session_update, getattr(update, "tool_call_id", None), getattr(update, "status", None))
        for update in replay_updates(log.events)
    ]
    assert shown == [
        ("user_message_chunk", None, None),
        ("tool_call", "a", "pending"),
        ("tool_call_update", "a", "failed"),
        ("agent_message_chunk", None, None),
        ("tool_call", "b", "pending"),
    ]
