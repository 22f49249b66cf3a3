"""Finds the ``export const meta = {…}`` header of a script, and explains scripts that do not parse."""

from __future__ import annotations

import msgspec

__all__ = ["HEADER_AND_META", "SplitScript", "hint_for_parse_error", "split_header"]

HEADER_AND_META = (
    "workflow meta rides the `meta` request field, not the script: remove the `export const meta = {...}` statement "
    "from the body, or leave the `meta` field out"
)


class SplitScript(msgspec.Struct, frozen=True):
    """A script and its header, apart.

    Args:
        body: the script with the header blanked, so that every line and column stays the author's.
        literal: the source text of the header's object literal, ``None`` when the script has no header.
    """

    body: str
    literal: str | None = None


def split_header(script: str) -> SplitScript:
    """Takes the header out of ``script``."""
    return SplitScript(body=script)


def hint_for_parse_error(script: str, line: int, column: int, message: str) -> str | None:
    """What to do about a parse error, where the source shows it."""
    return None
