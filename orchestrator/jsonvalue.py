"""Plain JSON on the host's side of the boundary: what may cross, and the exact path of what may not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, cast

import msgspec

__all__ = ["JSONValueError", "encode_json", "well_formed"]

_MAX_LEVELS = 900
_KEY_TYPES = frozenset((str,))
_LEAF_TYPES = frozenset((str, int, bool, type(None)))
_CONTAINER_TYPES = frozenset((dict, list, tuple))
_VALUES = cast(Callable[[Any], Iterable[Any]], dict[Any, Any].values)
_PLAIN_TYPES = _LEAF_TYPES | _CONTAINER_TYPES | {float}


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
        data = msgspec.json.encode(value)  # first: it refuses a cycle, which the next line would follow for ever
        if type(value) is str or _is_plain(value):
            return msgspec.Raw(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    try:
        return msgspec.Raw(msgspec.json.encode(_plain(value, root, 0)))
    except RecursionError:  # how deep Python itself can go depends on how deep its caller already is
        raise JSONValueError(f"{root}: nested too deeply, or circular") from None


def _is_plain(value: object) -> bool:
    """Whether msgspec's text of ``value`` says just what ``value`` is.

    msgspec turns NaN into null and also writes dates, sets, bytes and objects. This looks at the types of a whole level
    at once, in C: four times faster than reading the text back and comparing. False may only mean "look closer".
    """
    lists: list[Any] = [[value]]
    dicts: list[Any] = []
    for _ in range(_MAX_LEVELS):
        if not set(map(type, chain.from_iterable(dicts))) <= _KEY_TYPES:
            return False
        types = set(map(type, _items(lists, dicts)))
        if types <= _LEAF_TYPES:
            return True
        if not types <= _PLAIN_TYPES:
            return False
        if float in types and not all(map(math.isfinite, (x for x in _items(lists, dicts) if type(x) is float))):
            return False
        below = [x for x in _items(lists, dicts) if type(x) in _CONTAINER_TYPES]
        dicts = [x for x in below if type(x) is dict]
        lists = [x for x in below if type(x) is not dict] if len(dicts) < len(below) else []
    return False


def _items(lists: list[Any], dicts: list[Any]) -> Iterator[Any]:
    return chain(chain.from_iterable(lists), chain.from_iterable(map(_VALUES, dicts)))


def _plain(value: object, path: str, level: int) -> Any:
    if level > _MAX_LEVELS:
        root = path.split(".")[0].split("[")[0]
        raise JSONValueError(f"{root}: nested deeper than {_MAX_LEVELS} levels, or circular")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return well_formed(str.__str__(value))  # of an enumeration: its value, not its name
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JSONValueError(f"{path}: non-finite numbers are not JSON data")
        return float(value)
    if isinstance(value, dict):
        made: dict[str, Any] = {}
        for key, item in cast(dict[object, object], value).items():
            if not isinstance(key, str):
                raise JSONValueError(f"{path}: the key {key!r:.60} is not a string")
            name = well_formed(str.__str__(key))
            made[name] = _plain(item, _below(path, name), level + 1)
        return made
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", level + 1) for index, item in enumerate(cast(list[object], value))]
    raise JSONValueError(f"{path}: a {type(value).__name__} is not JSON data")


def _below(path: str, key: str) -> str:
    """The path of a member, written as JavaScript would."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key, ensure_ascii=False)}]"
