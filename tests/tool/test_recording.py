"""What a run leaves in its caller's session, whatever fails on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.sessions import DEFAULT_RULES, MemorySessionLog, SessionEvent
from orchestrator.tool import ToolDefinition, ToolExecution, record_tool_calls, replay_calls
from tests.conftest import run_async
from tests.tool.fakes import ARGUMENTS, CallingAgent, FakeEngine, Mounted, Story

STORY = Story()
FULL = [
    ("tool-workflow/run-start", {"runId": "run-1", "name": "demo"}),
    ("tool-workflow/agent-start", {"runId": "run-1", "seq": 1, "label": "a", "phase": "P", "childId": "child-1"}),
    ("tool-workflow/agent-end", {"runId": "run-1", "seq": 1, "outcome": "failed"}),
    ("tool-workflow/run-end", {"runId": "run-1", "stopReason": "completed"}),
]


def one_agent(settle: bool = True) -> FakeEngine:
    """A run whose agent starts and fails after ``start`` returned."""

    def start(engine: FakeEngine, _request: Any, run: Any) -> None:
        def live() -> None:
            engine.events.emit(STORY.agent(1, "a", "P"), STORY.log("x"), STORY.agent_end(1, "failed", "a", "P"))
            engine.events.emit(STORY.end("completed", 1))
            run.settle(value="v", agents_started=1)

        engine.events.emit(STORY.start(), STORY.phase("P"))
        asyncio.get_running_loop().call_soon(live)

    return FakeEngine(start)


class FailingSession(MemorySessionLog):
    """Refuses the appends of one kind."""

    def __init__(self, kind: str, error: Exception) -> None:
        super().__init__("s1", DEFAULT_RULES)
        self.kind, self.error, self.attempts = kind, error, 0

    def append(self, type: str, data: Mapping[str, Any]) -> SessionEvent:  # noqa: A002
        self.attempts += 1
        if type == self.kind:
            raise self.error
        return super().append(type, data)


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_top_level_call_writes_the_four_records_with_exactly_their_fields() -> None:
    agent = CallingAgent()
    result = run_async(Mounted(one_agent()).call(agent=agent))
    assert not result.is_error
    assert agent.records == FULL


def test_a_member_outside_every_phase_has_no_phase_field() -> None:
    agent = CallingAgent()
    engine = FakeEngine(lambda engine, _request, run: (engine.events.emit(STORY.start(), STORY.agent(1)), run.settle()))
    engine_dispose = engine.on_start

    def start(engine: FakeEngine, request: Any, run: Any) -> None:
        assert engine_dispose is not None
        engine_dispose(engine, request, run)
        engine.events.emit(STORY.agent_end(1), STORY.end("completed", 1))

    engine.on_start = start
    run_async(Mounted(engine).call(agent=agent))
    assert agent.records[1] == (
        "tool-workflow/agent-start",
        {"runId": "run-1", "seq": 1, "label": "work", "childId": "child-1"},
    )


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("error", [OSError("disk full"), Unshowable()])
def test_the_first_append_that_fails_ends_the_recording_with_one_warning_and_changes_nothing_else(
    at: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    kind = FULL[at][0]
    session = FailingSession(kind, error)
    mounted = Mounted(one_agent())
    result = run_async(mounted.call(agent=CallingAgent(session=session)))
    undisturbed = run_async(Mounted(one_agent()).call(agent=CallingAgent()))
    assert (result.content, result.value) == (undisturbed.content, undisturbed.value)
    assert [(event.type, event.data) for event in session.events] == FULL[:at]
    assert session.attempts == at + 1
    warnings = [record for record in caplog.records if "no longer recorded" in record.message]
    assert len(warnings) == 1
    shown = "disk full" if isinstance(error, OSError) else "[an error that cannot be shown]"
    assert warnings[0].message == f"run run-1 is no longer recorded: appending {kind} to its session failed: {shown}"
    assert mounted.tool.progress.held == 0


def test_the_end_of_a_run_is_written_only_after_its_disposal_reached_rest() -> None:
    agent = CallingAgent()
    seen: list[list[str]] = []

    def start(engine: FakeEngine, _request: Any, run: Any) -> None:
        async def dispose() -> None:
            seen.append([kind for kind, _ in agent.records])
            await asyncio.sleep(0)
            seen.append([kind for kind, _ in agent.records])

        run.on_dispose = dispose
        run.settle()

    run_async(Mounted(FakeEngine(start)).call(agent=agent))
    assert seen == [["tool-workflow/run-start"]] * 2
    assert agent.records[-1][0] == "tool-workflow/run-end"


def test_a_nested_call_runs_as_usual_and_writes_nothing() -> None:
    agent = CallingAgent()
    mounted = Mounted(one_agent())

    async def outer(_arguments: Any, execution: ToolExecution) -> Any:
        return await mounted.call(agent=execution.agent, call_id="nested", parent=execution)

    mounted.registry.register(ToolDefinition(name="outer", description="", parameters={}, execute=outer))
    result = run_async(mounted.registry.call("outer", {}, session_id="s1", call_id="c1", agent=agent))
    assert result.text == 'workflow "demo" completed (1 agent).\nReturn value:\n"v"'
    assert len(mounted.views) > 1
    assert agent.records == []


@pytest.mark.parametrize("agent", ["a name", object(), CallingAgent(session=5)])
def test_a_caller_without_a_session_costs_the_records_alone(agent: Any) -> None:
    assert not run_async(Mounted(one_agent()).call(agent=agent)).is_error


def test_a_run_that_start_refused_leaves_no_record() -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no")

    agent = CallingAgent()
    run_async(Mounted(FakeEngine(refuse)).call(agent=agent))
    assert agent.records == []


# ------------------------------------------------------------------------------------------------- transcript, replay


def test_a_replay_shows_the_card_and_the_final_result_and_no_progress() -> None:
    agent = CallingAgent()
    mounted = Mounted(one_agent())
    remove = record_tool_calls(mounted.registry.events, {"s1": agent.session}.get)
    run_async(mounted.call(agent=agent))
    remove()
    run_async(mounted.call({**ARGUMENTS, "script": 5}, agent=agent, call_id="c2"))
    (call,) = replay_calls(agent.session.events)
    assert (call.call_id, call.tool, call.status) == ("c1", "workflow", "completed")
    assert (call.card.title, call.card.raw_input) == ("workflow: demo", "return 1")
    assert call.content[0].text.startswith('workflow "demo" completed')  # type: ignore[union-attr]
    assert [kind for kind, _ in agent.records] == ["tool/call", *(kind for kind, _ in FULL), "tool/result"]


def test_a_run_that_errors_before_it_exists_replays_as_a_failed_card() -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("workflow script does not parse: oops (line 1, column 1)")

    agent = CallingAgent()
    mounted = Mounted(FakeEngine(refuse))
    record_tool_calls(mounted.registry.events, {"s1": agent.session}.get)
    run_async(mounted.call(agent=agent))
    (call,) = replay_calls(agent.session.events)
    assert call.status == "failed"
    assert call.content[0].text == "Error: workflow script does not parse: oops (line 1, column 1)"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["tool/call", "tool/result"])
def test_a_card_that_cannot_be_stored_changes_no_result_and_leaves_a_legal_history(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = FailingSession(kind, OSError("disk full"))
    mounted = Mounted(one_agent())
    record_tool_calls(mounted.registry.events, lambda _session_id: session)
    assert not run_async(mounted.call(agent=CallingAgent(session=session))).is_error
    kinds = [event.type for event in session.events]
    assert kinds == ([] if kind == "tool/call" else ["tool/call"]) + [name for name, _ in FULL]
    assert "call c1 is not recorded in session 's1': disk full" in caplog.text


def test_a_history_that_was_cut_anywhere_replays_as_pending_until_its_result() -> None:
    agent = CallingAgent()
    mounted = Mounted(one_agent())
    record_tool_calls(mounted.registry.events, {"s1": agent.session}.get)
    run_async(mounted.call(agent=agent))
    events = agent.session.events
    for length in range(1, len(events)):
        (call,) = replay_calls(events[:length])
        assert (call.status, call.content) == ("pending", ())
    assert replay_calls(events)[0].status == "completed"
