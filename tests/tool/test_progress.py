"""The progress of workflow runs through their tool calls: the reducer, its routing, its life."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import AbortController
from orchestrator.tool import ProgressReducer, ProgressSnapshot, render_progress
from orchestrator.tool.progress import ActiveAgent
from tests.conftest import run_async
from tests.tool.fakes import CallingAgent, FakeEngine, Mounted, Story, until, view_text


def reduce(*events: Any) -> ProgressSnapshot:
    reducer = ProgressReducer("demo")
    for event in events:
        reducer.feed(event)
    return reducer.snapshot()


def text_of(snapshot: ProgressSnapshot) -> str:
    (block,) = render_progress(snapshot).content
    return block.text  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------- the reducer

S = Story()


def test_a_finished_agent_leaves_the_active_set_and_becomes_a_count() -> None:
    snapshot = reduce(
        S.start(), S.phase("One"), S.log("first"), S.agent(1, "a"), S.agent(2, "b"), S.agent(3, "c"), S.agent(4, "d"),
        S.agent_end(1), S.agent_end(2, "failed"), S.agent_end(3, "cancelled"), S.phase("Two"), S.log("second"),
    )  # fmt: skip
    assert snapshot == ProgressSnapshot(
        name="demo", phase="Two", log="second", active=(ActiveAgent(4, "d"),), completed=1, failed=1, cancelled=1
    )
    assert text_of(snapshot) == (
        "Running: Two\nAgents: 1 at work, 1 completed, 1 failed, 1 cancelled\nAt work: d\nLog: second"
    )


def test_two_agents_with_one_label_are_two_agents() -> None:
    snapshot = reduce(S.agent(1, "same"), S.agent(2, "same"), S.agent_end(1, "failed"))
    assert snapshot.active == (ActiveAgent(2, "same"),)
    assert text_of(snapshot) == "Running\nAgents: 1 at work, 0 completed, 1 failed, 0 cancelled\nAt work: same"


def test_between_two_phases_with_nothing_at_work_the_view_says_that_the_run_goes_on() -> None:
    text = text_of(reduce(S.phase("One"), S.agent(1), S.agent_end(1)))
    assert text.startswith("Running: One\nAgents: 0 at work, 1 completed")


def test_long_texts_are_cut_and_many_agents_are_a_number() -> None:
    agents = [S.agent(seq, f"agent {seq} " + "x" * 10_000) for seq in range(1, 501)]
    text = text_of(reduce(S.phase("p\n" * 50_000), S.log("l " * 100_000), *agents))
    assert len(text) < 4000
    assert "and 480 more" in text
    assert text.count("\n") == 3


def test_an_end_without_a_start_counts_nothing() -> None:
    assert reduce(S.agent_end(1), S.agent(2), S.agent_end(2), S.agent_end(2)).completed == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["start", "completed", "failed", "cancelled"]), st.integers(1, 6)), max_size=60)
)
def test_started_agents_are_always_those_at_work_and_those_counted(steps: list[tuple[str, int]]) -> None:
    reducer = ProgressReducer("demo")
    live: set[int] = set()
    used: set[int] = set()
    for step, seq in steps:
        if step == "start" and seq not in used:
            used.add(seq)
            live.add(seq)
            reducer.feed(S.agent(seq))
        elif step != "start":
            live.discard(seq)
            reducer.feed(S.agent_end(seq, step))
        snapshot = reducer.snapshot()
        assert {agent.seq for agent in snapshot.active} == live
        assert len(live) + snapshot.completed + snapshot.failed + snapshot.cancelled == len(used)


# ------------------------------------------------------------------------------------------------- routing


def test_the_view_never_changes_the_cards_label_kind_raw_input_or_locations() -> None:
    view = render_progress(reduce(S.phase("x")))
    assert set(view.__struct_fields__) == {"title", "content", "finished"}
    assert view.title == "workflow: demo"


def test_everything_an_engine_emits_during_start_is_in_the_first_report() -> None:
    story = Story()

    def start(engine: FakeEngine, _request: Any, _run: Any) -> None:
        engine.events.emit(story.start(), story.phase("P"), story.log("L"), story.agent(1, "a"), story.agent_end(1))
        engine.events.emit(story.agent(2, "b"))

    async def main() -> None:
        engine = FakeEngine(start)
        mounted = Mounted(engine)
        agent = CallingAgent()
        call = asyncio.create_task(mounted.call(agent=agent))
        await until(lambda: len(mounted.views) == 1)
        assert mounted.views == [
            "Running: P\nAgents: 1 at work, 1 completed, 0 failed, 0 cancelled\nAt work: b\nLog: L"
        ]
        engine.events.emit(story.agent_end(2, "failed"), story.end("completed", 2))
        engine.run.settle(agents_started=2)
        await call
        assert mounted.views[1:] == ["Running: P\nAgents: 0 at work, 1 completed, 1 failed, 0 cancelled\nLog: L"]
        assert [(kind.removeprefix("tool-workflow/"), data.get("seq")) for kind, data in agent.records] == [
            ("run-start", None), ("agent-start", 1), ("agent-end", 1),
            ("agent-start", 2), ("agent-end", 2), ("run-end", None),
        ]  # fmt: skip
        assert mounted.tool.progress.held == 0

    run_async(main())


def test_a_run_that_starts_and_ends_during_start_still_reports_what_happened_once() -> None:
    story = Story()

    def start(engine: FakeEngine, _request: Any, run: Any) -> None:
        engine.events.emit(
            story.start(), story.phase("P"), story.agent(1), story.agent_end(1), story.end("completed", 1)
        )
        run.settle(agents_started=1)

    engine = FakeEngine(start)
    mounted = Mounted(engine)
    agent = CallingAgent()
    assert not run_async(mounted.call(agent=agent)).is_error
    assert mounted.views == ["Running: P\nAgents: 0 at work, 1 completed, 0 failed, 0 cancelled"]
    assert len(agent.records) == 4
    assert (mounted.tool.progress.held, engine.events.listeners) == (0, [])


def test_start_raising_after_events_drops_the_capture() -> None:
    story = Story()

    def start(engine: FakeEngine, _request: Any, _run: Any) -> None:
        engine.events.emit(story.start(), story.agent(1))
        raise RuntimeError("refused")

    engine = FakeEngine(start)
    mounted = Mounted(engine)
    agent = CallingAgent()
    assert run_async(mounted.call(agent=agent)).text == "Error: refused"
    assert (mounted.views, mounted.tool.progress.held, engine.events.listeners, agent.records) == ([], 0, [], [])


def test_other_runs_that_start_during_start_are_dropped_when_the_calls_own_is_known() -> None:
    mine, other = Story("run-1"), Story("run-2", "other")

    def start(engine: FakeEngine, _request: Any, _run: Any) -> None:
        engine.events.emit(other.start(), mine.start(), other.phase("theirs"), mine.phase("mine"), other.agent(1))

    async def main() -> None:
        engine = FakeEngine(start)
        mounted = Mounted(engine)
        agent = CallingAgent()
        call = asyncio.create_task(mounted.call(agent=agent))
        await until(lambda: len(mounted.views) == 1)
        assert mounted.tool.progress.held == 2  # the capture and its route
        engine.events.emit(other.phase("still theirs"), other.agent_end(1), mine.log("x"), other.end())
        engine.run.settle()
        await call
        assert mounted.views == [
            "Running: mine\nAgents: 0 at work, 0 completed, 0 failed, 0 cancelled",
            "Running: mine\nAgents: 0 at work, 0 completed, 0 failed, 0 cancelled\nLog: x",
        ]
        assert [kind for kind, _ in agent.records] == ["tool-workflow/run-start", "tool-workflow/run-end"]

    run_async(main())


def test_a_run_that_was_under_way_before_the_call_is_no_candidate() -> None:
    stranger = Story("run-0")

    def start(engine: FakeEngine, _request: Any, run: Any) -> None:
        engine.events.emit(stranger.phase("x"), stranger.agent(4))
        assert mounted.tool.progress.held == 1
        run.settle()

    mounted = Mounted(FakeEngine(start))
    run_async(mounted.call())
    assert mounted.views == ["Running\nAgents: 0 at work, 0 completed, 0 failed, 0 cancelled"]


@pytest.mark.parametrize("first", [0, 1])
def test_concurrent_runs_of_two_sessions_never_cross(first: int) -> None:
    stories = [Story("run-a", "a"), Story("run-b", "b")]

    async def main() -> None:
        gates = [asyncio.Event(), asyncio.Event()]

        async def start(engine: FakeEngine, request: Any, run: Any) -> None:
            index = int(request.script)
            run.id, run.meta = stories[index].info.id, stories[index].info.meta
            engine.events.emit(stories[index].start(), stories[index].phase(f"phase of {index}"))
            await gates[index].wait()

        engine = FakeEngine(start)
        mounted = Mounted(engine)
        calls = [
            asyncio.create_task(mounted.call({"script": str(i), "meta": {}}, session_id=f"s{i}", call_id="same"))
            for i in (0, 1)
        ]
        await until(lambda: len(engine.runs) == 2)
        gates[first].set()
        await until(lambda: len(mounted.views) == 1)
        gates[1 - first].set()
        await until(lambda: len(mounted.views) == 2)
        for index in (1, 0, 1):
            engine.events.emit(stories[index].log(f"log of {index}"))
        for run in engine.runs:
            run.settle()
        await asyncio.gather(*calls)
        progress = [event for event in mounted.events if event.type == "tools/progress"]
        assert len(progress) == 5
        for event in progress:
            index = event.identity.session_id.removeprefix("s")
            text = view_text(event)  # type: ignore[arg-type]
            assert f"phase of {index}" in text
            assert f"of {1 - int(index)}" not in text
        assert mounted.tool.progress.held == 0

    run_async(main())


# ------------------------------------------------------------------------------------------------- the reducer's end


@pytest.mark.parametrize("ending", ["completed", "error", "cancel", "task", "session", "shutdown", "end-event", "tool"])
def test_every_way_a_call_can_end_leaves_nothing_held_and_reports_no_more(ending: str) -> None:
    story = Story()

    async def main() -> None:
        engine = FakeEngine(lambda engine, *_: engine.events.emit(story.start(), story.agent(1)))
        mounted = Mounted(engine)
        controller = AbortController()
        call = asyncio.create_task(mounted.call(signal=controller.signal))
        await until(lambda: len(mounted.views) == 1)
        match ending:
            case "completed":
                engine.run.settle()
            case "error":
                engine.run.settle(stop_reason="error", error="the worker died", code="WORKER_DIED")
            case "cancel":
                controller.abort()
            case "task":
                call.cancel()
            case "session":
                await mounted.registry.close_session("s1")
            case "shutdown":
                await mounted.registry.aclose()
            case "end-event":
                engine.events.emit(story.agent_end(1), story.end("completed", 1))
                assert mounted.tool.progress.held == 1  # the call's capture alone: the reducer is gone
                engine.run.settle()
            case _:
                mounted.tool.close()
                assert mounted.tool.progress.held == 0
                engine.run.settle()
        await asyncio.wait({call})
        seen = len(mounted.events)
        engine.events.emit(story.log("late"), story.agent_end(1), story.phase("late"))
        assert len(mounted.events) == seen
        assert mounted.types[-1] == "tools/result"
        assert (mounted.tool.progress.held, engine.events.listeners, mounted.registry.active) == (0, [], ())

    run_async(main())


def test_events_during_dispose_still_reach_the_card_and_the_records() -> None:
    story = Story()

    async def main() -> None:
        engine = FakeEngine(lambda engine, *_: engine.events.emit(story.start(), story.agent(1)))
        mounted = Mounted(engine)
        agent = CallingAgent()
        call = asyncio.create_task(mounted.call(agent=agent))
        await until(lambda: len(mounted.views) == 1)

        async def reap() -> None:
            engine.events.emit(story.agent_end(1, "cancelled"), story.end("completed", 1))

        engine.run.on_dispose = reap
        engine.run.settle(agents_started=1)
        await call
        assert mounted.views[-1].endswith("0 at work, 0 completed, 0 failed, 1 cancelled")
        assert [kind.removeprefix("tool-workflow/") for kind, _ in agent.records] == [
            "run-start", "agent-start", "agent-end", "run-end",
        ]  # fmt: skip

    run_async(main())


def test_a_host_whose_reporting_raises_loses_the_progress_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    story = Story()

    class Host:
        signal = AbortController().signal
        agent = CallingAgent()
        parent = None
        reports = 0

        def report_progress(self, view: Any) -> bool:
            self.reports += 1
            raise RuntimeError("the screen is gone")

    def start(engine: FakeEngine, _request: Any, run: Any) -> None:
        engine.events.emit(story.start(), story.agent(1))
        asyncio.get_running_loop().call_soon(engine.events.emit, story.log("x"), story.agent_end(1))
        asyncio.get_running_loop().call_soon(run.settle)

    host = Host()
    output = run_async(Mounted(FakeEngine(start)).tool.execute({"script": "x", "meta": {}}, host))
    assert output.value["result"] is None
    assert host.reports == 1
    assert len(host.agent.records) == 4
    assert "the screen is gone" in caplog.text
