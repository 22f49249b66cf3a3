"""Session logs: append-only, typed, checked on load and on append; in memory or in SQLite."""

from orchestrator.sessions.log import (
    HistoryRule,
    IllegalHistory,
    MemorySessionLog,
    MemorySessionStore,
    SessionClosed,
    SessionError,
    SessionEvent,
    SessionLog,
    SessionStore,
)
from orchestrator.sessions.recorder import WorkflowRecorder
from orchestrator.sessions.records import (
    DEFAULT_RULES,
    AgentEndRecord,
    AgentStartRecord,
    RunEndRecord,
    RunStartRecord,
    SessionRecord,
    ToolCallRecord,
    ToolCallRule,
    ToolResultRecord,
    WorkflowRecordRule,
    decode_record,
    encode_record,
)
from orchestrator.sessions.sqlite import SqliteSessionLog, SqliteSessionStore

__all__ = [
    "DEFAULT_RULES",
    "AgentEndRecord",
    "AgentStartRecord",
    "HistoryRule",
    "IllegalHistory",
    "MemorySessionLog",
    "MemorySessionStore",
    "RunEndRecord",
    "RunStartRecord",
    "SessionClosed",
    "SessionError",
    "SessionEvent",
    "SessionLog",
    "SessionRecord",
    "SessionStore",
    "SqliteSessionLog",
    "SqliteSessionStore",
    "ToolCallRecord",
    "ToolCallRule",
    "ToolResultRecord",
    "WorkflowRecordRule",
    "WorkflowRecorder",
    "decode_record",
    "encode_record",
]
