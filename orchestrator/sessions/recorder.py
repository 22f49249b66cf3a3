"""Writes the four records of a workflow run into a session.

Guarantees: what is written is empty or a legal prefix of a run's history; the first append that fails ends the
recording of that run with one warning; nothing that happens here changes the run or the tool's result.
"""

from __future__ import annotations

import logging

from orchestrator.sessions.log import SessionLog
from orchestrator.sessions.records import (
    AgentEndRecord,
    AgentStartRecord,
    RunEndRecord,
    RunStartRecord,
    SessionRecord,
    encode_record,
)
from orchestrator.sessions.text import error_text
from protocol.events import AgentEnded, AgentStarted, StopReason, WorkflowEvent, WorkflowRunInfo

__all__ = ["WorkflowRecorder"]

_log = logging.getLogger(__name__)


class WorkflowRecorder:
    """Records one run.

    Args:
        session: where to; ``None`` records nothing.
        run: which run; events of other runs are ignored.
    """

    def __init__(self, session: SessionLog | None, run: WorkflowRunInfo) -> None:
        self._session = session
        self._run = run

    @property
    def recording(self) -> bool:
        """Whether the next record would still be written."""
        return self._session is not None

    def start(self) -> None:
        """Writes ``run-start``: after the engine's ``start`` returned, before any event is fed."""
        self._append(RunStartRecord(run_id=self._run.id, name=self._run.meta.name))

    def feed(self, event: WorkflowEvent) -> None:
        """Writes the record of a member's start or end; other events leave none."""
        if event.run.id != self._run.id:
            return
        if isinstance(event, AgentStarted):
            record = AgentStartRecord(
                run_id=event.run.id,
                seq=event.seq,
                label=event.label,
                child_id=event.child_id,
                **({} if event.phase is None else {"phase": event.phase}),
            )
            self._append(record)
        elif isinstance(event, AgentEnded):
            self._append(AgentEndRecord(run_id=event.run.id, seq=event.seq, outcome=event.outcome))

    def finish(self, stop_reason: StopReason) -> None:
        """Writes ``run-end``: after the result is known and the run is at rest. Ends the recording."""
        self._append(RunEndRecord(run_id=self._run.id, stop_reason=stop_reason))
        self._session = None

    def abandon(self) -> None:
        """Ends the recording without a record. Idempotent."""
        self._session = None

    def _append(self, record: SessionRecord) -> None:
        session = self._session
        if session is None:
            return
        kind, data = encode_record(record)
        try:
            session.append(kind, data)
        except Exception as error:
            self._session = None
            _log.warning(
                "run %s is no longer recorded: appending %s to its session failed: %s",
                self._run.id,
                kind,
                error_text(error),
            )
