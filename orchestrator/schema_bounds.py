"""Contradictions inside one subschema that can be seen without an instance.

Each is reported as a sentence that names both sides. Keywords of a type that ``type`` excludes have no effect and are
not looked at. The meta-schema has already vouched for the types of all keywords.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

import jsonschema_rs

from orchestrator.schema_patterns import PATTERN_OPTIONS, pattern_matches

__all__ = ["allowed_types", "contradictions", "exact"]

Schema = dict[str, Any]

ALL_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))

_SIZES = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("array", "minContains", "maxContains"),
    ("object", "minProperties", "maxProperties"),
)
_NUMERIC = (
    ("minimum", "maximum", False),
    ("minimum", "exclusiveMaximum", True),
    ("exclusiveMinimum", "maximum", True),
    ("exclusiveMinimum", "exclusiveMaximum", True),
)
_VALUE_KEYWORDS = (
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required",
)  # fmt: skip
"""Keywords that decide a value without looking at other subschemas."""

_MAX_CHECKED_VALUES = 1000


def allowed_types(schema: Schema) -> frozenset[str]:
    """The JSON types ``type`` lets through. ``number`` includes ``integer``."""
    declared = schema.get("type")
    if declared is None:
        return ALL_TYPES
    types = {declared} if isinstance(declared, str) else set(cast("list[str]", declared))
    if "number" in types:
        types.add("integer")
    return frozenset(types)


def exact(number: float) -> Fraction:
    """The decimal number that was written, not the binary one next to it: 0.1 is one tenth."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def contradictions(schema: Schema) -> Iterator[str]:
    """Every contradiction between the keywords of ``schema``, without going into its subschemas."""
    types = allowed_types(schema)
    for kind, low, high in _SIZES:
        if kind in types and low in schema and high in schema and schema[low] > schema[high]:
            yield f"{low} {_shown(schema[low])} is greater than {high} {_shown(schema[high])}"
    if "integer" in types:
        yield from _numeric(schema, types)
    if "object" in types:
        yield from _object(schema)
    if "array" in types:
        yield from _array(schema)
    yield from _values(schema)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _numeric(schema: Schema, types: frozenset[str]) -> Iterator[str]:
    for low, high, strict in _NUMERIC:
        if low in schema and high in schema:
            floor, ceiling = exact(schema[low]), exact(schema[high])
            if floor > ceiling:
                yield f"{low} {_shown(schema[low])} is greater than {high} {_shown(schema[high])}"
                return
            if strict and floor == ceiling:
                yield f"{low} {_shown(schema[low])} and {high} {_shown(schema[high])} leave no number between them"
                return
    lows = [key for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [key for key in ("maximum", "exclusiveMaximum") if key in schema]
    if not lows or not highs:
        return
    low = max(lows, key=lambda key: (exact(schema[key]), key == "exclusiveMinimum"))
    high = min(highs, key=lambda key: (exact(schema[key]), key == "maximum"))
    step = exact(schema["multipleOf"]) if "multipleOf" in schema else None
    what = f"multiple of {_shown(schema['multipleOf'])}" if step is not None else "integer"
    if "number" not in types:
        step = Fraction(1) if step is None else _common_multiple(step, Fraction(1))
    if step is None:
        return
    first = exact(schema[low]) / step
    count = math.floor(first) + 1 if low == "exclusiveMinimum" else math.ceil(first)
    candidate = count * step
    ceiling = exact(schema[high])
    if candidate > ceiling or (candidate == ceiling and high == "exclusiveMaximum"):
        yield f"no {what} lies between {low} {_shown(schema[low])} and {high} {_shown(schema[high])}"


def _common_multiple(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _object(schema: Schema) -> Iterator[str]:
    properties: dict[str, object] = schema.get("properties", {})
    patterns: list[str] = list(schema.get("patternProperties", ()))
    required = list(dict.fromkeys(cast("list[str]", schema.get("required", []))))
    closed = schema.get("additionalProperties") is False
    if closed and patterns:
        # All names at once first: one by one, many names against many patterns would take a second.
        names = {"properties": dict.fromkeys(properties, True), "patternProperties": dict.fromkeys(patterns, True)}
        closed = not _validator({**names, "additionalProperties": False}).is_valid(dict.fromkeys(required))
    for name in required:
        if properties.get(name) is False:
            yield f'required {_shown(name)} is excluded by its own schema, "false"'
        elif closed and name not in properties and not any(pattern_matches(pattern, name) for pattern in patterns):
            listed = ", ".join(_shown(known) for known in list(properties)[:10]) or "none"
            yield f"required {_shown(name)} is excluded by additionalProperties false (properties: {listed})"
    if "maxProperties" in schema and len(required) > schema["maxProperties"]:
        yield f"required names {len(required)} properties, maxProperties is {schema['maxProperties']}"
    if schema.get("additionalProperties") is False and not patterns and "minProperties" in schema:
        possible = sum(1 for sub in properties.values() if sub is not False)
        if schema["minProperties"] > possible:
            yield (
                f"minProperties {schema['minProperties']} is greater than the {possible} properties that "
                "additionalProperties false allows"
            )


def _array(schema: Schema) -> Iterator[str]:
    least = schema.get("minItems", 0)
    prefix: list[object] = schema.get("prefixItems", [])
    if schema.get("items") is False and least > len(prefix):
        yield f"minItems {least} is greater than the {len(prefix)} items that items false allows"
    if "contains" in schema:
        wanted = schema.get("minContains", 1)
        if schema["contains"] is False and wanted > 0:
            yield "contains false matches no item, and at least one must match"
        if wanted > schema.get("maxItems", wanted):
            yield f"minContains {wanted} is greater than maxItems {schema['maxItems']}"
    items: object = schema.get("items")
    if schema.get("uniqueItems") is True and not prefix and isinstance(items, dict) and "enum" in items:
        values = cast("list[object]", items["enum"])
        distinct = len({json.dumps(value, sort_keys=True) for value in values})
        if least > distinct:
            yield f"minItems {least} with uniqueItems is greater than the {distinct} values of items.enum"


def _values(schema: Schema) -> Iterator[str]:
    values: list[object] = schema.get("enum", [])
    if "enum" in schema and not values:
        yield "enum is empty, so no value can match"
        return
    if "const" in schema:
        if values and not _validator({"enum": values}).is_valid(schema["const"]):
            yield f"const {_shown(schema['const'])} is not one of enum {_shown(values)}"
            return
        values = [schema["const"]]
    if not values or len(values) > _MAX_CHECKED_VALUES:
        return
    what = "const" if "const" in schema else "enum"
    rules = {key: schema[key] for key in _VALUE_KEYWORDS if key in schema}
    if not rules or any(map(_validator(rules).is_valid, values)):
        return
    shown = _shown(values[0] if what == "const" else values)
    if "type" in rules and not any(map(_validator({"type": rules["type"]}).is_valid, values)):
        yield f"{what} {shown} has no value of type {_shown(rules['type'])}"
        return
    others = ", ".join(f"{key} {_shown(value)}" for key, value in rules.items())
    yield f"{what} {shown} has no value that fits {others}"


def _validator(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema, pattern_options=PATTERN_OPTIONS)
