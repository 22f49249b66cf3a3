"""Text of things that may not want to be shown: errors whose ``__str__`` raises, lone surrogates, long lines."""

from __future__ import annotations

from orchestrator.meta import replace_lone_surrogates

__all__ = ["error_text", "one_line", "replace_lone_surrogates"]

_UNSHOWABLE = "[an error that cannot be shown]"


def error_text(error: BaseException) -> str:
    """The message of ``error``; its type's name when it has none. Never raises, never a lone surrogate."""
    try:
        text = replace_lone_surrogates(str(error))
        return text if text.strip() else type(error).__name__
    except Exception:
        return _UNSHOWABLE


def one_line(text: str, limit: int) -> str:
    """``text`` on one line of at most ``limit`` characters, a cut marked by ``…``."""
    # Cut before joining, so that a megabyte of white space costs nothing; twice the room for runs of it.
    line = " ".join(text[: 4 * limit].split())
    cut = len(text) > 4 * limit
    return line[: limit - 1] + "…" if len(line) > limit or cut else line
