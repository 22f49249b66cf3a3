"""Builds stand-in instances of a schema: plain, short, readable data for rehearsing a script without agents.

One `Sampler` makes one guess. It satisfies what can be satisfied by construction (types, bounds, required names,
references, ``allOf``), picks branches of ``anyOf``, ``oneOf`` and ``if``, and leaves the rest (``not``, exclusive
branches) to luck: the caller validates the guess and tries again with another ``attempt``. Work is bounded.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from random import Random
from typing import Any, cast

from orchestrator.pattern_samples import CannotSample, sample_match
from orchestrator.schema_bounds import exact
from orchestrator.schema_merge import DeadEnd, flatten, merge
from orchestrator.schema_patterns import pattern_matches
from orchestrator.schema_rules import resolve_pointer

__all__ = ["CannotSample", "Sampler"]

Schema = dict[str, Any]

_MAX_STEPS = 20_000
_MAX_DEPTH = 40
_DEEP = 5  # from here on only what is required, and branches that end
_MAX_ITEMS = 5_000
_MAX_STRING = 100_000
_MAX_INTEGER = 2**53
_TRIES = 30

_OPTIONAL_SHARE = (0.6, 1.0, 0.0, 0.3)
_UNTYPED = ("string", "integer", "boolean", "object", "array", "null")
_HINTS = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems")),
    ("string", ("minLength", "maxLength", "pattern", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)


class Sampler:
    """One guess at an instance.

    Args:
        root: a schema that `compile_schema` accepts.
        rng: the only source of choice.
        attempt: which strategy to use for optional properties, from 0.
    """

    def __init__(self, root: Schema, rng: Random, attempt: int) -> None:
        self._root = root
        self._rng = rng
        self._attempt = attempt
        self._steps = 0
        self._numbers = itertools.count(rng.randint(1, 20))

    def sample(self) -> object:
        """The guess.

        Raises:
            CannotSample: nothing can be built, or not within the bounds.
        """
        try:
            return self._value(self._root, "", 0)
        except DeadEnd as error:
            raise CannotSample(f"no stand-in: {error}") from None
        except RecursionError:
            raise CannotSample("no stand-in: the schema's references are too long a chain") from None

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise CannotSample("no stand-in within the bounds on work: the schema asks for too much data")

    # ------------------------------------------------------------------------------------------------- structure

    def _value(self, schema: object, name: str, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise DeadEnd("the schema requires itself without end")
        reason = DeadEnd(f"nothing satisfies the schema of {name!r}" if name else "nothing satisfies the schema")
        for flat in self._alternatives(schema, depth):
            try:
                return self._of(flat, name, depth)
            except DeadEnd as error:
                reason = error
        raise reason

    def _alternatives(self, schema: object, depth: int) -> Iterator[Schema]:
        """The schema without references and combinators, once for each way to choose among its branches."""
        self._step()
        if not isinstance(schema, dict):
            if schema is not False:
                yield {}
            return
        parts = cast("Schema", schema)
        choices: list[list[object]] = []
        if "$ref" in parts:
            choices.append([resolve_pointer(self._root, parts["$ref"])[0]])
        choices.extend([member] for member in parts.get("allOf", ()))
        choices.extend(self._ordered(parts[keyword], depth) for keyword in ("anyOf", "oneOf") if keyword in parts)
        if "if" in parts:
            held = {"allOf": [parts["if"], parts.get("then", True)]}
            choices.append(self._ordered([held, parts.get("else", True)], depth))
        yield from self._combined(flatten(parts), choices, depth)

    def _combined(self, flat: Schema, choices: list[list[object]], depth: int) -> Iterator[Schema]:
        if not choices:
            yield flat
            return
        for option in choices[0]:
            for alternative in self._alternatives(option, depth):
                try:
                    both = merge(flat, alternative)
                except DeadEnd:
                    continue
                yield from self._combined(both, choices[1:], depth)

    def _ordered(self, branches: list[object], depth: int) -> list[object]:
        """The branches in the order to try them: those that go no deeper first when it is deep already."""
        order = list(branches)
        if self._attempt:
            self._rng.shuffle(order)
        dull = {"type": "null"}
        if depth >= _DEEP:
            order.sort(key=lambda branch: '"$ref"' in json.dumps(branch))
        else:
            order.sort(key=lambda branch: branch == dull)
        return order

    def _of(self, flat: Schema, name: str, depth: int) -> object:
        self._step()
        if "enum" in flat:
            return flat["enum"][next(self._numbers) % len(flat["enum"])]
        match self._pick_type(flat):
            case "object":
                return self._object(flat, depth)
            case "array":
                return self._array(flat, name, depth)
            case "integer":
                return self._number(flat, whole=True)
            case "number":
                return self._number(flat, whole=False)
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
            case _:
                return self._string(flat, name)

    def _pick_type(self, flat: Schema) -> str:
        types: list[str] | None = flat.get("type")
        hinted = [kind for kind, keywords in _HINTS if any(keyword in flat for keyword in keywords)]
        if types is None:
            types = hinted or list(_UNTYPED)
        rich = [kind for kind in types if kind != "null" and not (kind == "integer" and "number" in types)]
        fitting = [kind for kind in rich if kind in hinted] or rich or types
        return fitting[0] if self._attempt == 0 else self._rng.choice(fitting)

    # --------------------------------------------------------------------------------------------------- objects

    def _object(self, flat: Schema, depth: int) -> dict[str, object]:
        names, flat = self._choose_names(flat, depth)
        most = flat.get("maxProperties", math.inf)
        result: dict[str, object] = {}
        required = set(flat.get("required", ()))
        for name in names:
            try:
                result[name] = self._value(self._schema_of(flat, name), name, depth + 1)
            except DeadEnd:
                if name in required:
                    raise
        spare = [name for name in flat.get("properties", {}) if name not in result]
        while len(result) < flat.get("minProperties", 0):
            name = spare.pop(0) if spare else self._new_name(flat, depth)
            if name in result:
                continue
            try:
                result[name] = self._value(self._schema_of(flat, name), name, depth + 1)
            except DeadEnd:
                if not spare and name not in flat.get("properties", {}):
                    raise
        if len(result) > most:
            raise DeadEnd("an object needs more properties than maxProperties allows")
        return result

    def _choose_names(self, flat: Schema, depth: int) -> tuple[list[str], Schema]:
        """The names the object shall have, and its schema with what those names bring along."""
        properties: Schema = flat.get("properties", {})
        share = 0.0 if depth >= _DEEP else _OPTIONAL_SHARE[self._attempt % len(_OPTIONAL_SHARE)]
        chosen = dict.fromkeys(flat.get("required", ()))
        room = flat.get("maxProperties", math.inf)
        for name in properties:
            if name not in chosen and len(chosen) < room and self._rng.random() < share:
                chosen[name] = None
        applied: set[str] = set()
        while True:
            before = len(chosen)
            for name, others in flat.get("dependentRequired", {}).items():
                if name in chosen:
                    chosen.update(dict.fromkeys(others))
            for name, schema in flat.get("dependentSchemas", {}).items():
                if name in chosen and name not in applied:
                    applied.add(name)
                    flat = self._with(flat, schema, depth)
                    chosen.update(dict.fromkeys(flat.get("required", ())))
            if len(chosen) == before:
                break
        known = [name for name in flat.get("properties", {}) if name in chosen]
        return known + [name for name in chosen if name not in known], flat

    def _with(self, flat: Schema, schema: object, depth: int) -> Schema:
        for alternative in self._alternatives(schema, depth):
            try:
                return merge(flat, alternative)
            except DeadEnd:
                continue
        raise DeadEnd("dependentSchemas contradicts the properties")

    @staticmethod
    def _schema_of(flat: Schema, name: str) -> object:
        found = [flat["properties"][name]] if name in flat.get("properties", {}) else []
        found += [
            schema for pattern, schema in flat.get("patternProperties", {}).items() if pattern_matches(pattern, name)
        ]
        if not found:
            return flat.get("additionalProperties", flat.get("unevaluatedProperties", True))
        return found[0] if len(found) == 1 else {"allOf": found}

    def _new_name(self, flat: Schema, depth: int) -> str:
        for pattern in flat.get("patternProperties", {}):
            return sample_match(pattern, self._rng)
        if flat.get("additionalProperties", flat.get("unevaluatedProperties")) is False:
            raise DeadEnd("an object needs more properties than it may have")
        if "propertyNames" in flat:
            return str(self._value({"type": "string", "allOf": [flat["propertyNames"]]}, "name", depth + 1))
        return f"extra{next(self._numbers)}"

    # ---------------------------------------------------------------------------------------------------- arrays

    def _array(self, flat: Schema, name: str, depth: int) -> list[object]:
        prefix: list[object] = flat.get("prefixItems", [])
        items: object = flat.get("items", flat.get("unevaluatedItems", True))
        least: int = flat.get("minItems", 0)
        most: float = flat.get("maxItems", math.inf)
        if least > _MAX_ITEMS:
            raise CannotSample(f"no stand-in: minItems {least} asks for too much data")
        slots: list[object] = list(prefix)
        # `contains` is met by putting what it wants in front of the ordinary items.
        for wanted in flat.get("contains", ()):
            count = min(flat.get("minContains", 1), _MAX_ITEMS)
            slots += [{"allOf": [wanted, items]}] * count
        usual = 0 if depth >= _DEEP else self._rng.randint(1, 2)
        slots += [items] * int(min(max(least, usual) - len(slots), _MAX_ITEMS))
        if not flat.get("contains"):
            del slots[int(min(most, len(slots))) :]
        result: list[object] = []
        seen: set[str] = set()
        for slot in slots:
            try:
                result.append(self._item(slot, name, depth, seen if flat.get("uniqueItems") else None))
            except DeadEnd:
                if len(result) < least:
                    raise
                break
        return result

    def _item(self, schema: object, name: str, depth: int, seen: set[str] | None) -> object:
        for _ in range(_TRIES):
            value = self._value(schema, name, depth + 1)
            if seen is None:
                return value
            key = json.dumps(value, sort_keys=True)
            if key not in seen:
                seen.add(key)
                return value
        raise DeadEnd("an array needs more distinct items than were found")

    # --------------------------------------------------------------------------------------------------- scalars

    def _string(self, flat: Schema, name: str) -> str:
        least: int = flat.get("minLength", 0)
        most: int | None = flat.get("maxLength")
        if least > _MAX_STRING:
            raise CannotSample(f"no stand-in: minLength {least} asks for too much data")
        patterns: list[str] = flat.get("pattern", [])
        if patterns:
            return self._matching(patterns, least, most)
        number = next(self._numbers)
        formatted = _FORMATS.get(flat.get("format", ""))
        if formatted is not None:
            text = formatted.format(n=number, d=1 + number % 28, b=number % 250, x=f"{number:012x}")
            if least <= len(text) and (most is None or len(text) <= most):
                return text
        text = f"sample {name or 'text'} {number}"
        if len(text) < least:
            text += " text" * ((least - len(text)) // 5 + 1)
            text = text[: max(least, 1)]
        if most is not None and len(text) > most:
            # The number stands last and makes strings differ: of a text that is too long the beginning goes.
            text = text[len(text) - most :].lstrip().rjust(least, "x")
        return text

    def _matching(self, patterns: list[str], least: int, most: int | None) -> str:
        if len(patterns) == 1:
            return sample_match(patterns[0], self._rng, least, most)
        for _ in range(_TRIES):
            # Two anchored ends meet in a string that is glued together; otherwise one match may hold the other.
            parts = [sample_match(pattern, self._rng) for pattern in patterns]
            for text in (parts[0], "".join(parts)):
                fits = least <= len(text) and (most is None or len(text) <= most)
                if fits and all(pattern_matches(pattern, text) for pattern in patterns):
                    return text
        raise DeadEnd("no string found that matches several patterns")

    def _number(self, flat: Schema, *, whole: bool) -> int | float:
        low, low_open = _tightest(flat, "minimum", "exclusiveMinimum", max)
        high, high_open = _tightest(flat, "maximum", "exclusiveMaximum", min)
        step: Fraction | None = flat.get("multipleOf")
        if whole:
            step = Fraction(1) if step is None else Fraction(step.numerator, 1)
        pick = self._rng.randint(0, 9)
        if step is None:
            if low is None or high is None:
                offset = Fraction(pick + 1, 2)
                return _plain(low + offset if low is not None else high - offset if high is not None else offset)
            exactly = low + (high - low) * Fraction(pick + 1, 11)
            rounded = Fraction(round(exactly * 100), 100)
            return _plain(rounded if low < rounded < high else exactly)
        first = None if low is None else math.floor(low / step) + 1 if low_open else math.ceil(low / step)
        last = None if high is None else math.ceil(high / step) - 1 if high_open else math.floor(high / step)
        if first is None:
            first = 1 if last is None or last >= 1 else last - 9
        if last is None:
            last = first + 9
        if last < first:
            raise DeadEnd("no number lies between the bounds")
        return _plain((first + pick % min(10, last - first + 1)) * step)


def _tightest(flat: Schema, closed: str, opened: str, choose: Any) -> tuple[Fraction | None, bool]:
    bounds: Iterable[tuple[Fraction, bool]] = [
        (exact(flat[key]), is_open) for key, is_open in ((closed, False), (opened, True)) if key in flat
    ]
    if not bounds:
        return None, False
    value = choose(bound for bound, _ in bounds)
    return value, any(is_open for bound, is_open in bounds if bound == value)


def _plain(number: Fraction) -> int | float:
    if number.denominator == 1 and abs(number) <= _MAX_INTEGER:
        return int(number)
    return float(number)


_FORMATS = {
    "date-time": "2025-01-{d:02}T09:30:00Z",
    "date": "2025-01-{d:02}",
    "time": "09:{d:02}:00Z",
    "duration": "P{n}D",
    "email": "sample{n}@example.com",
    "idn-email": "sample{n}@example.com",
    "hostname": "host{n}.example.com",
    "idn-hostname": "host{n}.example.com",
    "ipv4": "192.0.2.{b}",
    "ipv6": "2001:db8::{n:x}",
    "uri": "https://example.com/sample/{n}",
    "url": "https://example.com/sample/{n}",
    "uri-reference": "/sample/{n}",
    "iri": "https://example.com/sample/{n}",
    "iri-reference": "/sample/{n}",
    "uuid": "00000000-0000-4000-8000-{x}",
    "json-pointer": "/sample/{n}",
    "regex": "^sample{n}$",
}
