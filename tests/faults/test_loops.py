"""Event loops that are closed, changed or interrupted under an engine and its runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orchestrator import (
    AbortController,
    AgentRequest,
    EngineConfig,
    WorkflowEngine,
    WorkflowRun,
    WorkflowStartRequest,
    run_workflow,
)
from protocol.errors import ErrorCode, WorkflowError
from tests.conftest import run_async
from tests.faults.processes import Exits, host, pids_of
from tests.support import META, scripted_agent

CONFIG = EngineConfig(max_concurrent_agents=2, spare_workers=1, dispose_grace=0.2)


def request(script: str) -> WorkflowStartRequest:
    return WorkflowStartRequest(script=script, meta=META)


async def in_another_thread(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs ``main`` in a loop of its own while this one goes on."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        await asyncio.get_running_loop().run_in_executor(executor, lambda: asyncio.run(main()))


# ------------------------------------------------------------------------------------------------- a loop for each


@pytest.mark.parametrize("what", ["start", "enter", "close"])
def test_an_engine_used_in_a_second_loop_says_that_it_belongs_to_the_first(what: str) -> None:
    engine = WorkflowEngine(CONFIG)
    engine.agents.register("default", scripted_agent)

    async def first() -> None:
        async with await engine.start(request("return 1")) as run:
            assert (await run.result).value == 1
        await in_another_thread(second)
        async with await engine.start(request("return 2")) as run:  # nothing has happened to it
            assert (await run.result).value == 2
        await engine.aclose()

    async def second() -> None:
        uses = {"start": lambda: engine.start(request("return 1")), "enter": engine.__aenter__, "close": engine.aclose}
        with pytest.raises(WorkflowError, match="make another engine for this loop") as caught:
            await uses[what]()
        assert caught.value.code == ErrorCode.INVALID_ARGUMENT

    run_async(first())


LEFT_OPEN = """
async def main():
    engine = await new_engine()
    runs = []
    for script in (SPIN, "return await agent('hang')"):
        runs.append(await start(engine, script))
        await engine.said.wait()  # it spins, or its agent runs
        engine.said.clear()
    await say_pids(engine, workers=3)
    return engine, runs
"""


def test_an_engine_whose_loop_is_closed_can_still_be_closed_and_leaves_no_process() -> None:
    body = (
        LEFT_OPEN
        + """
engine, runs = asyncio.run(main())
try:
    asyncio.run(start(engine, "return 1"))
except WorkflowError as error:
    print(error)
asyncio.run(engine.aclose())
asyncio.run(engine.aclose())
print(engine.describe().workers_alive, engine._pool._zygote._process.returncode)
sys.stdin.read()
"""
    )
    with host(body, leave_open=True) as process, Exits(pids_of(process)) as exits:
        assert len(exits.pids) == 4
        assert process.stdout is not None
        assert "make another engine for this loop" in process.stdout.readline()
        assert process.stdout.readline() == "0 0\n"
        assert exits.all_gone()
        assert process.poll() is None  # it was the close, not the end of the host
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


def test_a_run_whose_loop_is_closed_reads_as_cancelled_and_its_dispose_returns() -> None:
    body = (
        LEFT_OPEN
        + """
async def afterwards(runs):
    for run in runs:
        assert run.result.done()
        result = await run.result
        print(result.stop_reason, result.code, result.error)
        run.cancel('too late')
        await run.dispose()
    await engine.aclose()

engine, runs = asyncio.run(main())
asyncio.run(afterwards(runs))
"""
    )
    with host(body) as process, Exits(pids_of(process)) as exits:
        assert process.stdout is not None
        said = process.stdout.read()  # not by communicate(), which misses what came with the line before
        _, errors = process.communicate(timeout=20)
        assert said.splitlines() == [
            "cancelled CANCELLED workflow run cancelled: its event loop was closed",
            "cancelled CANCELLED workflow run cancelled: the event loop is shutting down",  # its agent was cancelled
        ], errors
        assert (process.returncode, errors) == (0, "")
        assert exits.all_gone()


def test_the_result_of_a_run_that_settled_can_be_read_in_a_later_loop() -> None:
    async def one() -> WorkflowRun:
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            run = await engine.start(request("return [1]"))
            await run.result
            return run

    async def later(run: WorkflowRun) -> None:
        assert (await run.result).value == [1]
        await run.dispose()

    run = run_async(one())
    run_async(later(run))


# ------------------------------------------------------------------------------------------------- the blocking twin

BLOCKING = """
async def agent(request):
    print('up', flush=True)
    await asyncio.Event().wait()

def work():
    run_workflow("await agent('x'); for (;;) {}", meta=META, agent=agent, config=EngineConfig(spare_workers=0))

async def cell():
    work()

CALLS

def zygote_gone():
    import psutil
    return not psutil.Process().children(recursive=True)

try:
    call()
except KeyboardInterrupt:
    print('interrupted', zygote_gone())
"""
CALLS = {
    "a script": "call = work",
    "a notebook, whose loop is running": "def call():\n    asyncio.new_event_loop().run_until_complete(cell())",
}


@pytest.mark.parametrize("where", CALLS)
def test_an_interrupt_ends_a_blocking_run_and_leaves_nothing(where: str) -> None:
    with host(BLOCKING.replace("CALLS", CALLS[where]), strict=False) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=20)
        assert (said, process.returncode) == ("interrupted True\n", 0), errors


def test_the_callers_signal_ends_a_blocking_run_in_a_running_loop_and_keeps_no_callback() -> None:
    async def main() -> None:
        controller = AbortController()

        async def agent(incoming: AgentRequest) -> str:
            controller.abort("enough")
            await asyncio.Event().wait()
            return ""

        result = run_workflow("await agent('x')", meta=META, agent=agent, config=CONFIG, signal=controller.signal)
        assert result.stop_reason == "cancelled"
        assert controller.signal.listener_count == 0

    run_async(main())
