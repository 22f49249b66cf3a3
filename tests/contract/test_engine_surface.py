"""The Python surface a host embeds: starts that are refused, settings, events, results."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import orchestrator
from orchestrator import (
    AbortController,
    AgentEnded,
    AgentProvider,
    AgentRequest,
    AgentStarted,
    EngineConfig,
    ErrorCode,
    LogWritten,
    PhaseStarted,
    WorkflowEnded,
    WorkflowEngine,
    WorkflowError,
    WorkflowEvent,
    WorkflowResult,
    WorkflowStarted,
    WorkflowStartRequest,
)
from tests.conftest import run_async
from tests.support import META, run_script, scripted_agent

QUIET = EngineConfig(spare_workers=0)

# --- starts that are refused ---

# name: what the request has instead, code, the exact text
REFUSED: dict[str, tuple[dict[str, Any], ErrorCode, str]] = {
    "a padded provider": (
        {"subagent_provider": " x"},
        ErrorCode.INVALID_ARGUMENT,
        "workflow subagentProvider must be a non-empty normalized string",
    ),
    "an empty provider": (
        {"subagent_provider": ""},
        ErrorCode.INVALID_ARGUMENT,
        "workflow subagentProvider must be a non-empty normalized string",
    ),
    "a number as provider": (
        {"subagent_provider": 5},
        ErrorCode.INVALID_ARGUMENT,
        "workflow subagentProvider must be a non-empty normalized string",
    ),
    "an unknown provider": (
        {"subagent_provider": "x"},
        ErrorCode.AGENT_START,
        'no subagent provider registered for "x"',
    ),
    "a cap over the engine's": (
        {"max_total_agents": 2000},
        ErrorCode.INVALID_ARGUMENT,
        "workflow maxTotalAgents 2000 exceeds the engine ceiling 1000",
    ),
    "a cap of zero": (
        {"max_total_agents": 0},
        ErrorCode.INVALID_ARGUMENT,
        "workflow maxTotalAgents must be a positive safe integer",
    ),
    "a negative cap": (
        {"max_total_agents": -1},
        ErrorCode.INVALID_ARGUMENT,
        "workflow maxTotalAgents must be a positive safe integer",
    ),
    "a fraction as cap": (
        {"max_total_agents": 1.5},
        ErrorCode.INVALID_ARGUMENT,
        "workflow maxTotalAgents must be a positive safe integer",
    ),
    "a truth as cap": (
        {"max_total_agents": True},
        ErrorCode.INVALID_ARGUMENT,
        "workflow maxTotalAgents must be a positive safe integer",
    ),
    "a script that is no text": ({"script": 42}, ErrorCode.INVALID_ARGUMENT, "workflow script must be a string"),
    "a signal that is none": (
        {"signal": object()},
        ErrorCode.INVALID_ARGUMENT,
        "workflow signal must be an AbortSignal (AbortController().signal), not object",
    ),
    "bytes as script": ({"script": b"return 1"}, ErrorCode.INVALID_ARGUMENT, "workflow script must be a string"),
    "a script that does not parse": (
        {"script": "const a = 1\nconst b = = 2"},
        ErrorCode.SCRIPT_PARSE,
        "workflow script does not parse: expected expression, got '=' (line 2, column 11)\nconst b = = 2\n          ^",
    ),
    "args that are no JSON": (
        {"args": {"a": {1}}},
        ErrorCode.INVALID_ARGUMENT,
        "workflow args must be plain JSON data — args.a: a set is not JSON data",
    ),
    "a meta that is no object": ({"meta": [1]}, ErrorCode.META_INVALID, "invalid meta: meta must be an object"),
    "a meta without a name": (
        {"meta": {"description": "d"}},
        ErrorCode.META_INVALID,
        "invalid meta: meta.name must be a non-empty string",
    ),
    "a meta with everything wrong": (
        {"meta": {"name": "", "extra": 1, "whenToUse": 2, "phases": [{"title": "", "x": 1}, 5]}},
        ErrorCode.META_INVALID,
        "invalid meta: meta.extra is not a recognized field (name/description/whenToUse/phases); "
        "meta.name must be a non-empty string; meta.description must be a non-empty string; "
        "meta.whenToUse must be a string; "
        "meta.phases[0].x is not a recognized field; meta.phases[0].title must be a non-empty string; "
        "meta.phases[1] must be an object",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_start_refuses_with_the_exact_text_and_emits_nothing(name: str) -> None:
    fields, code, text = REFUSED[name]

    async def main() -> None:
        events: list[WorkflowEvent] = []
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(events.append)
            request = WorkflowStartRequest(**{"script": "return 1", "meta": META} | fields)
            with pytest.raises(WorkflowError) as caught:
                await engine.start(request)
            assert (caught.value.code, str(caught.value)) == (code, text)
            assert events == []
            ran = await (await engine.start(WorkflowStartRequest(script="return 1", meta=META))).result
            assert ran.value == 1, "the engine goes on"

    run_async(main())


def test_a_start_without_any_provider_is_refused() -> None:
    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            with pytest.raises(WorkflowError, match='no subagent provider registered for "default"'):
                await engine.start(WorkflowStartRequest(script="return 1", meta=META))

    run_async(main())


def test_a_stopped_engine_takes_no_new_runs_and_leaves_the_old_ones_alone() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def agent(_: AgentRequest) -> str:
            await go.wait()
            return "done"

        engine = WorkflowEngine(QUIET)
        engine.agents.register("default", agent)
        run = await engine.start(WorkflowStartRequest(script="return await agent('x')", meta=META))
        engine.stop()
        with pytest.raises(WorkflowError, match="the workflow engine is stopped and takes no new runs"):
            await engine.start(WorkflowStartRequest(script="return 1", meta=META))
        go.set()
        assert (await run.result).value == "done"
        await engine.aclose()
        await engine.aclose()
        await run.dispose()

    run_async(main())


def test_the_engines_own_copy_of_meta_is_normal_and_apart() -> None:
    meta = {
        "name": "n",
        "description": "d",
        "whenToUse": "w",
        "phases": [{"title": "t", "detail": "x"}, {"title": "u"}],
    }

    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            async with await engine.start(WorkflowStartRequest(script="return 1", meta=meta)) as run:
                meta["name"] = "changed"
                assert (run.meta.name, run.meta.description, run.meta.when_to_use) == ("n", "d", "w")
                assert [(phase.title, phase.detail) for phase in run.meta.phases] == [("t", "x"), ("u", None)]
                assert run.id == run.info.id
                await run.result

    run_async(main())


# --- settings ---

BAD_SETTINGS: dict[str, tuple[Any, ...]] = {
    "provider": ("", " x", 5, None),
    "max_concurrent_agents": (-1, 1.5, "2", None, True),
    "max_total_agents": (0, -1, 1.0, None),
    "max_items_per_call": (0, "many"),
    "sync_timeout": (0, -1, "5", None, float("nan"), float("inf")),
    "run_timeout": (0, -1, "5", float("nan")),
    "cpu_limit": (0, 1.5, "1"),
    "memory_limit": (0, 1, 1.5, "1G"),
    "max_frame": (0, 1000, 1 << 31, 1e6),
    "max_depth": (0, 801, 10.0),
    "dispose_grace": (-1, None, float("nan")),
    "token_budget": (0, 1.5),
    "spare_workers": (-1, None),
    "max_workers": (-1, None),
    "sandbox": ("on", None, True, ""),
    "worker_mode": ("fork", None),
}


@pytest.mark.parametrize(
    ("field", "setting"), [(field, bad) for field, values in BAD_SETTINGS.items() for bad in values]
)
def test_a_senseless_setting_names_its_field_and_what_it_accepts(field: str, setting: Any) -> None:
    with pytest.raises(ValueError, match=rf"EngineConfig\.{field} must be .+, not ") as caught:
        EngineConfig(**{field: setting})
    assert repr(setting) in str(caught.value)


def test_more_spares_than_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"EngineConfig\.spare_workers must be at most max_workers \(1\), not 2"):
        EngineConfig(max_workers=1, spare_workers=2)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="max_agents"):
        EngineConfig(max_agents=5)  # type: ignore[call-arg]


def test_the_defaults_are_those_of_the_contract() -> None:
    config = EngineConfig()
    seen = (config.provider, config.max_concurrent_agents, config.max_total_agents, config.max_items_per_call)
    assert seen == ("default", 0, 1000, 4096)
    assert (config.sync_timeout, config.run_timeout, config.dispose_grace, config.sandbox) == (5.0, None, 5.0, "auto")
    assert 1 <= config.agent_slots <= 16
    with pytest.raises(AttributeError):
        config.provider = "x"  # type: ignore[misc]


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    wanted = [
        "WorkflowEngine",
        "EngineConfig",
        "WorkflowStartRequest",
        "WorkflowRun",
        "WorkflowResult",
        "WorkflowError",
        "AgentRequest",
        "AgentResult",
        "AgentFailed",
        "AgentProvider",
        "AbortController",
        "AbortSignal",
        "run_workflow",
    ]
    assert set(wanted) <= set(orchestrator.__all__)
    assert [name for name in orchestrator.__all__ if not getattr(orchestrator, name).__doc__] == []


# --- events and results ---


def test_every_event_begins_with_the_run_and_has_its_fields() -> None:
    ran = run_script(
        "phase('P'); log('m'); await agent('x'); await agent('fail', { label: 'L' }); throw new Error('e')",
        config=QUIET,
    )
    start, phase, log, began, ended, failed_start, failed_end, end = ran.events
    assert [event.type for event in ran.events] == [
        f"workflow/{name}"
        for name in ("start", "phase", "log", "agent-start", "agent-end", "agent-start", "agent-end", "end")
    ]
    assert {(event.run.id, event.run.meta.name) for event in ran.events} == {(start.run.id, "test")}
    assert isinstance(start, WorkflowStarted)
    assert isinstance(phase, PhaseStarted)
    assert phase.title == "P"
    assert isinstance(log, LogWritten)
    assert log.message == "m"
    assert isinstance(began, AgentStarted)
    assert isinstance(ended, AgentEnded)
    assert (began.seq, began.label, began.phase) == (ended.seq, ended.label, ended.phase) == (1, "x", "P")
    assert began.child_id == ended.child_id != ""
    assert (ended.outcome, ended.error) == ("completed", None)
    assert isinstance(failed_start, AgentStarted)
    assert isinstance(failed_end, AgentEnded)
    assert (failed_end.label, failed_end.outcome, failed_end.error) == ("L", "failed", "no luck")
    assert isinstance(end, WorkflowEnded)
    assert (end.stop_reason, end.agents_started, end.code) == ("error", 2, "SCRIPT_ERROR")
    assert end.error == ran.result.error
    assert not hasattr(end, "value")
    with pytest.raises(AttributeError):
        log.message = "changed"  # type: ignore[misc]


def test_an_event_is_json_with_its_type_and_the_run_first() -> None:
    ran = run_script("log('m')", config=QUIET)
    text = msgspec.json.encode(ran.events[1]).decode()
    assert text.startswith('{"type":"workflow/log","run":{"id":"')
    assert text.endswith('"message":"m"}')


def test_a_listener_that_raises_starves_nobody_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def main() -> WorkflowResult:
        async def fails(_: WorkflowEvent) -> None:
            raise RuntimeError("async listener")

        def raises(_: WorkflowEvent) -> None:
            raise RuntimeError("sync listener")

        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            for listener in (raises, fails, lambda event: seen.append(event.type)):
                engine.events.subscribe(listener)
            removed: list[str] = []
            engine.events.subscribe(lambda event: removed.append(event.type))()
            async with await engine.start(WorkflowStartRequest(script="return await agent('x')", meta=META)) as run:
                result = await run.result
            assert removed == []
        return result

    assert run_async(main()).value == "ok:x"
    assert seen == ["workflow/start", "workflow/agent-start", "workflow/agent-end", "workflow/end"]
    assert {"a workflow event listener raised", "a workflow event listener failed"} <= {
        r.message for r in caplog.records
    }


def test_a_runs_events_can_be_iterated_from_its_start_by_several_and_end_by_themselves() -> None:
    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            request = WorkflowStartRequest(script="log('a'); await agent('x'); return 1", meta=META)
            async with await engine.start(request) as run, await engine.start(request) as other:

                async def collect(stream: Any) -> list[WorkflowEvent]:
                    return [event async for event in stream]

                first, second, _ = await asyncio.gather(
                    collect(run.events()), collect(run.events()), collect(other.events())
                )
                late = await collect(run.events())
            assert [e.type.removeprefix("workflow/") for e in first] == [
                "start",
                "log",
                "agent-start",
                "agent-end",
                "end",
            ]
            assert first == second == late
            assert {event.run.id for event in first} == {run.id}

    run_async(main())


def test_a_result_may_be_awaited_often_and_by_many() -> None:
    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            async with await engine.start(WorkflowStartRequest(script="return await agent('x')", meta=META)) as run:

                async def wait() -> WorkflowResult:
                    return await run.result

                results = await asyncio.gather(*(wait() for _ in range(5)))
                assert all(result is results[0] for result in results)
                assert await run.result is results[0]

    run_async(main())


def test_a_result_has_an_error_and_a_code_exactly_when_it_did_not_complete() -> None:
    completed = run_script("return 1", config=QUIET).result
    assert (completed.error, completed.code) == (None, None)
    failed = run_script("throw 1", config=QUIET).result
    assert (failed.value, failed.error, failed.code) == (None, "1", ErrorCode.SCRIPT_ERROR)
    cancelled = run_script(
        "log('a'); await agent('hang')", config=QUIET, on_event=lambda run, _: run.cancel("because")
    ).result
    assert (cancelled.stop_reason, cancelled.code) == ("cancelled", ErrorCode.CANCELLED)
    assert cancelled.error == "workflow run cancelled: because"


def test_cancel_takes_the_first_reason_and_dispose_may_be_called_often() -> None:
    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            run = await engine.start(WorkflowStartRequest(script="await agent('hang')", meta=META))
            run.cancel("first")
            run.cancel("second")
            await asyncio.gather(run.dispose(), run.dispose())
            await run.dispose()
            run.cancel("third")
            assert (await run.result).error == "workflow run cancelled: first"

    run_async(main())


def test_half_a_character_in_a_reason_is_text_too() -> None:
    result = run_script(
        "log('a'); await agent('hang')", config=QUIET, on_event=lambda run, _: run.cancel("no \ud83d")
    ).result
    assert result.error == "workflow run cancelled: no \ufffd"


def test_the_callers_signal_keeps_no_callback_of_a_settled_run() -> None:
    controller = AbortController()
    assert run_script("return 1", config=QUIET, signal=controller.signal).result.value == 1
    assert controller.signal.listener_count == 0


def test_a_call_may_name_a_registered_provider_unless_the_holder_chose_one() -> None:
    async def named(request: AgentRequest) -> str:
        return f"{request.provider}:{request.prompt}"

    async def main() -> None:
        async with WorkflowEngine(QUIET) as engine:
            engine.agents.register("default", scripted_agent)
            engine.agents.register("other", named)
            text = """return [await agent('x', { provider: 'other' }),
                await agent('y', { provider: 'unknown' }), await agent('z')]"""
            run = await engine.start(WorkflowStartRequest(script=text, meta=META))
            assert (await run.result).value == ["other:x", "ok:y", "ok:z"]
            run = await engine.start(WorkflowStartRequest(script=text, meta=META, subagent_provider="other"))
            assert (await run.result).value == ["other:x", "unknown:y", "None:z"]

    run_async(main())


def test_a_provider_is_checked_when_it_is_registered() -> None:
    engine = WorkflowEngine(QUIET)
    for bad in (5, "x", None, AgentRequest):
        with pytest.raises(WorkflowError, match="must be an async function or have an async start"):
            engine.agents.register("default", bad)  # type: ignore[arg-type]
    for name in ("", " x", 5):
        with pytest.raises(WorkflowError, match="must be a non-empty normalized string"):
            engine.agents.register(name, scripted_agent)  # type: ignore[arg-type]
    remove = engine.agents.register("default", scripted_agent)
    assert isinstance(engine.agents.get("default"), AgentProvider)
    remove()
    remove()
    assert engine.agents.names == ()


def test_closing_the_engine_closes_its_providers_and_waits_for_none_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    class Keeper:
        def __init__(self, *, hangs: bool = False) -> None:
            self.hangs = hangs
            self.closed = 0

        async def start(self, request: AgentRequest) -> Any:
            raise NotImplementedError

        async def aclose(self) -> None:
            self.closed += 1
            if self.hangs:
                await asyncio.Event().wait()

    async def main() -> None:
        engine = WorkflowEngine(EngineConfig(spare_workers=0, dispose_grace=0.0))
        first, hanging, last = Keeper(), Keeper(hangs=True), Keeper()
        for name, keeper in (("first", first), ("hanging", hanging), ("last", last)):
            engine.agents.register(name, keeper)
        await engine.aclose()
        await engine.aclose()
        assert (first.closed, hanging.closed, last.closed) == (1, 1, 1)

    run_async(main())
    assert [record.message for record in caplog.records if "aclose" in record.message] == [
        "an agent provider's aclose() did not end within 1 s (dispose_grace)"
    ]
