"""An agent without a model: it answers review-files.js by reading Python source with the standard library.

    workflow run examples/review-files.js --args '{"files": ["protocol/errors.py"]}' \
        --agent python:examples.agents.static_reviewer:answer

Shows what an agent is to the engine: an async function that gets an `AgentRequest` and returns an `AgentResult`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from orchestrator import AgentFailed, AgentRequest, AgentResult

LONG_FUNCTION = 40


async def answer(request: AgentRequest) -> AgentResult:
    """Reviews the file the prompt names, or checks one claim about it."""
    review = re.match(r"Review (\S+?)\. ", request.prompt)
    if review is not None:
        return AgentResult(structured={"findings": findings(review[1])[:10]})
    claim = re.match(r"Someone claims about (\S+), line (\d+): (.*)", request.prompt)
    if claim is not None:
        path, line, text = claim.groups()
        real = any(finding["line"] == int(line) and finding["claim"] == text for finding in findings(path))
        return AgentResult(structured={"real": real, "why": "read again" if real else "it is not there"})
    raise AgentFailed("this reviewer only knows the prompts of review-files.js")


def findings(path: str) -> list[dict[str, object]]:
    """Long functions, bare excepts and mutable defaults of one Python file."""
    try:
        tree = ast.parse(Path(path).read_text("utf-8"))
    except OSError as error:
        raise AgentFailed(f"{path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        return [{"line": error.lineno or 1, "severity": "high", "claim": f"it does not parse: {error.msg}"}]
    found: list[dict[str, object]] = []
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=None):
                found.append({"line": node.lineno, "severity": "medium", "claim": "a bare except hides every error"})
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    claim = f"{node.name} has {length} lines; over {LONG_FUNCTION} it is hard to follow"
                    found.append({"line": node.lineno, "severity": "low", "claim": claim})
                defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
                if any(isinstance(default, ast.List | ast.Dict | ast.Set) for default in defaults):
                    claim = f"{node.name} shares a mutable default between its calls"
                    found.append({"line": node.lineno, "severity": "high", "claim": claim})
            case _:
                pass
    return sorted(found, key=lambda finding: (finding["line"], str(finding["claim"])))
