"""The model-facing ``workflow`` tool, and the small tool registry it lives in."""

from orchestrator.tool.authoring import DESCRIPTION, PARAMETERS, prompt_section
from orchestrator.tool.events import (
    ContentBlock,
    ImageContent,
    ProgressView,
    TextContent,
    ToolCallIdentity,
    ToolCallStarted,
    ToolCard,
    ToolEvent,
    ToolLocation,
    ToolProgressed,
    ToolResult,
    ToolResultCard,
    ToolSettled,
)
from orchestrator.tool.listeners import ToolEvents
from orchestrator.tool.outcome import outcome_notes
from orchestrator.tool.progress import ProgressReducer, ProgressRouter, ProgressSnapshot, render_progress
from orchestrator.tool.registry import (
    Execution,
    GenericPresenter,
    PromptSection,
    ToolDefinition,
    ToolError,
    ToolExecution,
    ToolOutput,
    ToolPresenter,
    ToolRegistry,
)
from orchestrator.tool.transcript import ReplayedCall, record_tool_calls, replay_calls
from orchestrator.tool.workflow import EngineLike, WorkflowPresenter, WorkflowTool, render_success

__all__ = [
    "DESCRIPTION",
    "PARAMETERS",
    "ContentBlock",
    "EngineLike",
    "Execution",
    "GenericPresenter",
    "ImageContent",
    "ProgressReducer",
    "ProgressRouter",
    "ProgressSnapshot",
    "ProgressView",
    "PromptSection",
    "ReplayedCall",
    "TextContent",
    "ToolCallIdentity",
    "ToolCallStarted",
    "ToolCard",
    "ToolDefinition",
    "ToolError",
    "ToolEvent",
    "ToolEvents",
    "ToolExecution",
    "ToolLocation",
    "ToolOutput",
    "ToolPresenter",
    "ToolProgressed",
    "ToolRegistry",
    "ToolResult",
    "ToolResultCard",
    "ToolSettled",
    "WorkflowPresenter",
    "WorkflowTool",
    "outcome_notes",
    "prompt_section",
    "record_tool_calls",
    "render_progress",
    "render_success",
    "replay_calls",
]
