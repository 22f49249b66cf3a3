"""The engine seam: what a host embeds.

`WorkflowEngine.start` checks everything that can be checked before a run exists and raises `WorkflowError` for it; the
`WorkflowRun` it returns never raises from its result. Several engines may live in one process; each belongs to the
event loop it is first used in.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from orchestrator.agents import AgentFunction, AgentProvider, AgentRegistry
from orchestrator.bus import EventBus
from orchestrator.config import EngineConfig
from orchestrator.header import HEADER_AND_META, hint_for_missing_meta, hint_for_parse_error, split_header
from orchestrator.jsonvalue import JSONValueError, encode_json, well_formed
from orchestrator.meta import validate_meta
from orchestrator.pool import WorkerPool
from orchestrator.results import WorkflowResult
from orchestrator.run import RunDriver, WorkflowRun
from orchestrator.signals import AbortController, AbortSignal
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import RunId
from protocol.messages import Limits, Load, WallReport

__all__ = ["EngineDescription", "WorkflowEngine", "WorkflowStartRequest", "run_workflow"]

_log = logging.getLogger(__name__)


class WorkflowStartRequest(msgspec.Struct, kw_only=True):
    """One run to start.

    Args:
        script: the JavaScript body, or a file's text with its ``export const meta`` header.
        meta: the workflow's identity; left out when the script has a header.
        args: any plain JSON value, seen by the script as ``args``; left out it is ``undefined`` there.
        parent: on whose behalf the run works; every agent request carries it.
        signal: aborts the run.
        subagent_provider: the registered agent provider of this run, instead of the engine's.
        max_total_agents: a lower cap for this run.
    """

    script: str
    meta: Any = None
    args: Any = msgspec.UNSET
    parent: Any = None
    signal: AbortSignal | None = None
    subagent_provider: str | None = None
    max_total_agents: int | None = None


class EngineDescription(msgspec.Struct, frozen=True):
    """What an engine runs on. ``walls`` are those of the last worker that reported; empty before the first run."""

    python: str
    engine: str
    worker_mode: str
    mode_reason: str
    sandbox: str
    walls: tuple[WallReport, ...]
    workers_alive: int
    spare_workers: int
    zygote_pid: int | None = None
    worker_pids: tuple[int, ...] = ()


class WorkflowEngine:
    """Runs workflow scripts. Use it as an async context manager, or call `aclose`.

    Args:
        config: the settings; the defaults suit a developer's machine.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config if config is not None else EngineConfig()
        self.agents = AgentRegistry()
        self.events = EventBus()
        self._pool = WorkerPool(self.config)
        self._runs: set[RunDriver] = set()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> WorkflowEngine:
        self._bind()
        await self._pool.warm_up()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def start(self, request: WorkflowStartRequest) -> WorkflowRun:
        """Starts a run.

        Raises:
            WorkflowError: bad meta, a script that does not parse, an unknown provider, a cap that is not a positive
                integer or exceeds the engine's, args that are not JSON. No event is emitted for such a request.
        """
        self._bind()
        if self._stopped:
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, "the workflow engine is stopped and takes no new runs")
        if not isinstance(request.script, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, "workflow script must be a string")
        if request.signal is not None and not isinstance(request.signal, AbortSignal):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(request.signal).__name__
            text = f"workflow signal must be an AbortSignal (AbortController().signal), not {kind}"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)
        meta = None if request.meta is None else validate_meta(request.meta)
        max_total_agents = self._total_cap(request.max_total_agents)
        provider = self._provider(request.subagent_provider)
        script = well_formed(request.script)
        split = split_header(script)
        if meta is None and split.literal is None:
            text = "invalid meta: meta must be an object, in the request or as the script's `export const meta = {…}`"
            hint = hint_for_missing_meta(script)
            raise WorkflowError(ErrorCode.META_INVALID, f"{text}\n{hint}" if hint else text)
        if meta is not None and split.literal is not None:
            raise WorkflowError(ErrorCode.META_INVALID, HEADER_AND_META)
        load = Load(
            script=split.body,
            limits=Limits(
                max_total_agents=max_total_agents,
                max_items_per_call=self.config.max_items_per_call,
                max_depth=self.config.max_depth,
                max_frame=self.config.max_frame,
                slice_seconds=self.config.sync_timeout,
                token_budget=self.config.token_budget,
            ),
            header=split.literal,
            args=self._args(request.args),
        )
        worker = await self._pool.lease(request.signal)
        driver = RunDriver(
            run_id=RunId(f"wf_{uuid.uuid4().hex[:16]}"),
            config=self.config,
            bus=self.events,
            pool=self._pool,
            worker=worker,
            provider=provider,
            provider_name=self.config.provider if request.subagent_provider is None else request.subagent_provider,
            find_provider=self._override(request.subagent_provider),
            meta=meta,
            max_total_agents=max_total_agents,
            parent=request.parent,
            signal=request.signal,
            explain_parse_error=lambda message: _hint(split.body, message),
            on_settled=self._runs.discard,
        )
        self._runs.add(driver)  # until it is settled, whatever becomes of this start
        return await driver.start(load)

    def stop(self) -> None:
        """Refuses new starts; accepted runs go on until they end or their holders dispose them."""
        self._stopped = True

    async def aclose(self) -> None:
        """Stops, waits for the accepted runs within ``dispose_grace``, and kills what is left. Idempotent.

        Then it closes the registered providers that have an ``aclose()``.

        Also from another event loop once the engine's own is closed: then the runs ended with it.
        """
        if self._loop is not None and self._loop.is_closed():
            self.stop()
            self._runs.clear()
            await self._pool.abandon()
            return
        self._bind()
        self.stop()
        grace = self.config.dispose_grace
        try:
            if self._runs:
                await asyncio.wait({driver.settled for driver in self._runs}, timeout=grace)
            for driver in tuple(self._runs):
                driver.cancel("the workflow engine was closed")
            if self._runs:
                await asyncio.wait({driver.settled for driver in self._runs}, timeout=grace + 1.0)
        finally:  # also when the task that closes is cancelled: no process stays behind
            for driver in tuple(self._runs):
                driver.cancel("the workflow engine was closed")
            await self._pool.close()
        await self._close_providers(grace)
        await self.events.finish(grace)

    async def _close_providers(self, grace: float) -> None:
        """What a provider keeps between agents (a connection, a child process) belongs to this engine's loop."""
        try:
            async with asyncio.timeout(grace + 1.0):
                await self.agents.aclose()
        except TimeoutError:
            _log.warning("an agent provider's aclose() did not end within %g s (dispose_grace)", grace + 1.0)

    def describe(self) -> EngineDescription:
        """Versions, worker mode and why, the walls that are up, the workers alive."""
        ready = self._pool.ready
        return EngineDescription(
            python=ready.python if ready else "",
            engine=f"pythonmonkey {ready.engine}" if ready else "",
            worker_mode=ready.mode if ready else "not started",
            mode_reason=ready.reason if ready else "the engine has not started a worker yet",
            sandbox=self.config.sandbox,
            walls=self._pool.walls,
            workers_alive=self._pool.alive,
            spare_workers=self._pool.spares,
            zygote_pid=self._pool.zygote_pid,
            worker_pids=self._pool.worker_pids,
        )

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            text = "a workflow engine belongs to the event loop it is first used in: make another engine for this loop"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)

    def _total_cap(self, requested: int | None) -> int:
        ceiling = self.config.max_total_agents
        if requested is None:
            return ceiling
        if type(requested) is not int or requested < 1 or requested > 2**53 - 1:
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, "workflow maxTotalAgents must be a positive safe integer")
        if requested > ceiling:
            text = f"workflow maxTotalAgents {requested} exceeds the engine ceiling {ceiling}"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)
        return requested

    def _provider(self, requested: str | None) -> AgentProvider:
        if requested is not None:
            AgentRegistry.check_name(requested, "workflow subagentProvider")
        return self.agents.get(requested if requested is not None else self.config.provider)

    def _override(self, requested: str | None) -> Callable[[str], AgentProvider | None]:
        """A call may name a registered provider, unless the holder of the run chose one."""

        def find(name: str) -> AgentProvider | None:
            return self.agents.get(name) if requested is None and name in self.agents.names else None

        return find

    def _args(self, args: object) -> msgspec.Raw | msgspec.UnsetType:
        if args is msgspec.UNSET:
            return msgspec.UNSET
        try:
            raw = encode_json(args, "args")
        except JSONValueError as error:
            text = f"workflow args must be plain JSON data — {error}"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text) from None
        size = memoryview(raw).nbytes
        if size > self.config.max_frame:
            text = f"workflow args of {size} bytes are over the limit of {self.config.max_frame} (max_frame)"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)
        return raw


def _hint(script: str, message: str) -> str:
    """A hint to add to a parse error, where its place can be read from the message."""
    _, _, place = message.partition("(line ")
    line, _, rest = place.partition(", column ")
    column, _, _ = rest.partition(")")
    try:
        hint = hint_for_parse_error(script, int(line), int(column), message)
    except ValueError:
        return ""
    return f"\n{hint}" if hint else ""


def run_workflow(
    script: str,
    *,
    meta: Any = None,
    args: Any = msgspec.UNSET,
    agent: AgentProvider | AgentFunction,
    config: EngineConfig | None = None,
    signal: AbortSignal | None = None,
) -> WorkflowResult:
    """Runs one script to its end: the blocking twin of the engine, for scripts and notebooks.

    Args:
        script, meta, args, signal: as in `WorkflowStartRequest`.
        agent: the provider, or async function, that does the work of every ``agent()`` call.
        config: engine settings.

    Raises:
        WorkflowError: as `WorkflowEngine.start`.
    """

    async def main(signal: AbortSignal | None) -> WorkflowResult:
        async with WorkflowEngine(config) as engine:
            engine.agents.register(engine.config.provider, agent)
            request = WorkflowStartRequest(script=script, meta=meta, args=args, signal=signal)
            async with await engine.start(request) as run:
                return await run.result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main(signal))
    return _in_thread(main, signal)


def _in_thread(
    main: Callable[[AbortSignal], Coroutine[Any, Any, WorkflowResult]], signal: AbortSignal | None
) -> WorkflowResult:
    """A notebook's loop is already running in this thread: use one of our own in another.

    An interrupt is heard in this thread alone: it cancels the run there, which would be waited for until its end.
    """
    import concurrent.futures

    controller = AbortController()
    remove = signal.add_listener(controller.abort) if signal is not None else None
    try:
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="run_workflow") as executor:
            future = executor.submit(lambda: asyncio.run(main(controller.signal)))
            try:
                return future.result()
            except BaseException:
                controller.abort("interrupted")
                raise
    finally:
        if remove is not None:
            remove()
