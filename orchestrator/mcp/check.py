"""The ``workflow_check`` tool: whether a script parses and its meta is valid, before anyone pays for a run.

Guarantees: it takes what the workflow tool takes and refuses it in the same words; no agent of the host is ever
started; nothing of the script is left at work when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from orchestrator.agents import AgentFailed, AgentRequest
from orchestrator.engine import WorkflowEngine, WorkflowStartRequest
from orchestrator.tool import PARAMETERS, Execution, ToolDefinition, ToolError, ToolOutput
from orchestrator.tool.workflow import read_arguments

__all__ = ["CheckTool"]

NOBODY = "(checking only)"
"""The provider of a run that is only checked. Holding the run's provider keeps its calls from choosing another."""


class CheckTool:
    """The tool over an engine. Register `definition`; `close` takes its provider out of the engine again.

    Args:
        engine: parses the scripts.
        tool_name: what the model calls it.
        runs_with: the name of the tool that runs what was checked.
    """

    def __init__(self, engine: WorkflowEngine, tool_name: str = "workflow_check", runs_with: str = "workflow") -> None:
        self._engine = engine
        self.close: Callable[[], None] = engine.agents.register(NOBODY, _nobody)
        self.definition = ToolDefinition(
            name=tool_name,
            description=(
                "Check a workflow script without running it: whether it parses and its meta is valid. Takes what the "
                f"{runs_with} tool takes and starts no subagents. Answers with the meta, or with the error and its "
                "line and column."
            ),
            parameters=PARAMETERS,
            execute=self.execute,
        )

    async def execute(self, arguments: Mapping[str, Any], execution: Execution) -> ToolOutput:
        """Checks one script.

        Raises:
            ToolError, WorkflowError: it could not run; the message is for the model.
        """
        fields = read_arguments(arguments)
        if execution.signal.aborted:
            raise ToolError(f"the check was cancelled: {execution.signal.reason}")
        # Only the engine parses, so the run is started, and disposed the moment the script was accepted.
        request = WorkflowStartRequest(
            script=fields["script"],
            meta=fields.get("meta"),
            signal=execution.signal,
            subagent_provider=NOBODY,
            **({"args": fields["args"]} if "args" in fields else {}),
        )
        async with await self._engine.start(request) as run:
            meta = msgspec.to_builtins(run.meta)
        shown = msgspec.json.format(msgspec.json.encode(meta), indent=2).decode()
        return ToolOutput(value={"meta": meta}, text=f'workflow "{run.meta.name}" can run.\nMeta:\n{shown}')


async def _nobody(_: AgentRequest) -> str:
    raise AgentFailed("a script that is only checked starts no agent")
