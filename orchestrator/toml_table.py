"""One table of a TOML file read into a struct of settings, with everything that is wrong with it.

Guarantees: every unknown field, every value of the wrong type and every value the struct itself refuses is one line
that names the table and the field. What may be a secret is recognised, by its name or by how it begins.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Collection
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

__all__ = ["SECRET_KEY", "looks_like_a_secret", "nearest", "parse_size", "read_table"]

T = TypeVar("T", bound=msgspec.Struct)

SECRET_KEY = re.compile(r"(?i)secret|passw(or)?d|authorization|api[_-]?key|(^|[_-])(key|token)$")
"""Names of fields, variables and headers whose value is a secret."""
_SECRET_VALUE = re.compile(r"^(Bearer +)?(sk-|sk_|xai-|gsk_|ghp_|github_pat_|hf_|AIza|AKIA)[A-Za-z0-9_-]{12,}$")
_SIZES = frozenset({"memory_limit", "max_frame", "max_output"})
"""Fields that count bytes and may be written like 256M."""
_SIZE = re.compile(r"(\d+)\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length [^,]+)?, got `?([^`]+?)`?(?: - at `\$(.*)`)?$")


def parse_size(text: str) -> int | None:
    """Bytes from a whole number with an optional K, M or G (powers of 1024); ``None`` when it is none."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _UNITS[(match[2] or "").lower()]


def nearest(name: str, known: Collection[str]) -> str:
    """A question for who may have mistyped ``name``; empty when nothing known is near."""
    close = difflib.get_close_matches(name, known, 1)
    return f": did you mean {close[0]!r}?" if close else ""


def looks_like_a_secret(value: object) -> bool:
    """Whether it is, or a list of it holds, a text that begins as the keys of well-known services do."""
    if isinstance(value, list):
        return any(looks_like_a_secret(item) for item in cast(list[object], value))
    return isinstance(value, str) and _SECRET_VALUE.match(value) is not None


def read_table(
    kind: type[T],
    table: dict[str, Any],
    where: str,
    problems: list[str],
    *,
    known: Collection[str] = (),
    hidden: Collection[str] = (),
) -> T | None:
    """The settings a table holds; ``None`` after adding to ``problems`` when it holds none.

    Args:
        kind: the struct of the settings. Its constructor may refuse with a `ValueError` that begins with a field.
        table: the fields as TOML has them.
        where: how messages call the table.
        problems: what is wrong is added here.
        known: further names the table may have had, for guesses and lists only.
        hidden: fields of the struct that a table may not set.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in hidden}
    names = (*known, *fields)
    before = len(problems)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in fields:
            problems.append(f"{where} has no setting {name!r}{nearest(name, names) or ': it has ' + ', '.join(names)}")
            continue
        try:
            values[name] = _convert(name, value, fields[name].type)
        except ValueError as error:
            problems.append(f"{where} {error}")
    missing = [name for name, field in fields.items() if field.required and name not in table]
    problems += [f"{where} needs {name}" for name in missing]
    settings = None
    if not missing and all(name in values for name, field in fields.items() if field.required):
        settings = _construct(kind, values, {name for name in fields if fields[name].required}, where, problems)
    return settings if len(problems) == before else None


def _construct(kind: type[T], values: dict[str, Any], required: set[str], where: str, problems: list[str]) -> T | None:
    """The struct; where it refuses a field, that field is left out to see what else it refuses."""
    values = dict(values)
    refused: set[str] = set()
    while True:
        try:
            return kind(**values)
        except ValueError as error:
            text = str(error).removeprefix(f"{kind.__name__}.")
            name = text.split(" ", 1)[0]
            if name in refused:  # its default does not go with another field: that was said
                return None
            refused.add(name)
            problems.append(f"{where} {text}")
            if name in required or name not in values:
                return None
            del values[name]


def _convert(name: str, value: Any, kind: Any) -> Any:
    optional = type(None) in get_args(kind)
    if optional and value == "none" and str not in get_args(kind):
        return None  # TOML has no null
    if name in _SIZES and isinstance(value, str):
        size = parse_size(value)
        if size is None:
            raise ValueError(f"{name} must be a size such as 256M or a whole number of bytes")
        return size
    choices = _choices(kind)
    if choices and value not in choices:
        accepted = ", ".join(f'"{choice}"' for choice in choices)
        guess = nearest(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {accepted}{guess}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(name, str(error))) from None


def _choices(kind: Any) -> tuple[str, ...]:
    """The texts a field takes, when it takes nothing else."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        parts = [_choices(part) for part in get_args(kind)]
        return tuple(choice for part in parts for choice in part) if all(parts) else ()
    return ()


def _in_words(name: str, problem: str) -> str:
    match = _EXPECTED.match(problem)
    if match is None:
        return f"{name}: {problem}"
    expected, got, path = match.groups()
    wanted = " or ".join(_WORDS.get(word.strip(), word.strip()) for word in expected.split("|") if "null" not in word)
    return f"{name}{path or ''} must be {wanted}, not {_WORDS.get(got, got)}"
