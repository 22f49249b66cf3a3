"""Agent schemas: what is refused before an agent starts, and what is said about its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schemas import MAX_SCHEMA_BYTES, AgentSchema, compile_schema
from protocol.errors import ErrorCode, WorkflowError

PREFIX = "agent() schema is outside the supported subset — unsupported JSON schema: "
ROOT_TYPE = 'schema.type must be "object" (structured output is object-rooted)'


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def prop(schema: Any) -> dict[str, Any]:
    return obj(properties={"a": schema})


def compiled(schema: Any) -> AgentSchema:
    return compile_schema(json.dumps(schema).encode())


def refused(raw: bytes) -> str:
    with pytest.raises(WorkflowError) as caught:
        compile_schema(raw)
    assert caught.value.code is ErrorCode.UNSUPPORTED_SCHEMA
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX)


def doubling(levels: int, wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """References that each name the next one twice."""
    defs = {f"d{i}": wrap({"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}) for i in range(levels)}
    return obj(**{"$defs": {**defs, f"d{levels}": {}}, "$ref": "#/$defs/d0"})


ACCEPTED: dict[str, dict[str, Any]] = {
    "the smallest": obj(),
    "annotations": prop(
        {"title": "t", "description": "d", "default": 1, "examples": [1], "format": "date", "x-mine": 1}
    ),
    "enum without type": prop({"enum": ["a", 1, None]}),
    "bounds": prop({"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "number", "minimum": 0}}),
    "type lists": prop({"type": ["string", "null"], "enum": ["x", None]}),
    "a pattern of doom": prop({"type": "string", "pattern": "^(a+)+$"}),
    "open additional properties": obj(additionalProperties={"type": "integer"}, required=["x"]),
    "a required name that a pattern allows": obj(
        required=["x1"], patternProperties={"^x": {}}, additionalProperties=False
    ),
    "local references": obj(**{"$defs": {"q": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/q"}}}),
    "older definitions": obj(definitions={"q": {}}, properties={"a": {"$ref": "#/definitions/q"}}),
    "escaped pointers": obj(**{"$defs": {"a/b~c d": {}}, "properties": {"a": {"$ref": "#/$defs/a~1b~0c%20d"}}}),
    "recursion": obj(properties={"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "a named dialect": obj(**{"$schema": "https://json-schema.org/draft/2020-12/schema"}),
    "draft 7 by name": obj(**{"$schema": "http://json-schema.org/draft-07/schema#"}),
    "an id at the root": obj(**{"$id": "https://example.com/s", "properties": {"a": {"$ref": "#"}}}),
    "what cannot match under not and if": prop({"not": {"enum": []}, "if": {"minimum": 2, "maximum": 1}}),
    "bounds of an excluded type": prop({"type": "string", "minimum": 2, "maximum": 1}),
    "equal bounds": prop({"type": "number", "minimum": 1.5, "maximum": 1.5, "minLength": 0, "maxLength": 0}),
    "property names that look like keywords": obj(properties={"$ref": {}, "enum": {"type": "string"}, "type": {}}),
    "values that look like schemas": prop({"default": {"$ref": "http://x"}, "const": {"$ref": "http://x"}}),
    "items false within the prefix": prop({"prefixItems": [{}], "items": False, "minItems": 1}),
    "contains none": prop({"type": "array", "contains": False, "minContains": 0}),
}


@pytest.mark.parametrize("schema", ACCEPTED.values(), ids=ACCEPTED)
def test_what_models_write_is_accepted_and_handed_on_unchanged(schema: dict[str, Any]) -> None:
    assert compiled(schema).value == schema


REFUSED: list[tuple[Any, str]] = [
    (True, ROOT_TYPE),
    ([], ROOT_TYPE),
    ("object", ROOT_TYPE),
    ({}, ROOT_TYPE),
    ({"type": "string"}, ROOT_TYPE),
    ({"type": ["object", "null"]}, ROOT_TYPE),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, ROOT_TYPE),
    # the meta-schema, with the path
    (prop({"type": "strin"}), "schema.properties.a.type: must be a JSON Schema type or a list of them (array, "),
    (prop({"type": ["string", 1]}), "schema.properties.a.type: must be a JSON Schema type or a list of them"),
    (obj(properties={"type": 5}), 'schema.properties.type: 5 is not of types "boolean", "object"'),
    (obj(properties={"type": {"minimum": "x"}}), 'schema.properties.type.minimum: "x" is not of type "number"'),
    (obj(properties={"a b": {"maximum": "x"}}), 'schema.properties["a b"].maximum: "x" is not of type "number"'),
    (prop({"minLength": -1}), "schema.properties.a.minLength: -1 is less than the minimum of 0"),
    (prop({"required": True}), 'schema.properties.a.required: true is not of type "array"; it lists the names'),
    (prop({"exclusiveMinimum": True}), 'schema.properties.a.exclusiveMinimum: true is not of type "number"; it is'),
    (prop({"items": [{}]}), 'schema.properties.a.items: [{}] is not of types "boolean", "object"; for a tuple use'),
    (obj(**{"$schema": 3}), 'schema.$schema: 3 is not of type "string"'),
    # what would be skipped in silence, or fetched
    (obj(dependencies={}), 'schema.dependencies: is not a keyword of draft 2020-12: use "dependentRequired"'),
    (prop({"additionalItems": False}), "schema.properties.a.additionalItems: is not a keyword of draft 2020-12"),
    (prop({"$dynamicRef": "#x"}), 'schema.properties.a.$dynamicRef: is not supported: use "$ref"'),
    (prop({"$id": "https://x/y"}), "schema.properties.a.$id: is supported at the root only"),
    (obj(**{"$schema": "https://x.y/z"}), 'schema.$schema: "https://x.y/z" is not supported: leave it out'),
    (prop({"$ref": "https://x.y/z"}), 'schema.properties.a.$ref: "https://x.y/z" is not a local reference'),
    (prop({"$ref": "file:///etc/passwd"}), 'schema.properties.a.$ref: "file:///etc/passwd" is not a local reference'),
    (prop({"$ref": "other.json#/a"}), 'schema.properties.a.$ref: "other.json#/a" is not a local reference'),
    (prop({"$ref": "#anchor"}), 'schema.properties.a.$ref: "#anchor" is not a local reference'),
    (prop({"$ref": "#/$defs/q"}), 'schema.properties.a.$ref: "#/$defs/q" names nothing in this schema'),
    (prop({"$ref": "#/properties/a/$ref"}), 'schema.properties.a.$ref: "#/properties/a/$ref" does not name a schema'),
    (prop({"pattern": "(?=a)b"}), 'schema.properties.a.pattern: the pattern "(?=a)b" uses look-around'),
    (prop({"pattern": "(a)\\1"}), 'schema.properties.a.pattern: the pattern "(a)\\\\1" uses look-around or back-ref'),
    (prop({"pattern": "(a"}), 'schema.properties.a.pattern: the pattern "(a" is not a regular expression'),
    (prop({"pattern": "a{1000}{1000}"}), 'schema.properties.a.pattern: the pattern "a{1000}{1000}" is not a regular'),
    (obj(patternProperties={"(": {}}), 'schema.patternProperties["("]: the pattern "(" is not a regular expression'),
    # contradictions, naming both sides
    (prop({"minimum": 3, "maximum": 2}), "schema.properties.a: minimum 3 is greater than maximum 2"),
    (prop({"minimum": 3, "exclusiveMaximum": 3}), "schema.properties.a: minimum 3 and exclusiveMaximum 3 leave no"),
    (prop({"exclusiveMinimum": 3, "maximum": 3}), "schema.properties.a: exclusiveMinimum 3 and maximum 3 leave no"),
    (
        prop({"exclusiveMinimum": 4, "exclusiveMaximum": 3}),
        "schema.properties.a: exclusiveMinimum 4 is greater than exclusiveMaximum 3",
    ),
    (
        prop({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}),
        "schema.properties.a: no integer lies between exclusiveMinimum 1 and exclusiveMaximum 2",
    ),
    (prop({"type": "integer", "minimum": 0.2, "maximum": 0.8}), "schema.properties.a: no integer lies between minimum"),
    (
        prop({"type": "number", "multipleOf": 0.3, "minimum": 0.1, "maximum": 0.29}),
        "schema.properties.a: no multiple of 0.3 lies between minimum 0.1 and maximum 0.29",
    ),
    (prop({"minLength": 3, "maxLength": 2}), "schema.properties.a: minLength 3 is greater than maxLength 2"),
    (prop({"minItems": 3, "maxItems": 2}), "schema.properties.a: minItems 3 is greater than maxItems 2"),
    (obj(minProperties=3, maxProperties=2), "schema: minProperties 3 is greater than maxProperties 2"),
    (
        prop({"contains": {}, "minContains": 3, "maxContains": 2}),
        "schema.properties.a: minContains 3 is greater than maxContains 2",
    ),
    (prop({"contains": {}, "maxItems": 0}), "schema.properties.a: minContains 1 is greater than maxItems 0"),
    (prop({"contains": False}), "schema.properties.a: contains false matches no item"),
    (prop({"items": False, "minItems": 1}), "schema.properties.a: minItems 1 is greater than the 0 items that items"),
    (
        prop({"uniqueItems": True, "items": {"enum": [1, 2]}, "minItems": 3}),
        "schema.properties.a: minItems 3 with uniqueItems is greater than the 2 values of items.enum",
    ),
    (prop({"enum": []}), "schema.properties.a: enum is empty, so no value can match"),
    (
        prop({"type": "integer", "enum": ["a", 1.5]}),
        'schema.properties.a: enum ["a", 1.5] has no value of type "integer"',
    ),
    (prop({"type": "null", "const": 0}), 'schema.properties.a: const 0 has no value of type "null"'),
    (prop({"const": True, "enum": [1]}), "schema.properties.a: const true is not one of enum [1]"),
    (prop({"enum": ["ab"], "maxLength": 1}), 'schema.properties.a: enum ["ab"] has no value that fits maxLength 1'),
    (prop({"enum": ["b"], "pattern": "^a"}), 'schema.properties.a: enum ["b"] has no value that fits pattern "^a"'),
    (
        obj(properties={"b": {}}, required=["x"], additionalProperties=False),
        'schema: required "x" is excluded by additionalProperties false (properties: "b")',
    ),
    (
        obj(patternProperties={"^y": {}}, required=["x"], additionalProperties=False),
        'schema: required "x" is excluded by additionalProperties false (properties: none)',
    ),
    (obj(properties={"x": False}, required=["x"]), 'schema: required "x" is excluded by its own schema'),
    (obj(required=["a", "b"], maxProperties=1), "schema: required names 2 properties, maxProperties is 1"),
    (
        obj(properties={"a": {}}, additionalProperties=False, minProperties=2),
        "schema: minProperties 2 is greater than the 1 properties that additionalProperties false allows",
    ),
    # wherever a subschema stands
    (prop({"items": {"enum": []}}), "schema.properties.a.items: enum is empty"),
    (prop({"anyOf": [{}, {"enum": []}]}), "schema.properties.a.anyOf[1]: enum is empty"),
    (prop({"prefixItems": [{"enum": []}]}), "schema.properties.a.prefixItems[0]: enum is empty"),
    (obj(additionalProperties={"enum": []}), "schema.additionalProperties: enum is empty"),
    (obj(patternProperties={"^x": {"enum": []}}), 'schema.patternProperties["^x"]: enum is empty'),
    (obj(dependentSchemas={"a": {"enum": []}}), "schema.dependentSchemas.a: enum is empty"),
    (obj(**{"$defs": {"q": {"enum": []}}}), "schema.$defs.q: enum is empty"),
    (prop({"if": {}, "then": {"enum": []}}), "schema.properties.a.then: enum is empty"),
    # what is fine under "not" is not fine where a reference uses it
    (
        obj(properties={"a": {"not": {"enum": []}}, "b": {"$ref": "#/properties/a/not"}}),
        "schema.properties.a.not: enum",
    ),
    # no end, or too much of it
    (obj(allOf=[{"$ref": "#"}]), "schema: refers to itself without going into a property or an item"),
    (
        obj(**{"$defs": {"p": {"$ref": "#/$defs/q"}, "q": {"anyOf": [{"$ref": "#/$defs/p"}]}}}),
        "schema.$defs.p: refers to itself",
    ),
    (doubling(30, lambda sub: sub), "schema.$defs.d17: its references expand to more than 20000 subschemas"),
    (doubling(30, lambda sub: obj(properties={"c": sub})), "schema.$defs.d"),
    (obj(properties={f"p{i}": {"pattern": f"^{i}$"} for i in range(101)}), "schema: has more than 100 patterns"),
    (prop({"description": "x" * MAX_SCHEMA_BYTES}), "schema: is 65"),
]


@pytest.mark.parametrize(("schema", "violation"), REFUSED, ids=lambda value: None if isinstance(value, str) else "")
def test_an_unsupported_schema_is_refused_naming_the_place_and_both_sides(schema: Any, violation: str) -> None:
    text = refused(json.dumps(schema).encode())
    assert text.startswith(violation), text
    assert len(text) < 5000


def test_several_violations_are_listed_together() -> None:
    text = refused(json.dumps(obj(properties={"a": {"enum": []}, "b": {"minLength": 2, "maxLength": 1}})).encode())
    assert text == (
        "schema.properties.a: enum is empty, so no value can match; "
        "schema.properties.b: minLength 2 is greater than maxLength 1"
    )


@pytest.mark.parametrize("raw", [b"", b"{", b"nan", b"\xff", b'{"a": 1e999}', b'{"a": "\\ud800"}', b"[" * 60_000])
def test_what_is_not_json_is_refused_too(raw: bytes) -> None:
    assert refused(raw) == "schema: is not JSON, or nested too deeply"


def test_deep_schemas_are_refused_and_fairly_deep_ones_work() -> None:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "integer"}
        for _ in range(levels):
            schema = prop(schema)
        return schema

    assert compiled(nested(45)).errors({"a": {"a": 1}}) != []
    assert refused(json.dumps(nested(60)).encode()).startswith("schema: is nested deeper than 100 levels")


def test_the_same_schema_is_compiled_once_and_its_value_is_nobodys_to_change() -> None:
    raw = json.dumps(prop({"type": "string"})).encode()
    first = compile_schema(raw)
    assert compile_schema(bytes(bytearray(raw))) is first
    first.value["properties"].clear()
    assert first.value == prop({"type": "string"})
    assert first.errors({"a": 1}) == ['$.a: 1 is not of type "string"']


REVIEW = obj(
    properties={
        "title": {"type": "string", "minLength": 1},
        "n": {"type": "integer"},
        "items": {"type": "array", "items": obj(properties={"n": {"type": "integer"}}, required=["n"])},
        "odd name": {"enum": ["x"]},
        "who": {"anyOf": [{"type": "null"}, obj(properties={"id": {"type": "integer"}}, required=["id"])]},
    },
    required=["title"],
    additionalProperties=False,
)


@pytest.mark.parametrize(
    ("instance", "errors"),
    [
        ({"title": "t"}, []),
        ({"title": "t", "n": 1.0, "items": [{"n": -3}], "odd name": "x", "who": None}, []),
        ({"title": "t", "items": ()}, []),
        ({}, ['$: "title" is a required property']),
        ([], ['$: [] is not of type "object"']),
        (None, ['$: null is not of type "object"']),
        ({"title": ""}, ['$.title: "" is shorter than 1 character']),
        ({"title": "t", "n": 1.5}, ['$.n: 1.5 is not of type "integer"']),
        ({"title": "t", "n": True}, ['$.n: true is not of type "integer"']),
        ({"title": "t", "items": [{"n": 1}, {}]}, ['$.items[1]: "n" is a required property']),
        ({"title": "t", "odd name": "y"}, ['$["odd name"]: "y" is not one of "x"']),
        ({"title": "t", "z": 1}, ["$: Additional properties are not allowed ('z' was unexpected)"]),
        (
            {"title": "t", "who": {"id": "7"}},
            [
                '$.who: {"id":"7"} is not valid under any of the schemas listed in the \'anyOf\' keyword '
                '(closest: $.who.id: "7" is not of type "integer")'
            ],
        ),
    ],
)
def test_errors_say_where_and_what(instance: object, errors: list[str]) -> None:
    found = compiled(REVIEW).errors(instance)
    if any("closest" in error for error in errors):
        # Both branches have one error; which of them is called closest is not ours to promise.
        assert found[0].startswith(errors[0].partition(" (closest")[0])
        assert "(closest: $.who" in found[0]
    else:
        assert found == errors


@pytest.mark.parametrize(
    ("wrong", "last"),
    [(10, None), (11, "… and 1 more errors"), (900, "… and 890 more errors"), (5000, "… and over 990 ")],
)
def test_at_most_ten_errors_are_listed_and_the_rest_counted(wrong: int, last: str | None) -> None:
    found = compiled(prop({"type": "array", "items": {"type": "integer"}})).errors({"a": ["x"] * wrong})
    assert found[:10] == [f'$.a[{index}]: "x" is not of type "integer"' for index in range(10)]
    assert len(found) == (10 if last is None else 11)
    assert last is None or found[10].startswith(last)


def test_a_long_value_is_cut_in_the_middle_so_that_the_reason_stays() -> None:
    (error,) = compiled(prop({"type": "integer"})).errors({"a": "long text " * 1000})
    assert len(error) < 400
    assert error.startswith('$.a: "long text ')
    assert error.endswith('is not of type "integer"')


def deep(levels: int, key: str) -> object:
    value: object = 1
    for _ in range(levels):
        value = {key: value}
    return value


def cyclic() -> object:
    value: list[object] = []
    value.append(value)
    return value


NOT_JSON: dict[str, Callable[[], object]] = {
    "a set": lambda: {1, 2},
    "bytes": lambda: b"x",
    "an object": object,
    "a key that is no string": lambda: {1: 2},
    "a lone surrogate": lambda: "\ud800",
    "a cycle": cyclic,
    "300 levels": lambda: deep(300, "a"),
    "100,000 levels": lambda: deep(100_000, "a"),
}


@pytest.mark.parametrize("make", NOT_JSON.values(), ids=NOT_JSON)
@pytest.mark.parametrize("keyword", [{}, {"uniqueItems": True}, {"const": {"a": [1]}}, {"type": "integer"}])
def test_an_answer_that_is_no_plain_json_never_raises(make: Callable[[], object], keyword: dict[str, Any]) -> None:
    schema = compiled(obj(properties={"a": {"type": ["object", "integer"]}, "b": keyword}))
    for instance in (make(), {"a": make()}, {"b": make()}, {"b": [make(), make()]}):
        assert all(len(error) < 700 for error in schema.errors(instance))


def test_levels_beyond_what_the_validator_survives_are_an_error() -> None:
    assert compiled(obj()).errors(deep(100_000, "a")) == ["$: is nested deeper than 250 levels"]
    recursive = compiled(obj(properties={"a": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}))
    assert recursive.errors(deep(250, "a")) == []


def test_a_regular_expression_that_would_backtrack_for_days_answers() -> None:
    schema = compiled(prop({"type": "string", "pattern": "^(a+)+$"}))
    assert schema.errors({"a": "a" * 50_000}) == []
    assert len(schema.errors({"a": "a" * 50_000 + "!"})) == 1


TWICE = obj(properties={"c": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}})
TREE = obj(properties={"v": {"type": "integer"}, "k": {"type": "array", "items": {"$ref": "#"}}}, required=["v"])
EXPRESSION = obj(
    **{
        "$defs": {
            "e": {
                "anyOf": [
                    {"type": "number"},
                    obj(properties={"op": {"const": "+"}, "l": {"$ref": "#/$defs/e"}}, required=["op", "l"]),
                    obj(properties={"op": {"const": "-"}, "l": {"$ref": "#/$defs/e"}}, required=["op", "l"]),
                ]
            }
        },
        "properties": {"e": {"$ref": "#/$defs/e"}},
    }
)


def test_a_recursive_schema_that_doubles_at_every_level_is_not_followed_to_the_end() -> None:
    schema = compiled(TWICE)
    assert schema.errors({"c": {}}) != []  # both branches match, and that is one too many
    assert schema.errors(deep(11, "c")) == ["$: does not match the schema, and is too large to say where"]
    assert "references multiply" in schema.errors(deep(200, "c"))[0]


def test_ordinary_recursive_schemas_are_checked_to_any_size() -> None:
    def tree(levels: int, width: int) -> dict[str, Any]:
        return {"v": 1, "k": [tree(levels - 1, width) for _ in range(width)] if levels else []}

    answer = tree(4, 10)
    assert compiled(TREE).errors(answer) == []
    answer["k"][3]["k"][4]["v"] = "x"
    assert compiled(TREE).errors(answer) == ['$.k[3].k[4].v: "x" is not of type "integer"']
    expression: object = 1
    for _ in range(8):
        expression = {"op": "-", "l": expression}
    assert compiled(EXPRESSION).errors({"e": expression}) == []


def test_collecting_errors_of_a_large_answer_does_not_copy_it_a_thousand_times() -> None:
    # In a process of its own, whose memory is its own: a copy for each missing name would take 3 GB.
    code = r"""
import json, re
from orchestrator.schemas import compile_schema
schema = compile_schema(json.dumps({"type": "object", "required": [f"n{i}" for i in range(1000)]}).encode())
branches = [{"required": [f"n{i}"]} for i in range(1000)]
alternatives = compile_schema(json.dumps({"type": "object", "anyOf": branches}).encode())
answer = {"a": ["x" * 100] * 20_000}
print(schema.errors(answer)[0].partition(":")[0], alternatives.errors(answer), len(schema.errors({})))
# not ru_maxrss: that keeps the peak of the process that started this one
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())
assert int(peak[1]) < 300_000
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "$ ['$: does not match the schema, and is too large to say where'] 11\n"


KEYWORDS = st.sampled_from(
    [
        "type", "properties", "items", "enum", "const", "required", "minimum", "maximum", "minLength", "maxLength",
        "minItems", "maxItems", "pattern", "additionalProperties", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs",
        "if", "then", "prefixItems", "contains", "uniqueItems", "multipleOf", "propertyNames", "$schema", "$id",
    ]
)  # fmt: skip
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["object", "array", "string", "integer", "#", "#/$defs/a", "^a", "(", "a", "", "\u2028"])
)
JSON = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.just("a"), inner, max_size=4)
)


@settings(deadline=None, max_examples=300)
@given(JSON, JSON)
def test_any_json_as_schema_compiles_or_is_refused_and_any_json_is_answered(schema: object, instance: object) -> None:
    for candidate in (schema, obj(properties={"a": schema}, **{"$defs": {"a": schema}})):
        raw = json.dumps(candidate).encode()
        try:
            found = compile_schema(raw)
        except WorkflowError:
            assert refused(raw)
        else:
            assert all(error.startswith(("$", "…")) for error in found.errors({"a": instance}))
            assert found.errors(instance) or isinstance(instance, dict)
