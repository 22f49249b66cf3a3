"""Finds the JSON value in what a command-line agent printed.

Accepted, in this order: the whole text; the last fenced block that holds JSON; the last JSON object in prose.
The search is linear in practice and bounded in any case: a hostile answer cannot keep the host busy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

__all__ = ["JsonAnswerError", "parse_json_answer", "replace_lone_surrogates"]

PROSE_BUDGET = 8 << 20
"""Characters the search through prose may look at, counting every attempt."""
FAILURE_COST = 100
RECURSION_COST = 100_000
SHOWN = 80

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)\r?\n[ \t]*```", re.DOTALL | re.MULTILINE)
_OBJECT_START = re.compile(r'\{\s*["}]')
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonAnswerError(ValueError):
    """There is no JSON value in the text; says what there is instead."""


def parse_json_answer(text: str) -> Any:
    """The JSON value in ``text``.

    Raises:
        JsonAnswerError: there is none.
    """
    text = text.strip().removeprefix("\ufeff")
    if not text:
        raise JsonAnswerError("it answered nothing, where JSON was asked for")
    try:
        return replace_lone_surrogates(_decode(text))
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        raise JsonAnswerError("its JSON is nested too deeply") from None
    for candidate in _candidates(text):
        return replace_lone_surrogates(candidate)
    shown = text[:SHOWN] + ("…" if len(text) > SHOWN else "")
    raise JsonAnswerError(f"its answer is not JSON ({problem}): {shown!r}")


def replace_lone_surrogates(value: Any) -> Any:
    r"""The value with every lone surrogate (``"\ud83d"`` is legal JSON, but no text) as U+FFFD, in keys as well."""
    match value:
        case str():
            return _LONE_SURROGATE.sub("\ufffd", value)
        case list():
            return [replace_lone_surrogates(item) for item in cast(list[Any], value)]
        case dict():
            members = cast(dict[str, Any], value)
            return {replace_lone_surrogates(key): replace_lone_surrogates(item) for key, item in members.items()}
        case _:
            return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_decode = _decoder.decode


def _candidates(text: str) -> Iterator[Any]:
    for block in reversed(_FENCE.findall(text)):
        try:
            yield _decode(block)
        except (ValueError, RecursionError):
            continue
    last = _last_object(text)
    if last is not None:
        yield last


def _last_object(text: str) -> dict[str, Any] | None:
    """The last object that is not inside another one. A brace that opens no JSON is skipped."""
    found: dict[str, Any] | None = None
    budget = PROSE_BUDGET
    start = _OBJECT_START.search(text)
    while start is not None and budget > 0:
        at = start.start()
        try:
            found, end = _decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            # The decoder also counts the lines before the place it stopped at, sixteen times faster than it parses.
            budget -= FAILURE_COST + error.pos - at + error.pos // 16
            end = at + 1
        except (ValueError, RecursionError):
            budget -= RECURSION_COST
            end = at + 1
        start = _OBJECT_START.search(text, end)
    return found
