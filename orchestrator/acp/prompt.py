"""Turns what a user wrote to ``workflow acp`` into the arguments of the workflow tool.

A prompt is a script in a fenced ``js`` block, or the path of a script file (typed, mentioned or attached). The
arguments of the script are a JSON object after it, bare or in a fenced ``json`` block. Whatever else it is, the answer
says what to write; file names in messages are the user's own, never resolved ones.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import msgspec
from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from orchestrator.header import split_header
from orchestrator.sessions.text import one_line

__all__ = ["USAGE", "PromptBlock", "PromptRefused", "prompt_text", "read_prompt"]

PromptBlock = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)

MAX_SCRIPT_BYTES = 4 << 20

USAGE = """\
Send a workflow to run: a script in a fenced block,

```js
export const meta = {name: 'demo', description: 'Asks one agent'}
return await agent(`Say hello to ${args.name}`)
```
```json
{"name": "Ada"}
```

or the path of a script file, with the args as a JSON object after it: `review.js {"files": ["a.py"]}`"""

_FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=fence)[`~]*[ \t\r]*$", re.M | re.S
)
_SCRIPT_LANGUAGES = frozenset({"js", "javascript", "mjs"})
_QUOTED = re.compile(r"""(?P<quote>["'`])(?P<path>[^\n]*?)(?P=quote)(?=\s|$)""")


class PromptRefused(Exception):  # the name says what happened
    """The prompt names no workflow. The message is for the user."""


class _Source(msgspec.Struct, frozen=True):
    script: str
    name: str
    rest: str


async def read_prompt(blocks: Sequence[PromptBlock], cwd: str) -> dict[str, Any]:
    """The arguments of the tool call.

    Args:
        blocks: the prompt as the client sent it.
        cwd: where relative paths start.

    Raises:
        PromptRefused: it names no workflow.
    """
    source = _attached(blocks) or _fenced(prompt_text(blocks)) or await _named(blocks, cwd)
    arguments: dict[str, Any] = {"script": source.script}
    if split_header(source.script).literal is None:
        arguments["meta"] = {"name": source.name, "description": "A script without a header, sent by the user"}
    args = _args(source.rest)
    if args is not None:
        arguments["args"] = args
    return arguments


def prompt_text(blocks: Sequence[PromptBlock]) -> str:
    """The text of a prompt."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextContentBlock))


def _attached(blocks: Sequence[PromptBlock]) -> _Source | None:
    """A script whose text the client put into the prompt."""
    for block in blocks:
        if isinstance(block, EmbeddedResourceContentBlock) and isinstance(block.resource, TextResourceContents):
            path = _uri_path(block.resource.uri)
            if path.endswith((".js", ".mjs")):
                return _Source(block.resource.text, _stem(path), prompt_text(blocks).strip())
    return None


def _fenced(text: str) -> _Source | None:
    """A script in a fenced block; prose around it is ignored, a JSON object after it is the args."""
    blocks = list(_FENCE.finditer(text))
    scripts = [block for block in blocks if block["language"].lower() in _SCRIPT_LANGUAGES]
    if not scripts:
        return None
    if len(scripts) > 1:
        raise PromptRefused(f"The prompt has {len(scripts)} script blocks. Send one script at a time.")
    inputs = [block["body"] for block in blocks if block["language"].lower() == "json"]
    if len(inputs) > 1:
        raise PromptRefused(f"The prompt has {len(inputs)} json blocks. Send the args as one JSON object.")
    after = text[scripts[0].end() :].strip()
    rest = inputs[0] if inputs else after if after.startswith("{") else ""
    return _Source(scripts[0]["body"], "prompt", rest)


async def _named(blocks: Sequence[PromptBlock], cwd: str) -> _Source:
    """The path of a script file: a mention, or the first word of the text."""
    text = prompt_text(blocks).strip()
    for block in blocks:
        if isinstance(block, ResourceContentBlock) and _uri_path(block.uri).endswith((".js", ".mjs")):
            path, rest = _uri_path(block.uri), text
            break
    else:
        path, rest = _first_word(text)
    if not path:
        raise PromptRefused(USAGE)
    script = await asyncio.to_thread(_read, path, cwd)
    return _Source(script, _stem(path), rest)


def _first_word(text: str) -> tuple[str, str]:
    quoted = _QUOTED.match(text)
    if quoted is not None:
        return quoted["path"], text[quoted.end() :].strip()
    path, _, rest = text.partition(" ") if "\n" not in text.split(" ", 1)[0] else text.partition("\n")
    return path.strip(), rest.strip()


def _read(path: str, cwd: str) -> str:
    shown = one_line(path, 200)
    try:
        with Path(cwd, path).open("rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        looks_like_a_path = path.endswith((".js", ".mjs")) or "/" in path
        if not looks_like_a_path:
            raise PromptRefused(USAGE) from None
        why = getattr(error, "strerror", None) or "not a file name"
        raise PromptRefused(f"The script file {shown} cannot be read: {why.lower()}.\n\n{USAGE}") from None
    if len(data) > MAX_SCRIPT_BYTES:
        raise PromptRefused(f"The script file {shown} is over the limit of {MAX_SCRIPT_BYTES >> 20} MiB.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PromptRefused(f"The script file {shown} is not UTF-8 text: save it as UTF-8.") from None


def _args(rest: str) -> dict[str, Any] | None:
    rest = rest.strip()
    if not rest:
        return None
    try:
        value: object = json.loads(rest)
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise PromptRefused(
            f'What follows the script must be its args, as one JSON object such as {{"files": ["a.py"]}}: {why}.'
        ) from None
    if not isinstance(value, dict):
        raise PromptRefused('The args must be a JSON object such as {"items": […]}: put the value into a field.')
    return cast("dict[str, Any]", value)


def _uri_path(uri: str) -> str:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("file", "") else ""


def _stem(path: str) -> str:
    return Path(path).stem or "script"
