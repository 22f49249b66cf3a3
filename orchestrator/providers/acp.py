"""Agents that are sessions of a program that speaks the Agent Client Protocol (extra ``acp``).

Guarantees: an agent that failed says why; a program that cannot be started, does not speak the protocol or wants a
login refuses the agent, and so does a model, an agent type or an effort it does not offer; a structured answer is valid
or the agent failed. An agent that is aborted or disposed is cancelled by the protocol, and its process is ended when it
does not answer that in time. After ``aclose`` no process is left, nor anything that one started.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import PurePath
from typing import TYPE_CHECKING

from orchestrator.agents import AgentRequest, AgentResult, Usage
from orchestrator.providers.acp_settings import AcpSettings, acp_settings_from_spec
from orchestrator.providers.child_endings import why_not_started
from orchestrator.providers.structured import StructuredAnswerError, ask_structured, instruction
from protocol.errors import ErrorCode, WorkflowError

if TYPE_CHECKING:
    from orchestrator.providers.acp_process import AgentProcess
    from orchestrator.providers.acp_session import AcpSession, Turn

__all__ = ["AcpProvider", "AcpSettings", "acp_settings_from_spec"]

_child_numbers = itertools.count(1)
_STOPS = {
    "max_tokens": "reached its limit of tokens",
    "max_turn_requests": "reached its limit of requests to the model",
    "refusal": "refused to go on",
}


class AcpProvider:
    """Gives each agent a session of its own, in one process for all of them or in one for each.

    Honours ``agentType`` (the session's mode), ``effort`` (where the agent lets it be chosen) and ``stallMs``.
    Processes that are kept belong to the event loop of their first call.

    Args:
        settings: see `AcpSettings`.

    Raises:
        ModuleNotFoundError: the extra ``acp`` is not installed; the message says how to install it.
    """

    supported_options = ("agentType", "effort", "stallMs")

    def __init__(self, settings: AcpSettings) -> None:
        _require_sdk()  # here and not in the first agent: importing it takes the loop of a running engine a while
        self.settings = settings
        self._kept: dict[asyncio.AbstractEventLoop, AgentProcess] = {}
        self._processes: dict[AgentProcess, asyncio.AbstractEventLoop] = {}

    async def start(self, request: AgentRequest) -> _AcpRun:
        """Opens a session for one agent, in a new process where there is none to use.

        Raises:
            WorkflowError: there can be no such session, an option has a senseless value, or the run was aborted.
        """
        if request.signal.aborted:
            raise WorkflowError(ErrorCode.CANCELLED, f"the run was aborted: {request.signal.reason}")
        stall = _stall_seconds(request.options.get("stallMs"))
        mode = _text_option(request, "agentType") or self.settings.mode
        effort = _text_option(request, "effort")
        loop = asyncio.get_running_loop()
        opening = loop.create_task(self._open(request, mode, effort), name="acp start")
        remove = request.signal.add_listener(lambda _reason: loop.call_soon_threadsafe(opening.cancel))
        try:
            process, session = await opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not request.signal.aborted or (task is not None and task.cancelling()):
                raise
            raise WorkflowError(ErrorCode.CANCELLED, f"the run was aborted: {request.signal.reason}") from None
        finally:
            remove()
        return _AcpRun(self, process, session, request, stall)

    async def aclose(self) -> None:
        """Ends every process this loop started. Agents at work in them fail."""
        loop = asyncio.get_running_loop()
        mine = [process for process, owner in self._processes.items() if owner is loop]
        await asyncio.gather(*(self.end(process, "was ended with its provider") for process in mine))

    def kill_all(self) -> None:
        """SIGKILL to every process: for a holder who will not wait for the grace."""
        for process in tuple(self._processes):
            process.kill()

    async def end(self, process: AgentProcess, because: str | None = None) -> None:
        """Ends a process, whatever still works in it. See `AgentProcess.end`."""
        try:
            await process.end(because)
        finally:
            self._processes.pop(process, None)

    async def _open(
        self, request: AgentRequest, mode: str | None, effort: str | None
    ) -> tuple[AgentProcess, AcpSession]:
        from orchestrator.providers.acp_process import AgentError, AgentProcessError
        from orchestrator.providers.acp_session import AcpSession

        model = request.model or self.settings.model
        while True:
            process = await self._process()
            was_ready = process.ready
            try:
                await process.opened()
                return process, await AcpSession.open(process, model=model, mode=mode, effort=effort)
            except AgentProcessError as error:
                await self.end(process)
                if was_ready and self.settings.reuse:
                    continue  # it died between two calls, which is no fault of this one
                raise _cannot_start(str(error)) from None
            except AgentError as error:
                if not self.settings.reuse:
                    await self.end(process)
                raise _cannot_start(str(error)) from None
            except asyncio.CancelledError:
                if not self.settings.reuse:
                    await self.end(process)
                raise

    async def _process(self) -> AgentProcess:
        from orchestrator.providers.acp_process import AgentProcess

        loop = asyncio.get_running_loop()
        self._forget_closed_loops()
        kept = self._kept.get(loop)
        if kept is not None and kept.usable:
            return kept
        try:
            process = AgentProcess(self.settings)
        except (OSError, ValueError) as error:
            program = PurePath(self.settings.argv[0]).name
            raise _cannot_start(f"{program} {why_not_started(error)}") from None
        self._processes[process] = loop
        if self.settings.reuse:
            self._kept[loop] = process
        if kept is not None:  # it still has a connection; calls at work in it learn of its death from themselves
            await self.end(kept)
        return process

    def _forget_closed_loops(self) -> None:
        """A loop that ends kills its children itself."""
        for loop in [loop for loop in self._kept if loop.is_closed()]:
            del self._kept[loop]
        for process in [process for process, loop in self._processes.items() if loop.is_closed()]:
            del self._processes[process]


class _AcpRun:
    """One agent: the task of its conversation."""

    def __init__(
        self,
        provider: AcpProvider,
        process: AgentProcess,
        session: AcpSession,
        request: AgentRequest,
        stall: float | None,
    ) -> None:
        self.id = f"acp-{next(_child_numbers)}"
        self._provider = provider
        self._process = process
        self._session = session
        self._request = request
        self._stall = stall
        self._usage: Usage | None = None
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._converse(), name=self.id)
        # An abort may come from any thread.
        self._remove_listener = request.signal.add_listener(
            lambda _reason: loop.call_soon_threadsafe(self._task.cancel)
        )

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._result()

    async def _result(self) -> AgentResult:
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.cancelled():
                raise
            return AgentResult(
                stop_reason="cancelled",
                error=f"aborted: {self._request.signal.reason or 'disposed'}",
                usage=self._usage,
            )

    async def dispose(self) -> None:
        """Cancels what still runs. A caller that gives up waiting makes the end of the process immediate."""
        self._remove_listener()
        self._task.cancel()
        try:
            await asyncio.wait({self._task})
            at_rest = await self._session.stop()
            if at_rest and self._provider.settings.reuse:
                await self._session.close()
            elif at_rest:
                await self._provider.end(self._process)
            else:
                grace = self._provider.settings.cancel_grace
                await self._provider.end(
                    self._process,
                    f"did not answer the cancellation of a call within {grace:g} s and was ended (cancel_grace; "
                    "reuse = false gives each call a process of its own)",
                )
        except asyncio.CancelledError:
            self._process.kill()
            raise

    async def _converse(self) -> AgentResult:
        from orchestrator.providers.acp_process import AgentError

        request = self._request
        stall = asyncio.timeout(self._stall)
        loop = asyncio.get_running_loop()
        try:
            async with stall:
                if (seconds := self._stall) is not None:

                    def alive() -> None:
                        if not stall.expired():
                            stall.reschedule(loop.time() + seconds)

                    self._session.on_update = alive
                try:
                    if request.schema is None:
                        return AgentResult(text=await self._ask(request.prompt), usage=self._usage)
                    answer = await ask_structured(
                        self._ask,
                        f"{request.prompt}\n\n{instruction(request.schema)}",
                        request.schema,
                        retries=self._provider.settings.structured_retries,
                    )
                    return AgentResult(text=answer.text, structured=answer.value, usage=self._usage)
                finally:
                    self._session.on_update = lambda: None
        except TimeoutError:
            if not stall.expired():
                raise
            return self._failed(f"{self._process.name} gave no sign of life for {self._stall:g} s (stallMs)")
        except (AgentError, _TurnFailed) as error:
            return self._failed(str(error))
        except StructuredAnswerError as error:
            return self._failed(f"{self._process.name}: {error}")

    async def _ask(self, text: str) -> str:
        turn = await self._session.prompt(text)
        if turn.usage is not None:
            used = self._usage or Usage()
            self._usage = Usage(
                input_tokens=used.input_tokens + turn.usage.input_tokens,
                output_tokens=used.output_tokens + turn.usage.output_tokens,
            )
        if turn.stop_reason != "end_turn":
            raise _TurnFailed(self._why(turn))
        return turn.text

    def _why(self, turn: Turn) -> str:
        name = self._process.name
        if turn.stop_reason == "cancelled":
            refused = self._session.refused
            hint = f" after {refused} refused permission requests (permissions)" if refused else ""
            return f"{name} cancelled its own turn{hint}"
        return f"{name} {_STOPS.get(turn.stop_reason, f'stopped: {turn.stop_reason[:80]!r}')} ({turn.stop_reason[:80]})"

    def _failed(self, reason: str) -> AgentResult:
        return AgentResult(stop_reason="error", error=reason, usage=self._usage)


class _TurnFailed(Exception):
    """A turn ended, but not with an answer."""


def _require_sdk() -> None:
    try:
        import orchestrator.providers.acp_session as _session
    except ModuleNotFoundError as error:
        if error.name != "acp":
            raise
        raise ModuleNotFoundError(
            "the Agent Client Protocol SDK is missing: pip install 'workflow-orchestrator[acp]'", name="acp"
        ) from None
    del _session


def _cannot_start(reason: str) -> WorkflowError:
    return WorkflowError(ErrorCode.AGENT_START, f"agent acp: {reason}")


def _stall_seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise _cannot_start("stallMs must be more than 0 milliseconds")
    return value / 1000


def _text_option(request: AgentRequest, name: str) -> str | None:
    value: object = request.options.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    raise _cannot_start(f"{name} must be a string that is not empty")
