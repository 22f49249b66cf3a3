"""What a schema must be, beyond valid JSON Schema, before an agent is started with it.

Guarantees for a schema that passes `check_schema`: every reference is local and resolves; checking a value always
ends; no subschema contradicts itself in a way that can be seen without an instance. Schemas come from scripts, which
are not trusted: the work done here is bounded by the limits below, and nothing is ever fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast
from urllib.parse import unquote

from orchestrator.schema_bounds import contradictions
from orchestrator.schema_patterns import refuse_pattern

__all__ = [
    "MAX_DEPTH",
    "ReferenceGraph",
    "Schema",
    "SchemaRefused",
    "check_schema",
    "json_path",
    "nesting",
    "resolve_pointer",
]

Schema = dict[str, Any]

MAX_DEPTH = 100
"""Levels of JSON nesting: the validator refuses values beyond 255, its meta-schema check needs some of them."""
MAX_PATTERNS = 100
MAX_SUBSCHEMAS = 20_000
"""Subschemas one value can meet, references expanded: ten lines of nested references otherwise mean 2**10 checks."""
MAX_VIOLATIONS = 10

IN_PLACE_ONE = ("not", "if", "then", "else")
IN_PLACE_LIST = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAP = ("dependentSchemas",)
CHILD_ONE = ("items", "contains", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "propertyNames")
CHILD_LIST = ("prefixItems",)
CHILD_MAP = ("properties", "patternProperties")
DEFINITIONS = ("$defs", "definitions")

_OVERLAPPING = frozenset(("contains", "patternProperties", "unevaluatedItems", "unevaluatedProperties"))
"""Keywords whose subschemas may meet a part of the value that another keyword's subschema meets too."""

_DIALECTS = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/2019-09|draft/2020-12)/schema#?")
_MISREAD = {
    "additionalItems": 'is not a keyword of draft 2020-12: write "prefixItems" and "items"',
    "dependencies": 'is not a keyword of draft 2020-12: use "dependentRequired" or "dependentSchemas"',
    "$dynamicRef": 'is not supported: use "$ref" with "#/$defs/..."',
    "$recursiveRef": 'is not supported: use "$ref" with "#/$defs/..."',
}
"""Keywords that 2020-12 validators skip or that need more than local references: silence would be a weaker check."""


class SchemaRefused(Exception):
    """The schema is outside the supported subset. ``violations`` are complete sentences that begin with a path."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations


def json_path(root: str, parts: Iterable[str | int]) -> str:
    """``$.items[2].n``; a name that is not an identifier is quoted: ``$["a b"]``."""
    text = [root]
    for part in parts:
        if isinstance(part, int):
            text.append(f"[{part}]")
        elif re.fullmatch(r"[A-Za-z_$][\w$-]{0,63}", part):
            text.append(f".{part}")
        else:
            text.append(f"[{json.dumps(part if len(part) <= 64 else part[:63] + '…', ensure_ascii=False)}]")
    return "".join(text)


def nesting(value: object, limit: int) -> int:
    """Levels of containers in ``value``; stops looking at ``limit + 1``.

    What is not a dict, list or tuple is no container of JSON. Never recurses, and looks at a container once per level,
    so that it ends on cycles and shared parts too.
    """
    level = 0
    layer = _containers((value,))
    while layer and level <= limit:
        level += 1
        layer = _containers(
            part
            for item in layer
            for part in (cast("dict[str, object]", item).values() if isinstance(item, dict) else item)
        )
    return level


def _containers(values: Iterable[object]) -> Iterable[Iterable[object]]:
    found: dict[int, Iterable[object]] = {}
    for value in values:
        if isinstance(value, (dict, list, tuple)):
            container = cast("Iterable[object]", value)
            found[id(container)] = container
    return found.values()


def resolve_pointer(root: Schema, reference: str) -> tuple[object, list[str | int]]:
    """The value a local reference (``#`` or ``#/…``) names, and its path.

    Raises:
        LookupError: there is no such place.
    """
    value: object = root
    path: list[str | int] = []
    for token in unquote(reference[1:]).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, object]", value)[key]
            path.append(key)
        elif isinstance(value, list) and re.fullmatch(r"0|[1-9]\d{0,8}", key):
            value = cast("list[object]", value)[int(key)]
            path.append(int(key))
        else:
            raise LookupError(reference)
    return value, path


def subschemas(schema: Schema) -> Iterator[tuple[str, tuple[str | int, ...], object, bool]]:
    """Each direct subschema: its keyword, the path to it, itself, and whether it meets the same value."""
    for keywords, in_place in ((IN_PLACE_ONE, True), (CHILD_ONE, False)):
        for keyword in keywords:
            if keyword in schema:
                yield keyword, (keyword,), schema[keyword], in_place
    for keywords, in_place in ((IN_PLACE_LIST, True), (CHILD_LIST, False)):
        for keyword in keywords:
            for index, item in enumerate(schema.get(keyword, ())):
                yield keyword, (keyword, index), item, in_place
    for keywords, in_place in ((IN_PLACE_MAP, True), (CHILD_MAP, False)):
        for keyword in keywords:
            for name, item in schema.get(keyword, {}).items():
                yield keyword, (keyword, name), item, in_place


def _applied(schema: Schema, key: str | int) -> Iterator[object]:
    """The subschemas that meet the part of a value at ``key``, or may: which patterns fit is not looked at."""
    if isinstance(key, int):
        prefix = schema.get("prefixItems", ())
        yield prefix[key] if key < len(prefix) else schema.get("items")
        yield schema.get("contains")
        yield schema.get("unevaluatedItems")
        return
    properties = schema.get("properties", {})
    yield from schema.get("patternProperties", {}).values()
    yield properties[key] if key in properties else schema.get("additionalProperties")
    yield schema.get("unevaluatedProperties")


def check_schema(root: Schema) -> ReferenceGraph:
    """Checks a schema that is already valid against the meta-schema, and returns how its parts refer to each other.

    Raises:
        SchemaRefused: with up to `MAX_VIOLATIONS` violations.
    """
    graph = _Walk(root).run()
    graph.bound()
    return graph


class _Walk:
    """Visits every subschema once, following references, and collects violations."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._violations: list[str] = []
        self._pattern_count = 0
        self._graph = ReferenceGraph(root)
        # A subschema under "not" or "if" is meant to fail, so its contradictions are no mistake (`plain` is false);
        # one that a reference also reaches from elsewhere is visited again for them.
        self._seen: dict[int, bool] = {}
        self._queue: list[tuple[Schema, tuple[str | int, ...], bool]] = [(root, (), True)]

    def run(self) -> ReferenceGraph:
        while self._queue and len(self._violations) <= MAX_VIOLATIONS:
            schema, path, plain = self._queue.pop()
            before = self._seen.get(id(schema))
            if before is None:
                self._seen[id(schema)] = plain
                self._visit(schema, path, plain)
            elif plain and not before:
                self._seen[id(schema)] = True
                self._add(path, contradictions(schema))
        if self._violations:
            raise SchemaRefused(self._violations[:MAX_VIOLATIONS])
        return self._graph

    def _add(self, path: tuple[str | int, ...], reasons: Iterable[str]) -> None:
        shown = islice(reasons, MAX_VIOLATIONS)
        self._violations.extend(f"{json_path('schema', path)}: {reason}" for reason in shown)

    def _visit(self, schema: Schema, path: tuple[str | int, ...], plain: bool) -> None:
        self._add_keyword_violations(schema, path)
        patterns_fit = self._check_patterns(schema, path)
        if plain and patterns_fit:
            self._add(path, contradictions(schema))
        edges = self._graph.add(schema, json_path("schema", path))
        below: list[tuple[Schema, tuple[str | int, ...], bool]] = []
        for keyword, step, item, in_place in subschemas(schema):
            if isinstance(item, dict):
                sub = cast("Schema", item)
                edges.append((sub, in_place))
                below.append((sub, (*path, *step), plain and keyword not in ("not", "if")))
        for keyword in DEFINITIONS:
            for name, item in schema.get(keyword, {}).items():
                if isinstance(item, dict):
                    below.append((cast("Schema", item), (*path, keyword, name), True))
        target = self._follow(schema, path)
        if target is not None:
            edges.append((target[0], True))
            below.append((*target, plain))
        self._queue.extend(reversed(below))

    def _follow(self, schema: Schema, path: tuple[str | int, ...]) -> tuple[Schema, tuple[str | int, ...]] | None:
        reference = schema.get("$ref")
        if reference is None:
            return None
        where = (*path, "$ref")
        shown = json.dumps(reference if len(reference) <= 100 else reference[:99] + "…", ensure_ascii=False)
        if reference != "#" and not reference.startswith("#/"):
            self._add(where, [f'{shown} is not a local reference: only "#/$defs/..." is followed, nothing is fetched'])
            return None
        try:
            target, target_path = resolve_pointer(self._root, reference)
        except LookupError:
            self._add(where, [f"{shown} names nothing in this schema"])
            return None
        if isinstance(target, dict):
            return cast("Schema", target), tuple(target_path)
        if not isinstance(target, bool):
            self._add(where, [f"{shown} does not name a schema"])
        return None

    def _add_keyword_violations(self, schema: Schema, path: tuple[str | int, ...]) -> None:
        for keyword, reason in _MISREAD.items():
            if keyword in schema:
                self._add((*path, keyword), [reason])
        if path and "$id" in schema:
            self._add((*path, "$id"), ["is supported at the root only: references are written as #/$defs/..."])
        dialect = schema.get("$schema")
        if dialect is not None and not _DIALECTS.fullmatch(dialect):
            shown = json.dumps(dialect[:100], ensure_ascii=False)
            self._add((*path, "$schema"), [f"{shown} is not supported: leave it out, or name draft 2020-12"])

    def _check_patterns(self, schema: Schema, path: tuple[str | int, ...]) -> bool:
        found = [(("pattern",), cast("str", schema["pattern"]))] if "pattern" in schema else []
        found += [(("patternProperties", name), cast("str", name)) for name in schema.get("patternProperties", ())]
        self._pattern_count += len(found)
        if self._pattern_count > MAX_PATTERNS:
            raise SchemaRefused([f"schema: has more than {MAX_PATTERNS} patterns"])
        fit = True
        for step, pattern in found:
            reason = refuse_pattern(pattern)
            if reason is not None:
                fit = False
                self._add((*path, *step), [reason])
        return fit


class ReferenceGraph:
    """Which subschema applies which, to the same value or to a part of it."""

    def __init__(self, root: Schema) -> None:
        self._root = root  # subschemas are told apart by identity, so the tree they belong to must stay alive
        self._schemas: dict[int, Schema] = {}
        self._edges: dict[int, list[tuple[Schema, bool]]] = {}
        self._paths: dict[int, str] = {}
        self._rank: dict[int, int] = {}
        self._multiplies = False

    def add(self, schema: Schema, path: str) -> list[tuple[Schema, bool]]:
        """Registers a subschema and returns its list of edges (subschema, whether it meets the same value)."""
        self._schemas[id(schema)] = schema
        self._paths[id(schema)] = path
        return self._edges.setdefault(id(schema), [])

    def bound(self) -> None:
        """Refuses a schema that cannot be decided or costs too much.

        Raises:
            SchemaRefused: a reference leads back to itself at the same value, or references multiply beyond
                `MAX_SUBSCHEMAS`.
        """
        cycle, order = self._order(in_place_only=True)
        if cycle is not None:
            where = self._paths[cycle]
            raise SchemaRefused([f"{where}: refers to itself without going into a property or an item"])
        self._refuse_explosion(order, in_place_only=True)
        self._rank = {node: rank for rank, node in enumerate(order)}
        cycle, order = self._order(in_place_only=False)
        if cycle is None:
            self._refuse_explosion(order, in_place_only=False)
        else:
            self._multiplies = self._can_multiply()

    @property
    def keywords(self) -> int:
        """How many keywords and required names the schema has: the most errors one value can have, roughly."""
        return sum(len(schema) + len(schema.get("required", ())) for schema in self._schemas.values())

    @property
    def has_alternatives(self) -> bool:
        """Whether an error can hold the errors of several branches."""
        return any("anyOf" in schema or "oneOf" in schema for schema in self._schemas.values())

    def visits(self, instance: object, limit: int) -> tuple[int, int]:
        """Visits of a subschema to a value that checking ``instance`` needs: all, and of the busiest pair.

        Stops counting beyond ``limit``. Schemas that visit no value twice with one subschema are answered ``(0, 0)``:
        only a recursive one can need 2**depth visits, by applying itself twice to the same part.
        """
        if not self._multiplies:
            return 0, 0
        total = busiest = 0
        level: list[tuple[object, dict[int, int]]] = [(instance, {id(self._root): 1})]
        while level:
            below: list[tuple[object, dict[int, int]]] = []
            for value, start in level:
                visits = self._spread(start)
                total += sum(visits.values())
                busiest = max(busiest, *visits.values())
                if total > limit:
                    return total, busiest
                below.extend(self._parts(value, visits))
            level = below
        return total, busiest

    def _can_multiply(self) -> bool:
        """Whether some part of a value may meet one subschema over two ways. Says so when that is hard to tell."""
        steps = 0
        starts = {id(self._root)} | {
            id(sub) for edges in self._edges.values() for sub, in_place in edges if not in_place
        }
        for start in starts:
            visits = self._spread({start: 1})
            steps += len(visits)
            descending = [node for node in visits if any(not in_place for _, in_place in self._edges[node])]
            if steps > MAX_SUBSCHEMAS or len(descending) > 1 or any(visits[node] > 1 for node in descending):
                return True
            if any(map(_OVERLAPPING.intersection, (self._schemas[node] for node in descending))):
                return True
        return False

    def _spread(self, start: dict[int, int]) -> dict[int, int]:
        """How often each subschema meets a value that the subschemas in ``start`` meet so often."""
        reached = set(start)
        stack = list(start)
        while stack:
            for sub, in_place in self._edges[stack.pop()]:
                if in_place and id(sub) not in reached:
                    reached.add(id(sub))
                    stack.append(id(sub))
        visits = dict(start)
        for node in sorted(reached, key=self._rank.__getitem__, reverse=True):
            for sub, in_place in self._edges[node]:
                if in_place:
                    visits[id(sub)] = visits.get(id(sub), 0) + visits[node]
        return visits

    def _parts(self, value: object, visits: dict[int, int]) -> Iterator[tuple[object, dict[int, int]]]:
        parts: Iterable[tuple[str | int, object]]
        if isinstance(value, Mapping):
            parts = cast("Mapping[str, object]", value).items()
        elif isinstance(value, (list, tuple)):
            parts = enumerate(cast("Iterable[object]", value))
        else:
            return
        for key, part in parts:
            met: dict[int, int] = {}
            for node, count in visits.items():
                for sub in _applied(self._schemas[node], key):
                    if isinstance(sub, dict):
                        met[id(cast("Schema", sub))] = met.get(id(cast("Schema", sub)), 0) + count
            if met:
                yield part, met

    def _refuse_explosion(self, order: list[int], *, in_place_only: bool) -> None:
        cost: dict[int, int] = {}
        for node in order:
            cost[node] = 1 + sum(cost[id(sub)] for sub, in_place in self._edges[node] if in_place or not in_place_only)
            if cost[node] > MAX_SUBSCHEMAS:
                raise SchemaRefused(
                    [f"{self._paths[node]}: its references expand to more than {MAX_SUBSCHEMAS} subschemas"]
                )

    def _order(self, *, in_place_only: bool) -> tuple[int | None, list[int]]:
        """Every subschema after those it applies, and one that lies on a cycle if there is a cycle."""
        order: list[int] = []
        state: dict[int, bool] = {}  # True while on the current path, False when finished
        for start in self._edges:
            if start in state:
                continue
            state[start] = True
            stack = [(start, iter(self._edges[start]))]
            while stack:
                node, edges = stack[-1]
                for sub, in_place in edges:
                    if in_place_only and not in_place:
                        continue
                    below = id(sub)
                    if below not in state:
                        state[below] = True
                        stack.append((below, iter(self._edges[below])))
                        break
                    if state[below]:
                        return below, order
                else:
                    state[node] = False
                    order.append(node)
                    stack.pop()
        return None, order
