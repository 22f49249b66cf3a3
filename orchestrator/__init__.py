"""Runs model-written JavaScript workflow scripts, each in its own sandboxed SpiderMonkey worker process.

Everything public is here; the modules below are the implementation.
"""

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
    "EngineConfig",
    "EngineDescription",
    "ErrorCode",
    "EventOrderChecker",
    "EventOrderError",
    "FunctionProvider",
    "LogWritten",
    "PhaseDeclaration",
    "PhaseStarted",
    "PhaseSummary",
    "Usage",
    "WorkflowEnded",
    "WorkflowEngine",
    "WorkflowError",
    "WorkflowEvent",
    "WorkflowMeta",
    "WorkflowResult",
    "WorkflowRun",
    "WorkflowRunInfo",
    "WorkflowStartRequest",
    "WorkflowStarted",
    "run_workflow",
]
