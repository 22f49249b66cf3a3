"""Processes come and go together: hosts, zygotes and workers, killed in any order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from orchestrator import AgentRequest, EngineConfig, LogWritten, WorkflowEngine, WorkflowEvent, WorkflowStartRequest
from orchestrator.faults import FaultEngine
from protocol.errors import ErrorCode
from tests.conftest import run_async
from tests.faults.processes import Exits, host, pids_of
from tests.support import META, scripted_agent

CONFIG = EngineConfig(max_concurrent_agents=4, spare_workers=1, dispose_grace=0.2)
SPIN = "log('spinning'); for (;;) {}"
HANG = "return await agent('hang')"


def request(script: str, **fields: Any) -> WorkflowStartRequest:
    return WorkflowStartRequest(script=script, meta=META, **fields)


# ------------------------------------------------------------------------------------------------- the host dies

RUNNING = """
async def main():
    engine = await new_engine()
    run = await start(engine, {script!r})
    await engine.said.wait()
    await say_pids(engine)
    {then}

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [SPIN, HANG, "log('a'); for (;;) await null"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_host_that_is_killed_takes_its_zygote_and_workers_with_it(script: str, number: int) -> None:
    with host(RUNNING.format(script=script, then="await asyncio.Event().wait()")) as process:
        with Exits(pids_of(process)) as exits:
            assert len(exits.pids) == 3  # the zygote, a worker that runs, a spare
            process.send_signal(number)
            assert exits.all_gone()
        process.communicate(timeout=20)
        assert process.returncode == -number


@pytest.mark.parametrize("settings", ["worker_mode='spawn'", "sandbox='off'"])
def test_a_host_that_is_killed_takes_workers_of_every_kind_with_it(settings: str) -> None:
    body = f"""
async def main():
    engine = await new_engine({settings})
    run = await start(engine, SPIN)
    await engine.said.wait()
    await say_pids(engine, workers=1)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with host(body) as process:
        with Exits(pids_of(process)) as exits:
            assert len(exits.pids) >= 2
            process.kill()
            assert exits.all_gone()
        process.communicate(timeout=20)


def test_a_host_that_is_killed_while_its_zygote_starts_leaves_nothing() -> None:
    body = """
async def main():
    engine = await new_engine()
    starting = asyncio.create_task(start(engine, SPIN))
    while engine.describe().zygote_pid is None:
        await asyncio.sleep(0)
    await say_pids(engine, workers=0)
    await starting

asyncio.run(main())
"""
    with host(body) as process:
        with Exits(pids_of(process)) as exits:
            process.kill()
            assert exits.all_gone()
        process.communicate(timeout=20)


FORKED = """
def fork_a_child():
    \"\"\"As a process pool does: it has a copy of every descriptor of the host, and lives on.\"\"\"
    pid = os.fork()
    if pid == 0:
        os.close(1)
        os.close(2)
        signal.pause()
        os._exit(0)
    return pid
"""


def test_a_host_that_is_killed_leaves_nothing_although_a_process_it_forked_lives_on() -> None:
    """Its copy of the control socket keeps the end of file from the zygote."""
    body = (
        FORKED
        + """
async def main():
    engine = await new_engine()
    run = await start(engine, SPIN)
    await engine.said.wait()
    print(fork_a_child(), flush=True)
    await say_pids(engine)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    )
    with host(body) as process:
        (forked,) = pids_of(process)
        with Exits(pids_of(process)) as exits, Exits([forked]) as child:
            process.kill()
            assert exits.all_gone()
            assert not child.all_gone(timeout=0)
            os.kill(forked, signal.SIGKILL)
            assert child.all_gone()
        process.communicate(timeout=20)


def test_a_close_is_heard_although_a_process_the_host_forked_lives_on() -> None:
    """The zygote leaves by itself; one that does not hear the close is killed once the bound is over."""
    body = (
        FORKED
        + """
async def main():
    engine = await new_engine()
    async with engine:
        async with await start(engine, "return await agent('x')") as run:
            await run.result
        forked = fork_a_child()
        zygote = engine._pool._zygote._process
    os.kill(forked, signal.SIGKILL)
    os.waitpid(forked, 0)
    print(zygote.returncode)

asyncio.run(main())
"""
    )
    with host(body) as process:
        said, errors = process.communicate(timeout=30)
        assert said.strip() == "0", errors


# ------------------------------------------------------------------------------------------------- the host leaves

LEAVINGS = {
    "main returns": ("return", 0),
    "main raises": ("raise RuntimeError('on purpose')", 1),
    "sys.exit": ("sys.exit(5)", 5),
    "os._exit": ("os._exit(6)", 6),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
}


@pytest.mark.parametrize("how", LEAVINGS)
@pytest.mark.parametrize("script", [SPIN, HANG])
def test_an_interpreter_that_exits_with_live_runs_exits_promptly_and_leaves_no_process(how: str, script: str) -> None:
    then, code = LEAVINGS[how]
    with host(RUNNING.format(script=script, then=then), strict=False) as process, Exits(pids_of(process)) as exits:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == code, errors
        assert exits.all_gone()
    if how in ("main returns", "sys.exit", "os._exit"):
        assert errors == ""


def test_a_run_left_behind_in_a_closed_loop_can_still_be_cancelled_without_harm() -> None:
    body = """
controller = AbortController()

async def main():
    engine = await new_engine()
    run = await start(engine, HANG, signal=controller.signal)
    await engine.said.wait()
    return engine, run

engine, run = asyncio.run(main())
controller.abort('too late')
run.cancel('too late')
print(run, engine.describe().worker_mode)
"""
    with host(body.replace("HANG", repr(HANG)), strict=False) as process:
        said, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
        assert "zygote" in said
        assert errors == ""


def test_a_signal_to_the_whole_process_group_is_the_hosts_alone_to_handle() -> None:
    """Ctrl-C in a terminal reaches every process of the group: workers go on until the host says otherwise."""
    body = """
async def main():
    engine = await new_engine()
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    async with engine:
        async with await start(engine, "log('a'); await agent('hang')") as run:
            await engine.said.wait()
            os.killpg(0, signal.SIGINT)
            await interrupted.wait()
            assert not run.result.done()
            async with await start(engine, "return 'alive'") as other:
                print((await other.result).value)
            run.cancel('interrupted')
            print((await run.result).error)

os.setpgid(0, 0)
asyncio.run(main())
"""
    with host(body) as process:
        said, errors = process.communicate(timeout=30)
        assert said.splitlines() == ["alive", "workflow run cancelled: interrupted"], errors
        assert process.returncode == 0


# ------------------------------------------------------------------------------------------------- the zygote dies


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_zygote_that_is_killed_ends_its_runs_as_errors_and_the_next_run_works(number: int) -> None:
    async def main() -> None:
        said: set[str] = set()
        three = asyncio.Event()

        def listen(event: WorkflowEvent) -> None:
            if isinstance(event, LogWritten):
                said.add(event.run.id)
                if len(said) == 3:
                    three.set()

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(listen)
            scripts = [SPIN, "log('a'); await agent('hang')", "for (;;) { log('x'); await null }"]
            runs = [await engine.start(request(script)) for script in scripts]
            await three.wait()
            zygote = engine.describe().zygote_pid
            assert zygote is not None
            with Exits([zygote, *engine.describe().worker_pids]) as exits:
                os.kill(zygote, number)
                results = [await run.result for run in runs]
                assert exits.all_gone()
            assert {(result.stop_reason, result.code) for result in results} == {("error", ErrorCode.WORKER_DIED)}
            assert all("together with its parent process" in str(result.error) for result in results)
            for run in runs:
                await run.dispose()
            assert engine.describe().workers_alive == 0
            async with await engine.start(request("return 'next'")) as run:
                assert (await run.result).value == "next"
            assert engine.describe().zygote_pid not in (None, zygote)

    run_async(main())


def test_a_zygote_killed_again_and_again_costs_only_the_runs_it_had() -> None:
    async def main() -> None:
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            for number in range(5):
                async with await engine.start(request("return args", args=number)) as run:
                    assert (await run.result).value == number
                zygote = engine.describe().zygote_pid
                assert zygote is not None
                with Exits([zygote]) as exits:
                    os.kill(zygote, signal.SIGKILL)
                    assert exits.all_gone()  # and the next start comes before the loop could notice

    run_async(main())


async def _until(condition: Callable[[], bool]) -> None:
    """Turns the loop until it has seen what the kernel has already done."""
    while not condition():  # noqa: ASYNC110 - nobody tells; the test's own timeout bounds it
        await asyncio.sleep(0.001)


def test_a_spare_that_is_killed_is_not_leased() -> None:
    async def main() -> None:
        async with FaultEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            async with await engine.start(request("return 0")) as run:
                await run.result
            await _until(lambda: len(engine.describe().worker_pids) == engine.describe().spare_workers == 1)
            (spare,) = engine.describe().worker_pids
            os.kill(spare, signal.SIGKILL)
            await _until(lambda: spare not in engine.describe().worker_pids)
            async with await engine.start(request("return 1")) as run:
                assert (await run.result).value == 1

    run_async(main())


@pytest.mark.parametrize("ending", ["kill", "cancel"])
def test_a_real_worker_that_stops_while_it_is_sent_ten_megabytes_costs_its_run_alone(ending: str) -> None:
    """It is stopped before the answer comes, so the host is in the middle of writing it when the worker ends."""

    async def main() -> None:
        victim: list[int] = []
        sent = asyncio.Event()

        async def agent(incoming: AgentRequest) -> str:
            if incoming.prompt == "large":
                (pid,) = engine.describe().worker_pids
                victim.append(pid)
                os.kill(pid, signal.SIGSTOP)
            return "x" * (10 << 20 if incoming.prompt == "large" else 1)

        async with WorkflowEngine(EngineConfig(max_concurrent_agents=2, spare_workers=0, dispose_grace=0.2)) as engine:
            engine.agents.register("default", agent)
            engine.events.subscribe(lambda event: sent.set() if event.type == "workflow/agent-end" else None)
            async with await engine.start(request("return (await agent('large')).length")) as run:
                await sent.wait()
                with Exits(victim) as exits:
                    if ending == "kill":
                        os.kill(victim[0], signal.SIGKILL)
                    else:
                        run.cancel("enough")
                    result = await run.result
                    assert exits.all_gone()
                assert result.stop_reason == ("error" if ending == "kill" else "cancelled")
                assert result.agents_completed == 1
            async with await engine.start(request("return await agent('next')")) as run:
                assert (await run.result).value == "x"

    run_async(main())


# ------------------------------------------------------------------------------------------------- nothing adds up


def _measure() -> dict[str, int]:
    me = psutil.Process()
    return {
        "descriptors": me.num_fds(),
        "threads": threading.active_count(),
        "children": len(me.children(recursive=True)),
        "tasks": len(asyncio.all_tasks()),
    }


def test_two_hundred_runs_leave_everything_where_it_was() -> None:
    """Of every kind: completed, failed, cancelled, killed, with agents and without."""
    kinds = [
        "return args",
        "return await parallel([1, 2, 3].map(i => () => agent(`a${i}`)))",
        "throw new Error('on purpose')",
        "await agent('boom')",
        "log('cancel me'); return await agent('hang')",
        "log('kill me'); for (;;) await null",
    ]

    async def one(engine: WorkflowEngine, number: int) -> str:
        kind = kinds[number % len(kinds)]
        said = asyncio.Event()
        remove = engine.events.subscribe(lambda event: said.set() if isinstance(event, LogWritten) else None)
        async with await engine.start(request(kind, args=number)) as run:
            if "me" in kind:
                await said.wait()
                if "kill" in kind:
                    for pid in engine.describe().worker_pids:
                        os.kill(pid, signal.SIGKILL)
                else:
                    run.cancel()
            result = await run.result
        remove()
        return result.stop_reason

    others = len(psutil.Process().children(recursive=True))  # servers that other tests of this session keep

    async def main() -> None:
        async with WorkflowEngine(EngineConfig(max_concurrent_agents=2, spare_workers=0)) as engine:
            engine.agents.register("default", scripted_agent)
            for number in range(24):
                await one(engine, number)
            before, ends = await _settled(), [await one(engine, number) for number in range(200)]
            resident = psutil.Process().memory_info().rss
            ends += [await one(engine, number) for number in range(200)]
            assert {end: ends.count(end) for end in set(ends)} == {"completed": 136, "error": 198, "cancelled": 66}
            assert await _settled() == before
            assert psutil.Process().memory_info().rss - resident < 4 << 20

    async def _settled() -> dict[str, int]:
        gc.collect()
        # the zygote and this very task
        await _until(lambda: _measure()["children"] - others == _measure()["tasks"] == 1)
        return _measure()

    run_async(main())


def test_a_descriptor_limit_that_is_reached_refuses_the_start_and_says_what_to_raise() -> None:
    body = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

async def main():
    engine = await new_engine(max_workers=100)
    async with engine:
        runs = []
        try:
            for _ in range(100):
                runs.append(await start(engine, "await agent('hang')"))
        except WorkflowError as error:
            print(error)
        for run in runs:
            await run.dispose()
        async with await start(engine, "return 'again'") as run:
            print((await run.result).value)

asyncio.run(main())
"""
    with host(body) as process:
        said, errors = process.communicate(timeout=40)
        assert process.returncode == 0, errors
        refused, again = said.splitlines()
        assert "ulimit -n" in refused
        assert again == "again"


def test_no_file_of_the_host_is_open_in_a_worker() -> None:
    """Inherited descriptors would keep a file, a pipe or a socket of the host alive."""

    async def main() -> None:
        read, write = os.pipe()
        os.set_inheritable(write, True)
        said = asyncio.Event()
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(lambda event: said.set() if isinstance(event, LogWritten) else None)
            async with await engine.start(request("log('a'); await agent('hang')")):
                await said.wait()
                os.close(write)
                assert os.read(read, 1) == b""  # end of file: nobody else holds it
        os.close(read)

    run_async(main())


def test_a_host_without_standard_streams_works() -> None:
    body = """
for descriptor in (0, 1):
    os.close(descriptor)

async def main():
    engine = await new_engine()
    async with engine, await start(engine, "return await agent('x')") as run:
        os._exit(7 if (await run.result).value == 'ok' else 8)

asyncio.run(main())
"""
    with host(body) as process:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 7, errors


def test_the_subprocess_helper_notices_a_process_that_stays() -> None:
    with subprocess.Popen(["sleep", "60"]) as process, Exits([process.pid]) as exits:
        assert not exits.all_gone(timeout=0.05)
        process.kill()
        assert exits.all_gone()
