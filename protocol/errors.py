"""The one error family of the project, and the codes a script, a host and a model see.

Source of the codes: the DeepSeek Harness workflow contract, plus the codes this engine adds (marked *beyond*).
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ErrorCode", "WorkflowError"]


class ErrorCode(StrEnum):
    """Why a hook call or a run failed. Each is also the ``code`` property of the error a script can catch."""

    SCRIPT_PARSE = "SCRIPT_PARSE"
    META_INVALID = "META_INVALID"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNSUPPORTED_OPTION = "UNSUPPORTED_OPTION"
    UNSUPPORTED_SCHEMA = "UNSUPPORTED_SCHEMA"
    AGENT_CAP = "AGENT_CAP"
    ITEM_CAP = "ITEM_CAP"
    AGENT_START = "AGENT_START"
    """The provider refused to start the agent."""
    AGENT_RESULT = "AGENT_RESULT"
    """A started agent broke, as opposed to failed in an ordinary way."""
    RESULT_UNSERIALIZABLE = "RESULT_UNSERIALIZABLE"
    CANCELLED = "CANCELLED"
    SCRIPT_ERROR = "SCRIPT_ERROR"
    """The script threw something of its own (beyond: the reference leaves such a run without a code)."""
    SCRIPT_TIMEOUT = "SCRIPT_TIMEOUT"
    """Ran without yielding, or out of CPU or wall time (beyond)."""
    SCRIPT_STALLED = "SCRIPT_STALLED"
    """Waits on a promise that nothing will resolve (beyond)."""
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    """An ``agent()`` call beyond the run's token ceiling (beyond)."""
    WORKER_MEMORY = "WORKER_MEMORY"
    WORKER_DIED = "WORKER_DIED"
    PROTOCOL = "PROTOCOL"
    """The worker sent something malformed, out of order or over a cap (beyond)."""


class WorkflowError(Exception):
    """Something the caller of the engine or the author of the script can act on.

    Args:
        code: which rule was broken.
        message: what happened, where, and what to do; never a path of the host.

    ``str(error)`` is the message alone.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[WorkflowError], tuple[ErrorCode, str]]:
        return (type(self), (self.code, self.message))
