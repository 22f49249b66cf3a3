"""One agent of one run: a single task from the provider's start to the end of its dispose.

It reports what happened as lifecycle events and is told by the lifecycle when to dispose. Whatever a provider does
(raises, ignores the abort, answers nonsense) ends here as an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from orchestrator import lifecycle_events as ev
from orchestrator.agents import AgentFailed, AgentProvider, AgentRequest, AgentResult, AgentRun, Usage
from orchestrator.jsonvalue import JSONValueError, encode_json, well_formed
from orchestrator.schemas import AgentSchema
from protocol.errors import WorkflowError

__all__ = ["Child"]

_log = logging.getLogger(__name__)

_NULL = msgspec.Raw(b"null")
_NO_USAGE = Usage()


class Child:
    """Starts at construction.

    Args:
        feed: takes the lifecycle's events.
        gone: called with the seq once the task is over.
    """

    def __init__(
        self,
        provider: AgentProvider,
        request: AgentRequest,
        schema: AgentSchema | None,
        feed: Callable[[ev.Event], None],
        gone: Callable[[int], None],
        max_answer: int,
    ) -> None:
        self._provider = provider
        self._request = request
        self._schema = schema
        self._feed = feed
        self._gone = gone
        self._max_answer = max_answer
        self._run: AgentRun | None = None
        self._wanted = False  # the lifecycle said: dispose
        self._awaiting = False
        self._early_dispose: asyncio.Task[None] | None = None
        self.task = asyncio.get_running_loop().create_task(self._live(), name=f"agent {request.seq}")
        self.task.add_done_callback(self._came_to_rest)  # also runs when the task was cancelled before its first step

    def give_up(self) -> None:
        """The grace is over: cancels whatever the provider still does. A start that fulfils even so is disposed."""
        self.task.cancel()

    def dispose(self) -> None:
        """The lifecycle's instruction. While the result is still awaited the dispose runs beside it."""
        self._wanted = True
        if self._awaiting and self._early_dispose is None:
            self._early_dispose = asyncio.get_running_loop().create_task(self._dispose(), name="dispose an agent")

    async def _live(self) -> None:
        seq = self._request.seq
        try:
            self._run = run = await self._provider.start(self._request)
            child_id = well_formed(str(run.id))
        except asyncio.CancelledError:
            if not self._excuse_cancel():
                raise
            self._feed(ev.StartRefused(seq, "it was cancelled while starting"))
            return
        except Exception as error:
            if self._run is not None:  # it started, but has no id to be announced by
                await self._dispose()
            self._feed(ev.StartRefused(seq, render(error)))
            return
        self._feed(ev.ChildStarted(seq, child_id))
        if not self._wanted:
            self._awaiting = True
            outcome = await self._outcome(run)
            self._awaiting = False
            self._feed(outcome)
        if self._early_dispose is not None:
            await self._early_dispose
        else:
            await self._dispose()
        # The usual end: told in this step, without the turn of the loop that a done callback takes.
        self.task.remove_done_callback(self._came_to_rest)
        self._rest()

    def _came_to_rest(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:  # SystemExit and its kind: the loop is ending
            self._feed(ev.CancelRequested("the event loop is shutting down"))
        self._rest()

    def _rest(self) -> None:
        self._gone(self._request.seq)
        self._feed(ev.ChildAtRest(self._request.seq))

    def _excuse_cancel(self) -> bool:
        """Whether a CancelledError is the provider's own or follows from the run's abort, and not from outside."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() == 0:
            return True
        if self._request.signal.aborted:
            while task.cancelling():
                task.uncancel()
            return True
        self._feed(ev.CancelRequested("the event loop is shutting down"))
        return False

    async def _outcome(self, run: AgentRun) -> ev.Event:
        seq = self._request.seq
        try:
            answer: Any = await run.result
        except AgentFailed as failure:
            return ev.ChildSettled(seq, _NULL, failed=True, error=render(failure, bare=True))
        except asyncio.CancelledError:
            if not self._excuse_cancel():
                raise
            return ev.ChildSettled(seq, _NULL, failed=True, error="it was cancelled by its provider")
        except Exception as error:
            return ev.ChildBroke(seq, render(error))
        if not isinstance(answer, AgentResult):
            return ev.ChildBroke(seq, f"its result is a {type(answer).__name__}, not an AgentResult")
        try:
            return self._judge(answer)
        except Exception as error:  # the fields of a result are whatever the provider put there
            return ev.ChildBroke(seq, f"its result cannot be read: {render(error)}")

    def _judge(self, answer: AgentResult) -> ev.Event:
        seq = self._request.seq
        usage = answer.usage if answer.usage is not None else _NO_USAGE
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if not isinstance(cast(object, tokens), int) or tokens < 0:
                return ev.ChildBroke(seq, f"it reports {tokens!r:.40} {kind} tokens, not a whole number")
        if answer.stop_reason != "completed":
            reason = answer.error or f"it stopped: {answer.stop_reason}"
            return self._settled(usage, error=well_formed(reason))
        value: object = answer.text if self._schema is None else answer.structured
        if self._schema is None and not isinstance(value, str):
            return ev.ChildBroke(seq, f"its text is a {type(value).__name__}, not a str")
        try:
            raw = encode_json(value, "answer")
        except JSONValueError as error:
            return ev.ChildBroke(seq, f"its answer is not JSON: {error}")
        size = memoryview(raw).nbytes
        if size > self._max_answer:
            return ev.ChildBroke(seq, f"its answer of {size} bytes is over the limit of {self._max_answer} (max_frame)")
        if self._schema is not None and (errors := self._schema.errors(msgspec.json.decode(raw))):
            text = "its answer does not match the schema: " + "; ".join(errors)
            return self._settled(usage, error=well_formed(text))
        return self._settled(usage, raw)

    def _settled(self, usage: Usage, value: msgspec.Raw = _NULL, error: str | None = None) -> ev.Event:
        return ev.ChildSettled(
            self._request.seq,
            value,
            failed=error is not None,
            error=error,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
        )

    async def _dispose(self) -> None:
        assert self._run is not None
        try:
            await self._run.dispose()
        except asyncio.CancelledError:
            if not self._excuse_cancel():
                raise
        except Exception as error:
            _log.warning("disposing agent %d (%s) failed: %s", self._request.seq, self._request.label, render(error))


def render(error: BaseException, *, bare: bool = False) -> str:
    """A provider's error as text; also when its ``__str__`` raises."""
    try:
        text = str(error)
    except Exception:
        text = "[an error that cannot be shown]"
    if not bare and not isinstance(error, WorkflowError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return well_formed(text or "no reason given")
