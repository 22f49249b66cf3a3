"""One schema that asks for what two schemas ask, without references or combinators.

A flat schema has ``type`` as a list, ``const`` as an ``enum``, ``pattern`` and ``contains`` as lists, ``multipleOf`` as
a fraction; its property and item schemas are ordinary schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

from orchestrator.schema_bounds import allowed_types, exact
from orchestrator.schema_patterns import pattern_matches

__all__ = ["DeadEnd", "flatten", "merge"]

Schema = dict[str, Any]

_COMBINATORS = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "not", "const", "$defs", "definitions")
)


class DeadEnd(Exception):
    """This way leads to no value; another one may."""


def flatten(schema: Schema) -> Schema:
    """The keywords of one schema itself, in flat form.

    Raises:
        DeadEnd: its enumerated values do not fit its type.
    """
    flat = {key: value for key, value in schema.items() if key not in _COMBINATORS}
    if "const" in schema:
        flat["enum"] = [schema["const"]]
    if "type" in flat:
        flat["type"] = [flat["type"]] if isinstance(flat["type"], str) else list(flat["type"])
    for keyword in ("pattern", "contains"):
        if keyword in flat:
            flat[keyword] = [flat[keyword]]
    if "multipleOf" in flat:
        flat["multipleOf"] = exact(flat["multipleOf"])
    return _fit_enum(flat)


def merge(a: Schema, b: Schema) -> Schema:
    """What satisfies both flat schemas.

    Raises:
        DeadEnd: nothing does.
    """
    if not b:
        return a
    merged = {**a, **b}
    for keyword in a.keys() & b.keys():
        combine = _RULES.get(keyword)
        merged[keyword] = a[keyword] if combine is None else combine(a[keyword], b[keyword])
    if "properties" in merged:
        merged["properties"] = {name: _both(_property(a, name), _property(b, name)) for name in merged["properties"]}
    return _fit_enum(merged)


def _property(flat: Schema, name: str) -> object:
    properties = flat.get("properties", {})
    if name in properties:
        return properties[name]
    if "additionalProperties" not in flat or any(pattern_matches(p, name) for p in flat.get("patternProperties", {})):
        return True
    return flat["additionalProperties"]


def _fit_enum(flat: Schema) -> Schema:
    if "enum" not in flat or "type" not in flat:
        return flat
    types = allowed_types(flat)
    values = [value for value in flat["enum"] if _type_of(value) in types]
    if not values:
        raise DeadEnd("no enumerated value has the right type")
    return {**flat, "enum": values}


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _both(a: object, b: object) -> object:
    if a is True or a == b:
        return b
    if b is True:
        return a
    return False if a is False or b is False else {"allOf": [a, b]}


def _types(a: list[str], b: list[str]) -> list[str]:
    common = allowed_types({"type": a}) & allowed_types({"type": b})
    if not common:
        raise DeadEnd("two types exclude each other")
    return [kind for kind in dict.fromkeys([*a, *b, "integer"]) if kind in common]


def _enums(a: list[object], b: list[object]) -> list[object]:
    known = {json.dumps(value, sort_keys=True) for value in b}
    common = [value for value in a if json.dumps(value, sort_keys=True) in known]
    if not common:
        raise DeadEnd("two enumerations have no value in common")
    return common


def _maps(a: Schema, b: Schema) -> Schema:
    return {name: _both(a.get(name, True), b.get(name, True)) for name in {**a, **b}}


def _lists(a: list[object], b: list[object]) -> list[object]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [_both(item, shorter[index]) if index < len(shorter) else item for index, item in enumerate(longer)]


def _unions(a: dict[str, list[str]], b: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: list(dict.fromkeys([*a.get(name, ()), *b.get(name, ())])) for name in {**a, **b}}


def _steps(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _enums,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), min),
    "multipleOf": _steps,
    "pattern": lambda a, b: list(dict.fromkeys([*cast("list[str]", a), *cast("list[str]", b)])),
    "contains": lambda a, b: [*cast("list[object]", a), *cast("list[object]", b)],
    "required": lambda a, b: list(dict.fromkeys([*cast("list[str]", a), *cast("list[str]", b)])),
    "uniqueItems": lambda a, b: bool(a or b),
    "properties": _maps,
    "patternProperties": _maps,
    "dependentSchemas": _maps,
    "dependentRequired": _unions,
    "prefixItems": _lists,
    **dict.fromkeys(
        ("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems"), _both
    ),
}
