"""Workflows for editors that speak the Agent Client Protocol: the bridge, the agent, and serving it on stdio.

Needs the extra ``acp``: ``pip install "workflow-orchestrator[acp]"``.
"""

try:
    import acp as acp
except ModuleNotFoundError as error:
    if error.name != "acp":
        raise
    raise ModuleNotFoundError(
        'the Agent Client Protocol SDK is missing: pip install "workflow-orchestrator[acp]"', name="acp"
    ) from None

from orchestrator.acp.agent import WorkflowAcpAgent
from orchestrator.acp.bridge import AcpBridge, UpdateSink, replay_updates
from orchestrator.acp.prompt import PromptRefused, read_prompt
from orchestrator.acp.serve import serve_acp

__all__ = ["AcpBridge", "PromptRefused", "UpdateSink", "WorkflowAcpAgent", "read_prompt", "replay_updates", "serve_acp"]
