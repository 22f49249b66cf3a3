"""What a tool call looks like from outside: identity, card, progress view, result, and the events that carry them.

Everything here is frozen data, provider-neutral: a bridge turns it into its protocol's words. A view replaces the one
before it. It can replace the title and the content of a card, never its label, kind, raw input or locations.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from orchestrator.sessions.text import replace_lone_surrogates

__all__ = [
    "ContentBlock",
    "ImageContent",
    "ProgressView",
    "TextContent",
    "ToolCallIdentity",
    "ToolCallStarted",
    "ToolCard",
    "ToolEvent",
    "ToolLocation",
    "ToolProgressed",
    "ToolResult",
    "ToolResultCard",
    "ToolSettled",
    "copy_view",
]


class TextContent(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class ImageContent(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image: base64 data and its MIME type."""

    data: str
    mime_type: str


ContentBlock = TextContent | ImageContent


class ToolLocation(msgspec.Struct, frozen=True):
    """A place in a file that a call is about."""

    path: str
    line: int | None = None


class ToolCard(msgspec.Struct, frozen=True, kw_only=True):
    """How a pending call is shown: a pure function of its arguments.

    Args:
        title: what the call is about.
        card: which kind of card; ``generic`` needs no knowledge of the tool.
        kind: the icon's kind, in the words of editor protocols (``read``, ``edit``, ``execute``, ``other`` …).
        raw_input: JSON to show as the input.
        locations: files the call is about.
    """

    title: str
    card: str = "generic"
    kind: str = "other"
    raw_input: Any = None
    locations: tuple[ToolLocation, ...] = ()


class ToolResultCard(msgspec.Struct, frozen=True, kw_only=True):
    """How a settled call is shown. ``None`` keeps the title, and the result's own content."""

    card: str = "generic"
    title: str | None = None
    content: tuple[ContentBlock, ...] | None = None


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a call at work. It replaces the snapshot before it; ``None`` leaves the title as it is.

    Args:
        title: what the call is about now.
        content: what is shown.
        finished: how many pieces of its work are over, for protocols that show a number; it never falls.
    """

    title: str | None = None
    content: tuple[ContentBlock, ...] = ()
    finished: int | None = None


class ToolCallIdentity(msgspec.Struct, frozen=True):
    """Which call: unique together."""

    session_id: str
    call_id: str
    tool: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to.

    Args:
        content: what the model is shown.
        is_error: whether it failed; the content then says why, as ``Error: …``.
        value: the canonical value of a success, complete even where the content is cut.
        details: facts for the host that the model is not shown.
    """

    content: tuple[ContentBlock, ...] = ()
    is_error: bool = False
    value: Any = None
    details: Any = None

    @property
    def text(self) -> str:
        """The text blocks of the content, joined by line breaks."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))


class ToolEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the events of one call. ``type`` is the public name, e.g. ``tools/progress``."""

    type: ClassVar[str] = "tools/event"

    identity: ToolCallIdentity
    parent: ToolCallIdentity | None = None
    """The call inside which this one runs."""


class ToolCallStarted(ToolEvent, frozen=True, kw_only=True, tag="tools/call"):
    """A call is about to be executed: the first event of its identity."""

    type: ClassVar[str] = "tools/call"

    card: ToolCard


class ToolProgressed(ToolEvent, frozen=True, kw_only=True, tag="tools/progress"):
    """A call at work reported a snapshot."""

    type: ClassVar[str] = "tools/progress"

    view: ProgressView


class ToolSettled(ToolEvent, frozen=True, kw_only=True, tag="tools/result"):
    """A call is over: the last event of its identity."""

    type: ClassVar[str] = "tools/result"

    result: ToolResult
    card: ToolResultCard


def copy_view(view: object) -> ProgressView:
    """A validated copy of a view, or of a mapping shaped like one.

    Raises:
        ValueError: it is no view.
    """
    try:
        copied = msgspec.convert(msgspec.to_builtins(view), ProgressView)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise ValueError(f"a progress view has an optional title and content blocks: {error}") from None
    return ProgressView(
        title=None if copied.title is None else replace_lone_surrogates(copied.title),
        content=tuple(
            TextContent(replace_lone_surrogates(block.text)) if isinstance(block, TextContent) else block
            for block in copied.content
        ),
        finished=copied.finished,
    )
