"""The live progress of workflow runs, as replacement snapshots.

Guarantees: a reducer keeps no transcript, its size is bounded by the agents at work; agents are keyed by ``seq``, as
labels repeat; a run's state is freed by ``workflow/end``, by the settlement of its call, and by `ProgressRouter.close`.
Capturing starts before the engine's ``start``, because an engine may emit during it; the router listens to the engine
only while a capture or a route is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from orchestrator.sessions.text import one_line
from orchestrator.tool.events import ProgressView, TextContent
from protocol.events import (
    AgentEnded,
    AgentStarted,
    LogWritten,
    PhaseStarted,
    RunId,
    WorkflowEnded,
    WorkflowEvent,
)

__all__ = ["EventSource", "ProgressCapture", "ProgressReducer", "ProgressRouter", "ProgressSnapshot", "render_progress"]

_log = logging.getLogger(__name__)

MAX_LABEL = 80
MAX_LINE = 300
MAX_SHOWN = 20
"""Labels a view lists; the others are a number. Sixteen agents run at once by default."""


class ActiveAgent(msgspec.Struct, frozen=True):
    """An agent at work."""

    seq: int
    label: str


class ProgressSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands.

    Args:
        name: the workflow's.
        phase: the current phase, cut to one line.
        log: the latest log line, cut to one line.
        active: the agents at work, in the order they started.
        completed, failed, cancelled: how many agents ended, by outcome.
    """

    name: str
    phase: str | None = None
    log: str | None = None
    active: tuple[ActiveAgent, ...] = ()
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class ProgressReducer:
    """Folds the events of one run into its snapshot."""

    __slots__ = ("_active", "_counts", "_log", "_name", "_phase", "ended")

    def __init__(self, name: str) -> None:
        self._name = one_line(name, MAX_LINE)
        self._phase: str | None = None
        self._log: str | None = None
        self._active: dict[int, str] = {}
        self._counts = {"completed": 0, "failed": 0, "cancelled": 0}
        self.ended = False

    def feed(self, event: WorkflowEvent) -> bool:
        """Takes one event. Returns whether the snapshot may look different now."""
        match event:
            case PhaseStarted():
                self._phase = one_line(event.title, MAX_LABEL)
            case LogWritten():
                self._log = one_line(event.message, MAX_LINE)
            case AgentStarted():
                self._active[event.seq] = one_line(event.label, MAX_LABEL)
            case AgentEnded():
                if self._active.pop(event.seq, None) is None:
                    return False
                self._counts[event.outcome] += 1
            case WorkflowEnded():
                self.ended = True
                self._active.clear()
                return False
            case _:
                pass
        return True

    def snapshot(self) -> ProgressSnapshot:
        """Where the run stands now."""
        return ProgressSnapshot(
            name=self._name,
            phase=self._phase,
            log=self._log,
            active=tuple(ActiveAgent(seq, label) for seq, label in self._active.items()),
            completed=self._counts["completed"],
            failed=self._counts["failed"],
            cancelled=self._counts["cancelled"],
        )


def render_progress(snapshot: ProgressSnapshot) -> ProgressView:
    """A snapshot as a view: one block of text whose first line always says that the run goes on."""
    first = "Running" if snapshot.phase is None else f"Running: {snapshot.phase}"
    counts = (
        f"Agents: {len(snapshot.active)} at work, {snapshot.completed} completed, "
        f"{snapshot.failed} failed, {snapshot.cancelled} cancelled"
    )
    lines = [first, counts]
    if snapshot.active:
        shown = ", ".join(agent.label for agent in snapshot.active[:MAX_SHOWN])
        more = len(snapshot.active) - MAX_SHOWN
        lines.append(f"At work: {shown}" + (f" and {more} more" if more > 0 else ""))
    if snapshot.log is not None:
        lines.append(f"Log: {snapshot.log}")
    return ProgressView(
        title=f"workflow: {snapshot.name}",
        content=(TextContent("\n".join(lines)),),
        finished=snapshot.completed + snapshot.failed + snapshot.cancelled,
    )


class EventSource(Protocol):
    """What the router needs of an engine's events."""

    def subscribe(self, listener: Callable[[Any], object], /) -> Callable[[], None]:
        """Calls ``listener(event)`` for every event of every run. Returns its remover."""
        ...


Follower = Callable[[WorkflowEvent], object]
Report = Callable[[ProgressView], bool]


class _Candidate:
    """A run first seen while a capture was open: whose it is will only be known when ``start`` returns."""

    __slots__ = ("captures", "members", "reducer")

    def __init__(self, name: str, captures: set[ProgressCapture]) -> None:
        self.reducer = ProgressReducer(name)
        self.members: list[WorkflowEvent] = []
        """Starts and ends of agents, for whoever records them; few, as the run has only just begun."""
        self.captures = captures


class _Route:
    """A run whose call is known."""

    __slots__ = ("follower", "reducer", "report")

    def __init__(self, reducer: ProgressReducer, report: Report, follower: Follower) -> None:
        self.reducer: ProgressReducer | None = reducer
        """``None`` once the call takes no more progress; its records go on."""
        self.report = report
        self.follower = follower


class ProgressCapture:
    """One call's hold on the router: open from before ``start`` until the call settles. Made by the router."""

    def __init__(self, router: ProgressRouter) -> None:
        self._router = router
        self.run_id: RunId | None = None

    def bind(self, run_id: RunId, name: str, report: Report, follower: Follower) -> None:
        """Picks the run, drops the other candidates, and reports what has happened so far.

        Args:
            run_id: the run that ``start`` returned.
            name: the workflow's.
            report: takes each view; ``False`` ends the reporting of this run.
            follower: gets the starts and ends of agents, those already captured first. It must not raise.
        """
        self._router.bind(self, run_id, name, report, follower)

    def close(self) -> None:
        """Frees what is held for the call. Idempotent."""
        self._router.release(self)


class ProgressRouter:
    """Routes the events of one engine to the calls that own the runs.

    Args:
        source: where to subscribe; the subscription lasts only while a capture is open.
    """

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._unsubscribe: Callable[[], None] | None = None
        self._captures: set[ProgressCapture] = set()
        self._unbound: set[ProgressCapture] = set()
        self._candidates: dict[RunId, _Candidate] = {}
        self._routes: dict[RunId, _Route] = {}

    @property
    def held(self) -> int:
        """Reducers and captures alive: 0 at rest, for leak checks."""
        return len(self._captures) + len(self._candidates) + len(self._routes)

    def capture(self) -> ProgressCapture:
        """Starts capturing. Call it before the engine's ``start``; close it on every path."""
        capture = ProgressCapture(self)
        if self._unsubscribe is None:
            self._unsubscribe = self._source.subscribe(self._take)
        self._captures.add(capture)
        self._unbound.add(capture)
        return capture

    def close(self) -> None:
        """Frees everything; open captures stay usable but see nothing more. Idempotent."""
        self._captures.clear()
        self._unbound.clear()
        self._candidates.clear()
        self._routes.clear()
        self._stop_listening()

    def bind(self, capture: ProgressCapture, run_id: RunId, name: str, report: Report, follower: Follower) -> None:
        """See `ProgressCapture.bind`."""
        if capture not in self._unbound:
            return
        candidate = self._candidates.pop(run_id, None)
        self._forget_unbound(capture)
        capture.run_id = run_id
        reducer = ProgressReducer(name) if candidate is None else candidate.reducer
        route = _Route(reducer, report, follower)
        if not reducer.ended:
            # Before the first report: an observer of it may make things happen that are events of this run.
            self._routes[run_id] = route
        if candidate is not None:
            for event in candidate.members:
                follower(event)
        self._report(route)

    def release(self, capture: ProgressCapture) -> None:
        """See `ProgressCapture.close`."""
        self._captures.discard(capture)
        self._forget_unbound(capture)
        if capture.run_id is not None:
            self._routes.pop(capture.run_id, None)
        if not self._captures:
            self._stop_listening()

    def _forget_unbound(self, capture: ProgressCapture) -> None:
        if capture not in self._unbound:
            return
        self._unbound.discard(capture)
        for run_id, candidate in list(self._candidates.items()):
            candidate.captures.discard(capture)
            if not candidate.captures:
                del self._candidates[run_id]

    def _stop_listening(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def _take(self, event: WorkflowEvent) -> None:
        run_id = event.run.id
        route = self._routes.get(run_id)
        if route is not None:
            self._advance(run_id, route, event)
            return
        if not self._unbound:
            return
        candidate = self._candidates.get(run_id)
        if candidate is None:
            if event.type != "workflow/start":
                return  # a run that was under way before any open capture began: nobody here can own it
            candidate = self._candidates[run_id] = _Candidate(event.run.meta.name, set(self._unbound))
        candidate.reducer.feed(event)
        if isinstance(event, AgentStarted | AgentEnded):
            candidate.members.append(event)

    def _advance(self, run_id: RunId, route: _Route, event: WorkflowEvent) -> None:
        match event:
            case AgentStarted() | AgentEnded():
                route.follower(event)
            case WorkflowEnded():
                self._routes.pop(run_id, None)
            case _:
                pass
        if route.reducer is not None and route.reducer.feed(event):
            self._report(route)

    @staticmethod
    def _report(route: _Route) -> None:
        if route.reducer is None:
            return
        try:
            taken = route.report(render_progress(route.reducer.snapshot()))
        except Exception:
            _log.exception("progress could not be reported; this run reports no more")
            taken = False
        if not taken:
            route.reducer = None
