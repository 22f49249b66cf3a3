"""Shared fixtures: every test runs under the event-order checker and the leak check."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import psutil
import pytest

from orchestrator import EngineConfig, EventOrderChecker, WorkflowEngine
from orchestrator.bus import EventBus

TEST_TIMEOUT = 50.0
SANDBOX_VARIABLE = "WORKFLOW_TESTS_SANDBOX"
"""Tells tests that start the command which ``--sandbox`` they were asked to run with."""
_SETTLE_SECONDS = 5.0  # how long a leak may take to go away by itself: a killed process is reaped a little later


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults", "fault injection (tests/faults)")
    group.addoption("--soak", type=int, default=150, metavar="N", help="runs of the soak with random faults")
    group.addoption("--fuzz", type=int, default=20_000, metavar="N", help="random or mutated frames sent to the host")
    group.addoption(
        "--fault-seed", type=int, default=None, metavar="N", help="repeat a soak or a fuzz; each prints its own"
    )
    group = parser.getgroup("sandbox", "the walls around each worker")
    group.addoption(
        "--sandbox", choices=("required",), help="give every engine that a test leaves at 'auto' this mode instead"
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores SIGINT, one under nohup SIGHUP, and so would every command started here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class LeakError(AssertionError):
    """Something was left behind."""


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread is not threading.main_thread()}


def _descriptors() -> set[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for child in psutil.Process().children(recursive=True):
        try:
            zombie = " (zombie)" if child.status() == psutil.STATUS_ZOMBIE else ""  # running or sleeping is no change
            found.add(f"{child.pid} {child.name()}{zombie}")
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a descriptor, a child process, a zombie or a thread. Mark ``leaks`` opts out."""
    if request.node.get_closest_marker("leaks") is not None:
        yield
        return
    probes: dict[str, Callable[[], set[str]]] = {
        "threads": _threads,
        "descriptors": _descriptors,
        "children": _children,
    }
    before = {name: probe() for name, probe in probes.items()}
    yield
    gc.collect()
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        left = {name: sorted(probe() - before[name]) for name, probe in probes.items()}
        left = {name: values for name, values in left.items() if values}
        if not left:
            return
        if time.monotonic() > deadline:
            raise LeakError(f"left behind: {left}")
        time.sleep(0.01)  # not a synchronisation: polls until the kernel has caught up, within the deadline


@pytest.fixture(autouse=True)
def sandbox_as_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--sandbox required`` no ordinary script may notice the walls, and none of them may be down."""
    mode = request.config.getoption("--sandbox")
    if mode is None:
        return
    make = WorkflowEngine.__init__

    def confined(engine: WorkflowEngine, config: EngineConfig | None = None) -> None:
        config = EngineConfig() if config is None else config
        make(engine, msgspec.structs.replace(config, sandbox=mode) if config.sandbox == "auto" else config)

    monkeypatch.setattr(WorkflowEngine, "__init__", confined)
    monkeypatch.setenv(SANDBOX_VARIABLE, mode)


@pytest.fixture(autouse=True)
def events_are_in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventOrderChecker]:
    """Every event of every engine goes through the checker; a broken rule fails the test."""
    checker = EventOrderChecker()
    broken: list[Exception] = []
    emit = EventBus.emit

    def checked(bus: EventBus, event: Any) -> None:
        try:
            checker(event)
        except AssertionError as error:
            broken.append(error)
        emit(bus, event)

    monkeypatch.setattr(EventBus, "emit", checked)
    yield checker
    if broken:
        raise broken[0]
    checker.check_complete()


def run_async(main: Coroutine[Any, Any, Any], timeout: float = TEST_TIMEOUT) -> Any:
    """Runs a test's coroutine in a fresh loop, bounded, and fails when it leaves a task behind."""

    async def bounded() -> Any:
        async with asyncio.timeout(timeout):
            result = await main
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
        if left:
            async with asyncio.timeout(5):
                await asyncio.wait(left, timeout=2)
            left = [task for task in left if not task.done()]
        assert not left, f"tasks left behind: {left}"
        return result

    return asyncio.run(bounded())


@pytest.fixture
def run() -> Callable[..., Any]:
    """`run_async`, for tests that prefer a fixture to an import."""
    return run_async
