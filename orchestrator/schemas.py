"""The JSON Schemas of ``agent()`` calls: compiled once, checked before an agent starts, applied to its answer.

Guarantees: `compile_schema` raises nothing but `WorkflowError`; nothing is ever fetched; checking an answer takes
time in proportion to it, whatever schema a script sent; an error names the place by path and is short enough to show.
The dialect is draft 2020-12 with local references; ``format`` is an annotation.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import jsonschema_rs
import msgspec

from orchestrator.schema_patterns import PATTERN_OPTIONS
from orchestrator.schema_rules import (
    MAX_DEPTH,
    MAX_VIOLATIONS,
    ReferenceGraph,
    Schema,
    SchemaRefused,
    check_schema,
    json_path,
    nesting,
)
from orchestrator.schema_samples import CannotSample, Sampler
from protocol.errors import ErrorCode, WorkflowError

__all__ = ["AgentSchema", "compile_schema", "sample_instance"]

MAX_SCHEMA_BYTES = 64 * 1024
"""A script can send another schema with every call, and each is compiled in the host: 0.1 s for the worst of them."""

_SHOWN_ERRORS = 10
_COUNTED_ERRORS = 1000
_MAX_MESSAGE = 300
_MAX_INSTANCE_DEPTH = 250  # beyond 255 the validator refuses or recurses until the process ends, by version
_MAX_VISITS = 500_000  # of a subschema to a value: a few hundredths of a second
_MAX_BUSIEST = 500  # errors nest in errors, so their cost grows faster than the visits
_MAX_COPIED = 64_000_000  # bytes copied into errors: a quarter of a second at worst
_SAMPLE_ATTEMPTS = 24

_TYPE_NAMES = "array, boolean, integer, null, number, object, string"
_ROOT_TYPE = 'schema.type must be "object" (structured output is object-rooted)'


class AgentSchema:
    """One compiled schema. Made by `compile_schema`; may be shared between runs and threads."""

    def __init__(self, raw: bytes, validator: jsonschema_rs.Draft202012Validator, graph: ReferenceGraph) -> None:
        self._raw = raw
        self._validator = validator
        self._graph = graph

    @property
    def value(self) -> dict[str, Any]:
        """The schema as plain data: a fresh copy, so that no provider can change another call's schema."""
        return msgspec.json.decode(self._raw, type=dict[str, Any])

    def errors(self, instance: object) -> list[str]:
        """What is wrong with ``instance``, as ``<path>: <message>``; empty when it is valid. Never raises.

        At most ten errors are listed, then a line says how many more there are.
        """
        if nesting(instance, _MAX_INSTANCE_DEPTH) > _MAX_INSTANCE_DEPTH:
            return [f"$: is nested deeper than {_MAX_INSTANCE_DEPTH} levels"]
        try:
            visits, busiest = self._graph.visits(instance, _MAX_VISITS)
            if visits > _MAX_VISITS:
                return ["$: is too large to check against this schema, whose references multiply at every level"]
            if self._validator.is_valid(instance):
                return []
            found = self._find_errors(instance, busiest)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return [f"$: is not plain JSON data ({_cut(str(error))})"]
        lines = list(dict.fromkeys(map(_line, found[:_COUNTED_ERRORS])))
        if not lines:
            return ["$: does not match the schema, and is too large to say where"]
        more = len(lines) - _SHOWN_ERRORS
        if more > 0:
            count = f"{more} more errors" if len(found) <= _COUNTED_ERRORS else f"over {more} more errors"
            lines[_SHOWN_ERRORS:] = [f"… and {count}"]
        return lines

    def _find_errors(self, instance: object, busiest: int) -> list[jsonschema_rs.ValidationError]:
        """The errors of an invalid instance, where collecting them is affordable; the first one, or none, where not.

        The library collects all errors at once and each holds a copy of the part it is about: a thousand missing
        names at the root of a 2 MB answer would take 8 seconds and 3 GB.
        """
        if busiest > _MAX_BUSIEST:
            return []
        budget = _MAX_COPIED // max(1, self._graph.keywords)
        if _weight(instance, budget) <= budget:
            return list(islice(self._validator.iter_errors(instance), _COUNTED_ERRORS + 1))
        if self._graph.has_alternatives:
            return []
        try:
            self._validator.validate(instance)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


def _weight(instance: object, limit: int) -> int:
    """Roughly the bytes of ``instance`` as JSON; stops counting beyond ``limit``."""
    weight = 0
    stack: list[object] = [instance]
    while stack and weight <= limit:
        value = stack.pop()
        weight += 8
        if isinstance(value, str):
            weight += len(value)
        elif isinstance(value, Mapping):
            names = cast("Mapping[str, object]", value)
            weight += sum(map(len, names))
            stack.extend(names.values())
        elif isinstance(value, (list, tuple)):
            stack.extend(cast("Iterable[object]", value))
    return weight


def compile_schema(raw: bytes) -> AgentSchema:
    """Compiles a schema from its JSON text; the same text again costs nothing.

    Args:
        raw: UTF-8 JSON of an object-rooted schema.

    Raises:
        WorkflowError: ``UNSUPPORTED_SCHEMA``, naming the places and what to do.
    """
    try:
        if len(raw) > MAX_SCHEMA_BYTES:
            raise SchemaRefused([f"schema: is {len(raw)} bytes of JSON; the limit is {MAX_SCHEMA_BYTES}"])
        return _compile(bytes(raw))
    except SchemaRefused as refused:
        raise WorkflowError(
            ErrorCode.UNSUPPORTED_SCHEMA,
            f"agent() schema is outside the supported subset — unsupported JSON schema: {refused}",
        ) from None


@lru_cache(maxsize=256)
def _compile(raw: bytes) -> AgentSchema:
    try:
        decoded: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SchemaRefused(["schema: is not JSON, or nested too deeply"]) from None
    if not isinstance(decoded, dict):
        raise SchemaRefused([_ROOT_TYPE])
    schema = cast("Schema", decoded)
    if nesting(schema, MAX_DEPTH) > MAX_DEPTH:
        raise SchemaRefused([f"schema: is nested deeper than {MAX_DEPTH} levels; move parts to $defs"])
    _check_against_meta_schema(schema)
    if schema.get("type") != "object":
        raise SchemaRefused([_ROOT_TYPE])
    graph = check_schema(schema)
    # The dialect is fixed and references are local: neither may reach the validator's own resolution.
    plain = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    try:
        validator = jsonschema_rs.Draft202012Validator(
            plain, pattern_options=PATTERN_OPTIONS, retriever=_refuse_to_fetch
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaRefused([f"schema: {_cut(_message(error))}"]) from None
    return AgentSchema(raw, validator, graph)


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError("nothing is fetched")


@lru_cache(maxsize=1)
def _meta_schema() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})


def _check_against_meta_schema(schema: Schema) -> None:
    found = list(islice(_meta_schema().iter_errors(schema), MAX_VIOLATIONS))
    if found:
        raise SchemaRefused(list(dict.fromkeys(_meta_violation(error) for error in found)))


def _meta_violation(error: jsonschema_rs.ValidationError) -> str:
    path = list(error.instance_path)
    where = json_path("schema", path)
    if path[-1:] == ["type"] and "'anyOf'" in error.message:  # not a property that is called type
        return f"{where}: must be a JSON Schema type or a list of them ({_TYPE_NAMES})"
    hint = ""
    match path[-1:]:
        case ["items"] if '"boolean", "object"' in error.message:
            hint = '; for a tuple use "prefixItems"'
        case ["required"]:
            hint = '; it lists the names of required properties, beside "properties"'
        case ["exclusiveMinimum" | "exclusiveMaximum"]:
            hint = "; it is the bound itself, a number"
        case _:
            pass
    return f"{where}: {_cut(error.message)}{hint}"


def _message(error: Exception) -> str:
    return (
        error.message
        if isinstance(error, (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError))
        else str(error)
    )


def _line(error: jsonschema_rs.ValidationError) -> str:
    text = f"{json_path('$', error.instance_path)}: {_cut(error.message)}"
    branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", [])
    causes = [branch for branch in branches if branch]
    if causes:
        # Of several alternatives the one with the fewest errors is most likely the one that was meant.
        closest = min(causes, key=len)[0]
        text += f" (closest: {json_path('$', closest.instance_path)}: {_cut(closest.message)})"
    return text


def _cut(text: str) -> str:
    """The validator's messages hold the whole instance, with the reason at the end: the middle is what goes."""
    text = " ".join(text.split())
    if len(text) <= _MAX_MESSAGE:
        return text
    half = _MAX_MESSAGE // 2
    return f"{text[:half]} … {text[-half:]}"


def sample_instance(schema: dict[str, Any], seed: int = 0) -> object:
    """A stand-in answer that validates against ``schema``: the same for the same schema and seed.

    Raises:
        WorkflowError: ``UNSUPPORTED_SCHEMA``, as from `compile_schema`.
        ValueError: no valid instance was found; the message holds the errors of the nearest one.
    """
    compiled = compile_schema(msgspec.json.encode(schema))
    problem = ["no instance could be built"]
    for attempt in range(_SAMPLE_ATTEMPTS):
        try:
            instance = Sampler(compiled.value, random.Random(f"{seed}/{attempt}"), attempt).sample()
        except CannotSample as error:
            problem = [str(error)]
            continue
        problem = compiled.errors(instance)
        if not problem:
            return instance
    raise ValueError(f"no stand-in answer found for this schema: {'; '.join(problem)}")
