"""Where the engine works: any loop, any thread, any way of starting Python, forked or spawned workers, many runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator import (
    AbortController,
    AgentRequest,
    AgentStarted,
    EngineConfig,
    EngineDescription,
    ErrorCode,
    WorkflowEngine,
    WorkflowError,
    WorkflowEvent,
    WorkflowResult,
    WorkflowRun,
    WorkflowStartRequest,
    run_workflow,
)
from orchestrator.zygote_client import ZygoteClient
from tests.conftest import run_async
from tests.support import META, run_script, scripted_agent

QUIET = EngineConfig(spare_workers=0)
ROOT = Path(__file__).resolve().parents[2]

# --- the blocking twin ---


def test_the_blocking_twin_runs_a_script_to_its_end() -> None:
    result = run_workflow("return [args, await agent('x')]", meta=META, args=1, agent=scripted_agent, config=QUIET)
    assert (result.stop_reason, result.value) == ("completed", [1, "ok:x"])


def test_the_blocking_twin_works_inside_a_running_loop() -> None:
    async def main() -> WorkflowResult:
        return run_workflow("return await agent('x')", meta=META, agent=scripted_agent, config=QUIET)

    assert run_async(main()).value == "ok:x"


def test_the_blocking_twin_raises_what_start_raises_and_returns_what_fails_later() -> None:
    with pytest.raises(WorkflowError, match="does not parse"):
        run_workflow("let = =", meta=META, agent=scripted_agent, config=QUIET)
    result = run_workflow("throw 'x'", meta=META, agent=scripted_agent, config=QUIET)
    assert (result.stop_reason, result.error) == ("error", "x")


def test_the_blocking_twin_obeys_a_signal_from_another_thread() -> None:
    controller = AbortController()

    async def agent(_: AgentRequest) -> str:
        thread = threading.Thread(target=controller.abort, name="aborter")
        thread.start()
        await asyncio.Event().wait()
        return "never"

    result = run_workflow("await agent('x')", meta=META, agent=agent, config=QUIET, signal=controller.signal)
    assert (result.stop_reason, result.error) == ("cancelled", "workflow run cancelled: workflow signal aborted")


# --- where it works ---


def test_several_engines_share_a_process_and_a_loop() -> None:
    async def main() -> list[Any]:
        async def named(number: int) -> Any:
            async def agent(request: AgentRequest) -> str:
                return f"{number}:{request.prompt}"

            async with WorkflowEngine(QUIET) as engine:
                engine.agents.register("default", agent)
                async with await engine.start(WorkflowStartRequest(script="return await agent('x')", meta=META)) as run:
                    return (await run.result).value

        return await asyncio.gather(*(named(number) for number in range(3)))

    assert run_async(main()) == ["0:x", "1:x", "2:x"]


def test_engines_work_in_loops_on_other_threads_at_the_same_time() -> None:
    outcomes: dict[int, Any] = {}

    def work(number: int) -> None:
        outcomes[number] = run_script(f"return [{number}, await agent('x')]", config=QUIET).result.value

    threads = [threading.Thread(target=work, args=(number,), name=f"worker-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(45)
    assert outcomes == {number: [number, "ok:x"] for number in range(3)}


def test_a_run_may_be_cancelled_from_another_thread() -> None:
    def cancel(run: WorkflowRun, event: WorkflowEvent) -> None:
        if isinstance(event, AgentStarted):
            threading.Thread(target=run.cancel, args=("from a thread",), name="canceller").start()

    result = run_script("await agent('hang')", config=QUIET, on_event=cancel).result
    assert (result.stop_reason, result.error) == ("cancelled", "workflow run cancelled: from a thread")


def test_describe_says_what_the_engine_runs_on() -> None:
    async def main() -> None:
        engine = WorkflowEngine(EngineConfig(spare_workers=1))
        assert (engine.describe().worker_mode, engine.describe().workers_alive) == ("not started", 0)
        async with engine:
            engine.agents.register("default", scripted_agent)
            async with await engine.start(WorkflowStartRequest(script="return 1", meta=META)) as run:
                await run.result
            described = engine.describe()
            assert described.engine == "pythonmonkey 1.4.1"
            assert described.python.startswith("3.")
            assert described.worker_mode in ("zygote", "spawn")
            assert described.mode_reason
            assert described.walls
            assert described.zygote_pid is not None
            assert psutil.pid_exists(described.zygote_pid)
        assert engine.describe().workers_alive == 0

    run_async(main())


# --- many runs ---


def _resources() -> tuple[int, int]:
    process = psutil.Process()
    return process.num_fds(), threading.active_count()


def _workers(engine: WorkflowEngine) -> int:
    """Processes of this engine's own zygote: another test's shared engine may be alive in this process too."""
    return len(psutil.Process(engine.describe().zygote_pid).children(recursive=True))


def _two_spares_alone(described: EngineDescription) -> bool:
    """A spare counts from its order; it has a process id once it is there."""
    return (described.spare_workers, described.workers_alive, len(described.worker_pids)) == (2, 2, 2)


def test_fifty_runs_one_by_one_leave_processes_and_descriptors_as_they_were() -> None:
    async def main() -> None:
        async with WorkflowEngine(EngineConfig(spare_workers=2)) as engine:
            engine.agents.register("default", scripted_agent)

            async def one() -> Any:
                async with await engine.start(WorkflowStartRequest(script="return 1", meta=META)) as run:
                    return (await run.result).value

            async def settled() -> tuple[tuple[int, int], int]:
                while not _two_spares_alone(engine.describe()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # there is no event for it; bounded by the test's timeout
                return _resources(), _workers(engine)

            await one()
            before = await settled()
            for _ in range(50):
                assert await one() == 1
            assert await settled() == before

    run_async(main())


def test_fifty_runs_at_once_leave_processes_and_descriptors_as_they_were() -> None:
    async def main() -> None:
        async with WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
            engine.agents.register("default", scripted_agent)

            async def one(number: int) -> Any:
                async with await engine.start(
                    WorkflowStartRequest(script="return args", meta=META, args=number)
                ) as run:
                    return (await run.result).value

            await one(0)
            before = _resources()
            assert await asyncio.gather(*(one(number) for number in range(50))) == list(range(50))
            assert engine.describe().workers_alive == 0
            assert _resources() == before
            assert _workers(engine) == 0

    run_async(main())


# --- ways of starting Python ---

PROGRAM = """
import asyncio, json, sys
from orchestrator import AgentRequest, EngineConfig, WorkflowEngine, WorkflowStartRequest, run_workflow

async def agent(request: AgentRequest) -> str:
    return 'ok:' + request.prompt

async def main():
    async with WorkflowEngine(EngineConfig(spare_workers=1)) as engine:
        engine.agents.register('default', agent)
        meta = {'name': 'n', 'description': 'd'}
        request = WorkflowStartRequest(script="return [args, await agent('x')]", meta=meta, args=1)
        async with await engine.start(request) as run:
            return await run.result

print('once')
result = asyncio.run(main())
twin = run_workflow("return await agent('y')", meta={'name': 'n', 'description': 'd'}, agent=agent)
print(json.dumps([result.stop_reason, result.value, twin.value]))
"""
EXPECTED = ["once", json.dumps(["completed", [1, "ok:x"], "ok:y"])]


def _python(arguments: list[str], cwd: Path, stdin: str | None = None) -> list[str]:
    """Runs Python as a user would, somewhere else, and returns the lines of its stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=50,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_it_works_from_python_c(tmp_path: Path) -> None:
    assert _python(["-c", PROGRAM], tmp_path) == EXPECTED


def test_it_works_from_stdin_without_a_main_guard(tmp_path: Path) -> None:
    assert _python(["-"], tmp_path, PROGRAM) == EXPECTED


def test_it_works_from_a_script_without_a_main_guard_which_runs_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert _python(["program.py"], tmp_path) == EXPECTED


@pytest.mark.parametrize("how", ["-c", "-", "file"])
def test_modules_of_the_user_with_our_names_do_no_harm_and_are_never_run(how: str, tmp_path: Path) -> None:
    for name in ("worker", "protocol", "sandbox", "session", "zygote", "spidermonkey", "tests"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the module of the user was run')\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = {"-c": ["-c", PROGRAM], "-": ["-"], "file": ["program.py"]}[how]
    assert _python(arguments, tmp_path, PROGRAM if how == "-" else None) == EXPECTED


def test_a_foreign_protocol_that_was_imported_first_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("mine = 1\n")
    program = "import protocol\ntry:\n    import orchestrator\nexcept ImportError as error:\n    print(error)"
    [line] = _python(["-c", program], tmp_path)
    assert "import orchestrator first, or rename the other module" in line
    assert str(tmp_path) not in line


def test_it_works_under_a_debugging_loop_without_a_warning(tmp_path: Path) -> None:
    assert _python(["-X", "dev", "-c", PROGRAM], tmp_path) == EXPECTED


# --- forked and spawned workers ---

BASICS = """phase('P'); log('a');
const got = await parallel([() => agent('x'), () => agent('fail'), () => { throw 1 }]);
const piped = await pipeline([1, 2], (n) => agent('p' + n), (r) => r.length);
let code; try { await agent('') } catch (e) { code = [e.code, e instanceof Error] }
const waited = await new Promise((r) => setTimeout(r, 1, 'timer'));
return { args, got, piped, code, waited, half: '\\ud83d', gone: undefined }"""
BASIC_RESULT = {"args": {"a": [1]}, "got": ["ok:x", None, None], "piped": [5, 5], "code": ["INVALID_ARGUMENT", True],
                "waited": "timer", "half": "\ufffd"}  # fmt: skip


async def _basics(engine: WorkflowEngine) -> EngineDescription:
    """The contract's main lines; raises where one does not hold."""
    engine.agents.register("default", scripted_agent)

    async def run(script: str, **request: Any) -> WorkflowResult:
        async with await engine.start(WorkflowStartRequest(script=script, meta=META, **request)) as started:
            return await started.result

    done = await run(BASICS, args={"a": [1]})
    assert (done.stop_reason, done.value, len(done.warnings)) == ("completed", BASIC_RESULT, 2)
    assert (done.agents_completed, done.agents_failed) == (3, 1)
    failed = await run("\nnull.x")
    assert str(failed.error).endswith("(line 2, column 1)\nnull.x\n^")
    with pytest.raises(WorkflowError, match=r"does not parse: .* \(line 1, column 7\)"):
        await run("let = =")
    assert (await run("await new Promise(() => {})")).code == ErrorCode.SCRIPT_STALLED
    assert (await run("return [typeof python, typeof require, typeof console]")).value == ["undefined"] * 3
    heavy = "const keep = []; let h = 0; for (let i = 0; i < 2e5; i++) { keep.push({ i }); h = (h * 31 + i) | 0 } "
    assert (await run(heavy + "return keep.length")).value == 200_000
    values = await asyncio.gather(*(run("return args", args=number) for number in range(4)))
    assert [result.value for result in values] == [0, 1, 2, 3]
    spinning = await engine.start(WorkflowStartRequest(script="log('on'); while (true) {}", meta=META))
    async for event in spinning.events():
        if event.type == "workflow/log":
            spinning.cancel("enough")
    assert (await spinning.result).stop_reason == "cancelled"
    await spinning.dispose()
    return engine.describe()


@pytest.mark.parametrize("spares", [0, 1])
def test_the_basics_hold_with_spawned_workers(spares: int) -> None:
    async def main() -> EngineDescription:
        async with WorkflowEngine(
            EngineConfig(worker_mode="spawn", spare_workers=spares, sandbox="required")
        ) as engine:
            return await _basics(engine)

    described = run_async(main())
    assert (described.worker_mode, described.mode_reason) == ("spawn", "asked for by the configuration")


def test_a_spawned_worker_that_is_killed_did_not_run_out_of_memory_for_being_large() -> None:
    config = EngineConfig(worker_mode="spawn", spare_workers=0, memory_limit=48 << 20)

    async def main() -> WorkflowResult:
        async with WorkflowEngine(config) as engine:
            engine.agents.register("default", scripted_agent)
            async with await engine.start(WorkflowStartRequest(script="log('on'); while (true) {}", meta=META)) as run:
                async for event in run.events():
                    if event.type == "workflow/log":
                        (pid,) = engine.describe().worker_pids
                        os.kill(pid, signal.SIGKILL)
                return await run.result

    result = run_async(main())
    assert (result.code, "was killed by SIGKILL" in str(result.error)) == (ErrorCode.WORKER_DIED, True), result.error


def test_without_the_engines_exports_workers_are_spawned_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ZygoteClient, "hide_symbols", True)

    async def main() -> EngineDescription:
        async with WorkflowEngine(QUIET) as engine:
            return await _basics(engine)

    described = run_async(main())
    assert described.worker_mode == "spawn"
    assert described.mode_reason == "the calls that keep the engine's work off helper threads were hidden"


@pytest.mark.parametrize("sandbox", ["off", "required"])
def test_the_basics_hold_with_forked_workers(sandbox: Any) -> None:
    async def main() -> EngineDescription:
        async with WorkflowEngine(EngineConfig(sandbox=sandbox, spare_workers=1)) as engine:
            return await _basics(engine)

    described = run_async(main())
    assert described.sandbox == sandbox
    assert described.worker_mode == "zygote"
