"""A cap on how many agents of one provider exist at once, over all runs of an engine.

Guarantees: agents get their slots in the order in which they asked; one whose run closes while it waits is released at
once and takes no slot with it; a slot is free again when its agent was refused or disposed, on every path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, cast

from orchestrator.signals import AbortSignal
from protocol.errors import ErrorCode, WorkflowError

if TYPE_CHECKING:
    from orchestrator.agents import AgentProvider, AgentRequest, AgentResult, AgentRun

__all__ = ["AgentSlots", "CappedProvider"]


class AgentSlots:
    """Belongs to one event loop, as the engine does; only aborts may come from other threads.

    Args:
        limit: how many may be taken at once.
    """

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._waiting: dict[asyncio.Future[bool], None] = {}  # in order, with removal from the middle at no cost

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    async def take(self, signal: AbortSignal) -> None:
        """Waits for a slot.

        Raises:
            WorkflowError: ``signal`` was aborted before there was one.
        """
        if signal.aborted:
            raise _aborted(signal)
        if self.free and not self._waiting:
            self.free -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting[turn] = None
        remove = signal.add_listener(lambda _reason: loop.call_soon_threadsafe(_settle, turn, False))
        try:
            got_it = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():  # it was given in the very moment of the cancel
                self.give_back()
            raise
        finally:
            self._waiting.pop(turn, None)
            remove()
        if not got_it:
            raise _aborted(signal)

    def give_back(self) -> None:
        """Frees a slot, for whoever waits longest."""
        while self._waiting:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                turn.set_result(True)
                return
        self.free += 1


class CappedProvider:
    """A provider that starts an agent only when it has a slot.

    Args:
        provider: starts the agents.
        limit: how many of them may exist at once.
    """

    def __init__(self, provider: AgentProvider, limit: int) -> None:
        self._provider = provider
        self.slots = AgentSlots(limit)

    @property
    def supported_options(self) -> Collection[str]:
        """What the provider declares."""
        return cast(Collection[str], getattr(self._provider, "supported_options", ()))

    async def start(self, request: AgentRequest) -> AgentRun:
        """Waits for a slot and starts the agent, unless its run closes before."""
        await self.slots.take(request.signal)
        try:
            if request.signal.aborted:
                raise _aborted(request.signal)
            run = await self._provider.start(request)
        except BaseException:
            self.slots.give_back()
            raise
        return _CappedRun(run, self.slots.give_back)


class _CappedRun:
    def __init__(self, run: AgentRun, give_back: Callable[[], None]) -> None:
        self._run = run
        self._give_back = give_back

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._run.result

    async def dispose(self) -> None:
        """Disposes the agent; its slot is free afterwards, whatever becomes of the dispose."""
        try:
            await self._run.dispose()
        finally:
            self._give_back()


def _settle(turn: asyncio.Future[bool], value: bool) -> None:
    if not turn.done():
        turn.set_result(value)


def _aborted(signal: AbortSignal) -> WorkflowError:
    return WorkflowError(ErrorCode.CANCELLED, f"the run was aborted before the agent started: {signal.reason}")
