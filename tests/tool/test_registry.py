"""The tool registry with tools of its own: results, progress, listeners, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import AbortController
from orchestrator.tool import (
    ImageContent,
    ProgressView,
    TextContent,
    ToolCallStarted,
    ToolCard,
    ToolDefinition,
    ToolError,
    ToolEvent,
    ToolExecution,
    ToolOutput,
    ToolProgressed,
    ToolRegistry,
    ToolResult,
    ToolResultCard,
    ToolSettled,
)
from tests.conftest import run_async
from tests.tool.fakes import until


def tool(execute: Callable[..., Any], **fields: Any) -> ToolDefinition:
    async def run(arguments: Any, execution: ToolExecution) -> Any:
        answer = execute(arguments, execution)
        return await answer if asyncio.iscoroutine(answer) else answer

    return ToolDefinition(name="t", description="a tool", parameters={"type": "object"}, execute=run, **fields)


def registry_of(execute: Callable[..., Any], **fields: Any) -> tuple[ToolRegistry, list[ToolEvent]]:
    registry = ToolRegistry()
    registry.register(tool(execute, **fields))
    events: list[ToolEvent] = []
    registry.events.subscribe(events.append)
    return registry, events


async def call(registry: ToolRegistry, arguments: Any = None, **fields: Any) -> ToolResult:
    name = fields.pop("name", "t")
    return await registry.call(name, arguments or {}, **{"session_id": "s", "call_id": "c", **fields})


def outcome(execute: Callable[..., Any]) -> ToolResult:
    return run_async(call(registry_of(execute)[0]))


def raises(error: BaseException) -> Callable[..., Any]:
    def execute(*_: Any) -> Any:
        raise error

    return execute


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


# ------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("returned", "text", "value"),
    [
        ("hello", "hello", "hello"),
        ({"a": [1]}, '{"a":[1]}', {"a": [1]}),
        (None, "null", None),
        (ToolOutput(value=1, text="one"), "one", 1),
        (ToolOutput(text="t", content=(TextContent("u"),)), "t\nu", None),
        (ToolResult(content=(TextContent("as is"),), value=2), "as is", 2),
    ],
)
def test_whatever_a_tool_returns_becomes_a_result(returned: Any, text: str, value: Any) -> None:
    result = outcome(lambda *_: returned)
    assert (result.is_error, result.text, result.value) == (False, text, value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("send a list"), "Error: send a list"),
        (KeyError("x"), "Error: 'x'"),
        (ValueError(), "Error: ValueError"),
        (Unshowable(), "Error: [an error that cannot be shown]"),
        (RuntimeError("half \ud83d"), "Error: half \ufffd"),
        (asyncio.CancelledError(), "Error: the call of t was cancelled"),
    ],
)
def test_whatever_a_tool_raises_becomes_an_error_result(error: BaseException, text: str) -> None:
    result = outcome(raises(error))
    assert (result.is_error, result.text, result.value) == (True, text, None)


def test_a_return_value_that_is_not_json_is_an_error_result() -> None:
    result = outcome(lambda *_: object())
    assert result.is_error
    assert result.text.startswith("Error: the tool returned something that is not JSON")


def test_an_unknown_tool_is_an_error_result_that_names_the_tools_and_has_a_card() -> None:
    registry, events = registry_of(lambda *_: 1)
    result = run_async(call(registry, name="nope"))
    assert result.text == "Error: there is no tool 'nope'; the tools are: t"
    assert [event.type for event in events] == ["tools/call", "tools/result"]


def test_details_of_a_tool_error_reach_the_host_and_not_the_model() -> None:
    result = outcome(raises(ToolError("no", {"code": 7})))
    assert (result.text, result.details) == ("Error: no", {"code": 7})


# ------------------------------------------------------------------------------------------------- registration


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a.b"])
def test_a_name_no_provider_accepts_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters"):
        ToolDefinition(name=name, description="", parameters={}, execute=lambda *_: None)  # type: ignore[arg-type]


def test_a_name_is_registered_once_and_free_again_after_its_removal() -> None:
    registry = ToolRegistry()
    remove = registry.register(tool(lambda *_: 1))
    with pytest.raises(ValueError, match="registered already"):
        registry.register(tool(lambda *_: 2))
    remove()
    registry.register(tool(lambda *_: 3))
    remove()
    assert len(registry.definitions) == 1


# ------------------------------------------------------------------------------------------------- progress


def test_progress_lies_between_the_call_and_its_result_and_carries_the_identity() -> None:
    def execute(_arguments: Any, execution: ToolExecution) -> str:
        assert execution.active
        assert execution.report_progress(ProgressView(title="now", content=(TextContent("a"),)))
        assert execution.report_progress({"content": [{"type": "image", "data": "AA==", "mime_type": "image/png"}]})
        return "done"

    registry, events = registry_of(execute)
    run_async(call(registry, session_id="s7", call_id="c9"))
    assert [event.type for event in events] == ["tools/call", "tools/progress", "tools/progress", "tools/result"]
    assert {(e.identity.session_id, e.identity.call_id, e.identity.tool) for e in events} == {("s7", "c9", "t")}
    assert isinstance(events[2], ToolProgressed)
    assert events[2].view == ProgressView(content=(ImageContent("AA==", "image/png"),))


def test_a_report_after_the_result_is_refused_and_dispatches_nothing() -> None:
    kept: list[ToolExecution] = []
    registry, events = registry_of(lambda _arguments, execution: kept.append(execution) or "done")
    run_async(call(registry))
    assert kept[0].report_progress(ProgressView()) is False
    assert kept[0].report_progress("not even a view") is False  # type: ignore[arg-type]
    assert [event.type for event in events] == ["tools/call", "tools/result"]


@pytest.mark.parametrize("ending", ["return", "raise", "cancel"])
def test_a_report_while_the_result_is_handled_is_refused(ending: str) -> None:
    answers: list[bool] = []

    class Late:
        execution: ToolExecution

        def present_call(self, arguments: object) -> ToolCard:
            return ToolCard(title="t")

        def present_result(self, arguments: object, result: ToolResult) -> ToolResultCard:
            answers.append(self.execution.report_progress(ProgressView()))
            return ToolResultCard()

    late = Late()

    async def execute(_arguments: Any, execution: ToolExecution) -> str:
        late.execution = execution
        if ending == "raise":
            raise RuntimeError("no")
        if ending == "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return "done"

    registry, events = registry_of(execute, presenter=late)
    registry.events.subscribe(
        lambda event: (
            answers.append(late.execution.report_progress(ProgressView())) if isinstance(event, ToolSettled) else None
        )
    )

    async def main() -> None:
        task = asyncio.create_task(call(registry))
        await asyncio.wait({task})
        assert task.cancelled() == (ending == "cancel")

    run_async(main())
    assert answers == [False, False]
    assert [event.type for event in events] == ["tools/call", "tools/result"]


@pytest.mark.parametrize("view", [None, 5, "text", {"title": 5}, {"content": [{"type": "video"}]}, {"content": "x"}])
def test_what_is_no_view_is_refused_while_the_call_is_active(view: Any) -> None:
    result = outcome(lambda _arguments, execution: execution.report_progress(view))
    assert result.text.startswith("Error: a progress view has an optional title and content blocks")


def test_a_view_is_copied_so_that_its_reporter_cannot_change_it_later() -> None:
    def execute(_arguments: Any, execution: ToolExecution) -> str:
        view: dict[str, Any] = {"title": "one \ud83d", "content": [{"type": "text", "text": "a"}]}
        execution.report_progress(view)
        view["content"].append({"type": "text", "text": "b"})
        return "done"

    registry, events = registry_of(execute)
    run_async(call(registry))
    assert isinstance(events[1], ToolProgressed)
    assert events[1].view == ProgressView(title="one \ufffd", content=(TextContent("a"),))


# ------------------------------------------------------------------------------------------------- listeners


def test_listeners_that_raise_or_fail_later_are_logged_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        registry = ToolRegistry()
        registry.register(tool(lambda _a, execution: str(execution.report_progress(ProgressView()))))

        def raising(_event: ToolEvent) -> None:
            raise RuntimeError("at once")

        async def failing(_event: ToolEvent) -> None:
            await asyncio.sleep(0)
            raise RuntimeError("later")

        seen: list[str] = []
        for listener in (raising, failing, lambda event: seen.append(event.type)):
            registry.events.subscribe(listener)
        result = await call(registry)
        assert result.text == "True"
        assert seen == ["tools/call", "tools/progress", "tools/result"]
        await registry.aclose()

    run_async(main())
    assert caplog.text.count("RuntimeError: at once") == 3
    assert caplog.text.count("RuntimeError: later") == 3


def test_an_async_listener_handles_one_event_after_the_other() -> None:
    async def main() -> None:
        registry = ToolRegistry()
        registry.register(tool(lambda _a, execution: [execution.report_progress({}) for _ in range(3)]))
        log: list[str] = []

        async def slow(event: ToolEvent) -> None:
            log.append(f"> {event.type}")
            await asyncio.sleep(0)
            log.append(f"< {event.type}")

        registry.events.subscribe(slow)
        await call(registry)
        await registry.aclose()
        types = ["tools/call", "tools/progress", "tools/progress", "tools/progress", "tools/result"]
        assert log == [f"{mark} {kind}" for kind in types for mark in "><"]

    run_async(main())


def test_an_async_listener_that_never_ends_is_cancelled_when_the_registry_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        registry = ToolRegistry()
        registry.register(tool(lambda *_: 1))
        ended: list[str] = []

        async def stuck(event: ToolEvent) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(event.type)

        registry.events.subscribe(stuck)
        await call(registry)
        await asyncio.sleep(0)
        assert await registry.aclose(grace=0.01)
        assert ended == ["tools/call"]
        assert registry.events.listener_count == 0

    run_async(main())
    assert "a tool event listener was still busy 0.01 s after the registry closed" in caplog.text


def test_a_scoped_listener_sees_its_session_alone_until_it_is_removed() -> None:
    registry, events = registry_of(lambda *_: 1)
    seen: list[str] = []
    remove = registry.events.subscribe(lambda event: seen.append(event.identity.session_id), session_id="one")
    for session in ("one", "two", "one"):
        run_async(call(registry, session_id=session))
    remove()
    remove()
    run_async(call(registry, session_id="one"))
    assert seen == ["one"] * 4
    assert len(events) == 8
    assert registry.events.listener_count == 1


@pytest.mark.parametrize("part", ["present_call", "present_result"])
def test_a_presenter_that_raises_costs_its_card_alone(part: str) -> None:
    class Broken:
        def present_call(self, arguments: object) -> ToolCard:
            if part == "present_call":
                raise RuntimeError("no")
            return ToolCard(title="fine")

        def present_result(self, arguments: object, result: ToolResult) -> ToolResultCard:
            if part == "present_result":
                raise RuntimeError("no")
            return ToolResultCard()

    registry, events = registry_of(lambda *_: "done", presenter=Broken())
    assert run_async(call(registry, {"a": 1})).text == "done"
    assert isinstance(events[0], ToolCallStarted)
    assert events[0].card.title == ("t" if part == "present_call" else "fine")
    assert len(events) == 2


# ------------------------------------------------------------------------------------------------- identities, sessions


def test_a_call_id_at_work_is_not_given_twice_and_the_first_call_goes_on_undisturbed() -> None:
    async def main() -> None:
        release = asyncio.Event()
        registry, events = registry_of(lambda *_: release.wait())
        first = asyncio.create_task(call(registry))
        await until(lambda: len(registry.active) == 1)
        again = await call(registry)
        assert again.text == "Error: tool call 'c' is at work in session 's': give each call its own id"
        other = asyncio.create_task(call(registry, session_id="other"))
        await until(lambda: len(registry.active) == 2)
        release.set()
        assert [(await task).is_error for task in (first, other)] == [False, False]
        assert [event.type for event in events].count("tools/call") == 2

    run_async(main())


def test_closing_a_session_aborts_its_calls_alone_and_waits_for_them() -> None:
    async def main() -> None:
        async def execute(_arguments: Any, execution: ToolExecution) -> str:
            return await execution.signal.wait()

        registry, _events = registry_of(execute)
        mine = asyncio.create_task(call(registry, session_id="mine"))
        other = asyncio.create_task(call(registry, session_id="other"))
        await until(lambda: len(registry.active) == 2)
        assert await registry.close_session("mine", "gone")
        assert mine.done()
        assert mine.result().text == "gone"
        assert [execution.session_id for execution in registry.active] == ["other"]
        assert await registry.aclose()
        assert (await other).text == "the tool registry is closing"
        assert (await call(registry)).text == "Error: the tool registry is closed"

    run_async(main())


def test_a_call_that_ignores_the_abort_has_no_more_progress_after_the_grace() -> None:
    async def main() -> None:
        release = asyncio.Event()
        kept: list[ToolExecution] = []

        async def execute(_arguments: Any, execution: ToolExecution) -> str:
            kept.append(execution)
            await release.wait()
            return "at last"

        registry, events = registry_of(execute)
        stuck = asyncio.create_task(call(registry))
        await until(lambda: bool(kept))
        assert not await registry.close_session("s", grace=0)
        assert kept[0].report_progress(ProgressView()) is False
        release.set()
        assert (await stuck).text == "at last"
        assert [event.type for event in events] == ["tools/call", "tools/result"]

    run_async(main())


def test_one_call_can_be_cancelled_by_its_identity() -> None:
    async def main() -> None:
        registry, _events = registry_of(lambda _arguments, execution: execution.signal.wait())
        task = asyncio.create_task(call(registry))
        await until(lambda: len(registry.active) == 1)
        assert not registry.cancel("s", "other")
        assert registry.cancel("s", "c", "enough")
        assert (await task).text == "enough"
        assert not registry.cancel("s", "c")

    run_async(main())


def test_the_callers_signal_reaches_the_tool_and_is_let_go_afterwards() -> None:
    controller = AbortController()
    registry, _events = registry_of(lambda _arguments, execution: execution.signal.reason)
    run_async(call(registry, signal=controller.signal))
    assert controller.signal.listener_count == 0
    controller.abort("late")
    assert run_async(call(registry, signal=controller.signal)).text == "late"


def test_a_nested_call_names_its_parent() -> None:
    registry = ToolRegistry()

    async def outer(_arguments: Any, execution: ToolExecution) -> str:
        result = await registry.call("inner", {}, session_id="s", call_id="c/1", parent=execution)
        return result.text

    async def inner(_arguments: Any, execution: ToolExecution) -> str:
        assert execution.parent is not None
        return execution.parent.call_id

    for name, execute in (("outer", outer), ("inner", inner)):
        registry.register(ToolDefinition(name=name, description="", parameters={}, execute=execute))
    events: list[ToolEvent] = []
    registry.events.subscribe(events.append)
    assert run_async(call(registry, name="outer")).text == "c"
    assert [(e.identity.call_id, e.parent and e.parent.call_id) for e in events] == [
        ("c", None), ("c/1", "c"), ("c/1", "c"), ("c", None),
    ]  # fmt: skip
