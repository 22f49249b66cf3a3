"""The event-order checker: raises on the first event that breaks the order of life of a run.

Ships with the project so that a host can put it on its own engine; it runs in every test of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.events import (
    AgentEnded,
    AgentStarted,
    LogWritten,
    PhaseStarted,
    RunId,
    WorkflowEnded,
    WorkflowEvent,
    WorkflowStarted,
)

__all__ = ["EventOrderChecker", "EventOrderError", "check_events"]


class EventOrderError(AssertionError):
    """An event came out of order. The message names the run, the event and the rule."""


class _RunState:
    __slots__ = ("ended", "finished", "info", "open")

    def __init__(self, event: WorkflowEvent) -> None:
        self.info = event.run
        self.open: dict[int, AgentStarted] = {}
        self.finished: set[int] = set()
        self.ended = False


class EventOrderChecker:
    """Feed it every event of any number of interleaved runs: it is a plain listener.

    ``check_complete()`` then says whether every run that started also ended.
    """

    def __init__(self) -> None:
        self._runs: dict[RunId, _RunState] = {}

    def __call__(self, event: WorkflowEvent) -> None:
        """Accepts one event.

        Raises:
            EventOrderError: the event breaks a rule.
        """
        state = self._runs.get(event.run.id)
        if isinstance(event, WorkflowStarted):
            if state is not None:
                raise self._broken(event, "a run starts once")
            self._runs[event.run.id] = _RunState(event)
            return
        if state is None:
            raise self._broken(event, "workflow/start comes first")
        if state.ended:
            raise self._broken(event, "workflow/end is the last event of its run")
        if event.run != state.info:
            raise self._broken(event, "every event carries the same run info")
        match event:
            case AgentStarted():
                if event.seq in state.open or event.seq in state.finished:
                    raise self._broken(event, "an agent starts once")
                state.open[event.seq] = event
            case AgentEnded():
                started = state.open.pop(event.seq, None)
                if started is None:
                    raise self._broken(event, "an agent ends once, after its start")
                if (started.label, started.phase, started.child_id) != (event.label, event.phase, event.child_id):
                    raise self._broken(event, "start and end carry the same label, phase and child id")
                state.finished.add(event.seq)
            case WorkflowEnded():
                if state.open:
                    raise self._broken(event, f"agents {sorted(state.open)} are still open")
                if event.agents_started != len(state.finished):
                    raise self._broken(event, f"{len(state.finished)} agents were started")
                state.ended = True
            case PhaseStarted() | LogWritten():
                pass
            case _:
                raise self._broken(event, "unknown kind of event")

    def check_complete(self) -> None:
        """Raises `EventOrderError` when a run that started has not ended."""
        unfinished = [run_id for run_id, state in self._runs.items() if not state.ended]
        if unfinished:
            raise EventOrderError(f"runs without workflow/end: {unfinished}")

    @staticmethod
    def _broken(event: WorkflowEvent, rule: str) -> EventOrderError:
        return EventOrderError(f"run {event.run.id}: {event.type} breaks the rule that {rule}: {event}")


def check_events(events: Iterable[WorkflowEvent]) -> None:
    """Checks complete histories: every run in ``events`` must also have ended."""
    checker = EventOrderChecker()
    for event in events:
        checker(event)
    checker.check_complete()
