"""Regular expressions of schemas: run on a linear-time engine only, and refused with a reason where that cannot be.

A model writes them, so none may backtrack: ``^(a+)+$`` on forty characters would stop the host for a day.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import jsonschema_rs

__all__ = ["PATTERN_OPTIONS", "pattern_matches", "refuse_pattern"]

_PROGRAM_BYTES = 1 << 20  # of one compiled pattern: `a{1000}{1000}` is refused in milliseconds

PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=_PROGRAM_BYTES, dfa_size_limit=_PROGRAM_BYTES)

_MAX_PATTERN = 4096
_BACKTRACKING = re.compile(r"\(\?(?:<?[=!])|\\[1-9]|\\k<")


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> jsonschema_rs.Draft202012Validator | None:
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=PATTERN_OPTIONS)
    except ValueError:
        return None


def refuse_pattern(pattern: str) -> str | None:
    """Why ``pattern`` cannot be used, ``None`` when it can."""
    if len(pattern) > _MAX_PATTERN:
        return f"the pattern is {len(pattern)} characters long; the limit is {_MAX_PATTERN}"
    if _matcher(pattern) is not None:
        return None
    shown = json.dumps(pattern if len(pattern) <= 100 else pattern[:99] + "…", ensure_ascii=False)
    # A search over the text of a pattern that is known to be refused: at worst it picks the less exact sentence.
    if _BACKTRACKING.search(pattern):
        return f"the pattern {shown} uses look-around or back-references, which are not supported: rewrite it without"
    return f"the pattern {shown} is not a regular expression, or too large a one"


def pattern_matches(pattern: str, text: str) -> bool:
    """Whether ``pattern`` is found in ``text``, as the validator sees it."""
    matcher = _matcher(pattern)
    return matcher is not None and matcher.is_valid(text)
