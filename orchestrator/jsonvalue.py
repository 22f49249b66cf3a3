"""Plain JSON on the host's side of the boundary: what may cross, and the exact path of what may not."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import msgspec

__all__ = ["JSONValueError", "encode_json", "well_formed"]

_MAX_LEVELS = 900


class JSONValueError(ValueError):
    """A value is not plain JSON. The message starts with the path."""


def well_formed(text: str) -> str:
    """``text`` with every lone surrogate replaced by U+FFFD, and surrogate pairs joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode_json(value: object, root: str) -> msgspec.Raw:
    """JSON text of a plain value.

    Args:
        value: ``None``, bool, int, finite float, str, and lists, tuples and str-keyed dicts of them.
        root: what the error calls the value, e.g. ``args``.

    Raises:
        JSONValueError: something in it is not plain JSON.
    """
    try:
        data = msgspec.json.encode(value)
        # msgspec turns NaN into null and knows how to write dates, sets and objects. Reading the text back and
        # comparing finds all of that faster than a walk in Python; the walk is only for what differs.
        if msgspec.json.decode(data) == value:
            return msgspec.Raw(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    try:
        return msgspec.Raw(msgspec.json.encode(_plain(value, root, 0)))
    except RecursionError:  # how deep Python itself can go depends on how deep its caller already is
        raise JSONValueError(f"{root}: nested too deeply, or circular") from None


def _plain(value: object, path: str, level: int) -> Any:
    if level > _MAX_LEVELS:
        root = path.split(".")[0].split("[")[0]
        raise JSONValueError(f"{root}: nested deeper than {_MAX_LEVELS} levels, or circular")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return well_formed(str(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JSONValueError(f"{path}: non-finite numbers are not JSON data")
        return float(value)
    if isinstance(value, dict):
        made: dict[str, Any] = {}
        for key, item in cast(dict[object, object], value).items():
            if not isinstance(key, str):
                raise JSONValueError(f"{path}: the key {key!r:.60} is not a string")
            name = well_formed(str(key))
            made[name] = _plain(item, _below(path, name), level + 1)
        return made
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", level + 1) for index, item in enumerate(cast(list[object], value))]
    raise JSONValueError(f"{path}: a {type(value).__name__} is not JSON data")


def _below(path: str, key: str) -> str:
    """The path of a member, written as JavaScript would."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key, ensure_ascii=False)}]"
