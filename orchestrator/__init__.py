"""Runs model-written JavaScript workflow scripts, each in its own sandboxed SpiderMonkey worker process.

Everything public is here; the modules below are the implementation. The tool layer, session stores and ready-made
providers are loaded when they are first named: a host that only runs scripts does not pay for them.
"""

import importlib
from typing import TYPE_CHECKING

from orchestrator import _packages as _packages  # first: makes sure that `protocol` is this project's
from orchestrator.agents import (
    AgentFailed,
    AgentProvider,
    AgentRegistry,
    AgentRequest,
    AgentResult,
    AgentRun,
    FunctionProvider,
    Usage,
)
from orchestrator.config import EngineConfig
from orchestrator.engine import EngineDescription, WorkflowEngine, WorkflowStartRequest, run_workflow
from orchestrator.results import AgentFailure, PhaseSummary, WorkflowResult
from orchestrator.run import WorkflowRun
from orchestrator.signals import AbortController, AbortSignal
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import (
    AgentEnded,
    AgentStarted,
    LogWritten,
    PhaseDeclaration,
    PhaseStarted,
    WorkflowEnded,
    WorkflowEvent,
    WorkflowMeta,
    WorkflowRunInfo,
    WorkflowStarted,
)
from protocol.invariants import EventOrderChecker, EventOrderError

if TYPE_CHECKING:
    from orchestrator.providers import CommandProvider, RehearseProvider, provider_from_spec
    from orchestrator.sessions import MemorySessionStore, SqliteSessionStore, WorkflowRecorder
    from orchestrator.tool import (
        ProgressView,
        TextContent,
        ToolDefinition,
        ToolError,
        ToolExecution,
        ToolOutput,
        ToolRegistry,
        ToolResult,
        WorkflowTool,
    )

__all__ = [
    "AbortController",
    "AbortSignal",
    "AgentEnded",
    "AgentFailed",
    "AgentFailure",
    "AgentProvider",
    "AgentRegistry",
    "AgentRequest",
    "AgentResult",
    "AgentRun",
    "AgentStarted",
    "CommandProvider",
    "EngineConfig",
    "EngineDescription",
    "ErrorCode",
    "EventOrderChecker",
    "EventOrderError",
    "FunctionProvider",
    "LogWritten",
    "MemorySessionStore",
    "PhaseDeclaration",
    "PhaseStarted",
    "PhaseSummary",
    "ProgressView",
    "RehearseProvider",
    "SqliteSessionStore",
    "TextContent",
    "ToolDefinition",
    "ToolError",
    "ToolExecution",
    "ToolOutput",
    "ToolRegistry",
    "ToolResult",
    "Usage",
    "WorkflowEnded",
    "WorkflowEngine",
    "WorkflowError",
    "WorkflowEvent",
    "WorkflowMeta",
    "WorkflowRecorder",
    "WorkflowResult",
    "WorkflowRun",
    "WorkflowRunInfo",
    "WorkflowStartRequest",
    "WorkflowStarted",
    "WorkflowTool",
    "provider_from_spec",
    "run_workflow",
]

_LATER = {
    "orchestrator.providers": ("CommandProvider", "RehearseProvider", "provider_from_spec"),
    "orchestrator.sessions": ("MemorySessionStore", "SqliteSessionStore", "WorkflowRecorder"),
    "orchestrator.tool": (
        "ProgressView",
        "TextContent",
        "ToolDefinition",
        "ToolError",
        "ToolExecution",
        "ToolOutput",
        "ToolRegistry",
        "ToolResult",
        "WorkflowTool",
    ),
}


def __getattr__(name: str) -> object:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
