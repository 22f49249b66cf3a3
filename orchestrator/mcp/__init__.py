"""The workflow tool for hosts that speak the Model Context Protocol: the server, and serving it on stdio.

Needs the extra ``mcp``: ``pip install "workflow-orchestrator[mcp]"``.
"""

try:
    import mcp as mcp
    import mcp_types as mcp_types  # absent from the SDK's first major version, which has another server API
except ModuleNotFoundError as error:
    if error.name not in ("mcp", "mcp_types"):
        raise
    raise ModuleNotFoundError(
        "the Model Context Protocol SDK is missing or older than 2.0: pip install 'workflow-orchestrator[mcp]'",
        name=error.name,
    ) from None

from orchestrator.mcp.check import CheckTool
from orchestrator.mcp.progress import ProgressFeed
from orchestrator.mcp.serve import serve_mcp
from orchestrator.mcp.server import WorkflowMcpServer

__all__ = ["CheckTool", "ProgressFeed", "WorkflowMcpServer", "serve_mcp"]
