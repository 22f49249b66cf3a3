"""Stand-in answers: deterministic, valid, and bounded whatever the schema asks for."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.pattern_samples import CannotSample, sample_match
from orchestrator.schema_patterns import pattern_matches
from orchestrator.schemas import compile_schema, sample_instance
from protocol.errors import WorkflowError

SEEDS = range(12)


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def prop(schema: Any) -> dict[str, Any]:
    return obj(properties={"a": schema}, required=["a"])


def variant(kind: str) -> dict[str, Any]:
    return obj(properties={"kind": {"const": kind}, kind: {"type": "string"}}, required=["kind", kind])


NODE = obj(
    properties={"v": {"type": "integer"}, "k": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}},
    required=["v"],
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing asked": obj(),
    "no type": prop({}),
    "type list": prop({"type": ["null", "string"]}),
    "only null": prop({"type": "null"}),
    "enum": prop({"enum": ["a", 1, None]}),
    "enum beside type": prop({"type": "string", "enum": ["a", 1, None]}),
    "const": prop({"const": {"x": [1]}}),
    "boolean": prop({"type": "boolean"}),
    "integer range": prop({"type": "integer", "minimum": -3, "maximum": -2}),
    "whole number between fractions": prop({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1.5}),
    "open interval": prop({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001}),
    "only above": prop({"type": "number", "exclusiveMinimum": 1e6}),
    "only below": prop({"type": "number", "maximum": -5.5}),
    "only below, whole": prop({"type": "integer", "maximum": -5}),
    "hundredths": prop({"type": "number", "multipleOf": 0.01, "minimum": 0.5, "maximum": 0.52}),
    "sevens": prop({"type": "integer", "multipleOf": 7, "minimum": 100}),
    "whole halves": prop({"type": "integer", "multipleOf": 1.5, "minimum": 1}),
    "beyond exact doubles": prop({"type": "integer", "minimum": 2**60}),
    "short text": prop({"type": "string", "minLength": 1, "maxLength": 2}),
    "empty text": prop({"type": "string", "maxLength": 0}),
    "long text": prop({"type": "string", "minLength": 1000, "maxLength": 1000}),
    "code pattern": prop({"type": "string", "pattern": "^[A-Z]{2,4}-\\d{3}$"}),
    "mail pattern": prop({"type": "string", "pattern": "^[^\\s@]+@[^\\s@]+\\.[a-z]{2,}$", "minLength": 30}),
    "words anywhere": prop({"type": "string", "pattern": "foo|bar", "minLength": 10}),
    "anchored at the end": prop({"type": "string", "pattern": "x$", "minLength": 5}),
    "hex colour": prop({"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"}),
    "semantic version": prop({"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+(?:-[\\w.-]+)?$"}),
    "two patterns": prop({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}),
    "array bounds": prop({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 4}),
    "empty array": prop({"type": "array", "maxItems": 0}),
    "distinct": prop({"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 4}),
    "distinct booleans": prop({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2}),
    "distinct objects": prop({"type": "array", "items": prop({"type": "integer"}), "uniqueItems": True, "minItems": 3}),
    "tuple": prop({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}),
    "contains": prop({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 100}, "minItems": 3}),
    "contains twice": prop({"type": "array", "contains": {"const": 5}, "minContains": 2, "maxContains": 2}),
    "map": prop(obj(additionalProperties={"type": "integer"}, minProperties=3)),
    "map of patterns": prop(
        obj(patternProperties={"^x\\d+$": {"type": "integer"}}, additionalProperties=False, minProperties=2)
    ),
    "map of named keys": prop(obj(propertyNames={"pattern": "^[a-z]{3}$"}, minProperties=2)),
    "property and pattern": obj(
        properties={"ab": {"minimum": 3}}, patternProperties={"^a": {"type": "integer", "maximum": 4}}, required=["ab"]
    ),
    "few of many": obj(properties={f"p{i}": {"type": "integer"} for i in range(20)}, maxProperties=3, required=["p7"]),
    "many of many": obj(properties={f"p{i}": {"type": "integer"} for i in range(9)}, minProperties=9),
    "closed and unevaluated": obj(properties={"x": {"type": "integer"}}, unevaluatedProperties=False, minProperties=1),
    "dependent names": obj(dependentRequired={"a": ["b"], "b": ["c"]}, properties={"a": {}}, required=["a"]),
    "dependent schemas": obj(dependentSchemas={"a": prop({"type": "integer"})}, required=["a"]),
    "any of": prop({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
    "tagged one of": prop({"oneOf": [variant("x"), variant("y")]}),
    "overlapping one of": prop({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}),
    "any of within bounds": prop({"type": "integer", "minimum": 5, "anyOf": [{"maximum": 4}, {"maximum": 6}]}),
    "all of": prop({"allOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 4}]}),
    "all of objects": prop({"allOf": [prop({"type": "integer"}), obj(properties={"b": {}}, required=["b"])]}),
    "all of the same property": obj(
        allOf=[prop({"minimum": 3, "type": "integer"}), prop({"maximum": 3})], properties={"a": {"multipleOf": 3}}
    ),
    "not a type": prop({"not": {"type": "string"}}),
    "not large": prop({"type": "integer", "not": {"minimum": 3}}),
    "if then else": prop(
        obj(
            properties={"t": {"enum": [1, 2]}},
            required=["t"],
            **{"if": {"properties": {"t": {"const": 1}}}, "then": {"required": ["u"]}, "else": {"required": ["w"]}},
        )
    ),
    "reference": obj(
        **{"$defs": {"q": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/q"}}, "required": ["a"]}
    ),
    "reference with siblings": obj(
        **{"$defs": {"q": {"minimum": 3}}, "properties": {"a": {"$ref": "#/$defs/q", "maximum": 3}}, "required": ["a"]}
    ),
    "tree": obj(**{"$defs": {"n": NODE}, "$ref": "#/$defs/n"}),
    "list that may end": obj(properties={"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, required=["next"]),
    "list that ends in its second branch": obj(
        properties={
            "next": {
                "oneOf": [obj(properties={"next": {"$ref": "#/properties/next"}}, required=["next"]), {"type": "null"}]
            }
        },
        required=["next"],
    ),
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_stand_in_validates_for_every_seed_and_is_the_same_each_time(schema: dict[str, Any]) -> None:
    before = json.dumps(schema)
    independent = jsonschema_rs.Draft202012Validator(schema)
    for seed in SEEDS:
        instance = sample_instance(schema, seed)
        assert independent.is_valid(instance), instance
        assert sample_instance(schema, seed) == instance
        assert json.loads(json.dumps(instance)) == instance
    assert json.dumps(schema) == before


def test_seeds_give_different_answers_and_processes_the_same() -> None:
    schema = prop({"type": "array", "items": {"type": "string"}, "minItems": 3})
    assert len({json.dumps(sample_instance(schema, seed)) for seed in SEEDS}) > 3
    code = f"import json, orchestrator.schemas as s; print(json.dumps(s.sample_instance({schema!r}, 5)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=True)
    assert json.loads(done.stdout) == sample_instance(schema, 5)


def test_strings_carry_the_name_of_their_property() -> None:
    assert "summary" in json.dumps(
        sample_instance(obj(properties={"summary": {"type": "string"}}, required=["summary"]), 1)
    )


FORMATS = ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid"]


@pytest.mark.parametrize("name", [*FORMATS, "json-pointer", "regex"])
def test_common_formats_are_filled_with_a_value_of_the_format(name: str) -> None:
    schema = prop({"type": "string", "format": name})
    strict = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for seed in range(300):
        instance = sample_instance(schema, seed)
        assert strict.is_valid(instance), instance


@pytest.mark.parametrize(
    "schema",
    [
        obj(properties={"self": {"$ref": "#"}}, required=["self"]),
        prop({"type": "string", "minLength": 10**9}),
        prop({"type": "array", "minItems": 10**9}),
        prop(obj(minProperties=10**9)),
        prop({"type": "array", "minItems": 4000, "items": {"type": "array", "minItems": 4000}}),
        prop({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3}),
        prop({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        prop({"allOf": [{"enum": [1]}, {"enum": [2]}]}),
        prop({"type": "integer", "not": {}}),
        prop({"type": "string", "pattern": "^a$", "minLength": 2}),
        obj(
            **{
                "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/m"}] * 3}, "m": prop({"$ref": "#/$defs/n"})},
                "$ref": "#/$defs/n",
            }
        ),
    ],
)
def test_what_cannot_be_built_is_a_bounded_value_error_with_the_reason(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^no stand-in answer found for this schema: .") as caught:
        sample_instance(schema, 1)
    assert len(str(caught.value)) < 1000


def test_an_unsupported_schema_is_refused_like_anywhere_else() -> None:
    with pytest.raises(WorkflowError, match=r"schema.type must be"):
        sample_instance({"type": "string"}, 1)


PATTERNS = [
    "", "abc", "^abc$", "^a.c$", "^\\d{4}-\\d{2}-\\d{2}$", "^[a-z][a-z0-9_-]{2,15}$", "^(foo|bar|)$", "^(?:a|b)+?$",
    "^(?<year>\\d{4})$", "^[^aeiou\\s]+$", "^\\S+\\s\\S+$", "^\\D\\W\\w$", "^[\\w.+-]+@[\\w-]+\\.[\\w.]+$",
    "^\\/\\w+\\.$", "^\\x41\\u00e9\\u{1F600}$", "^\\p{Lu}\\p{L}+\\p{Nd}$", "^[\\-\\]\\\\]$", "^[+*?.]$",
    "^a{0}b{2}c{1,}d{0,2}$", "^\\t\\n$", "^(?:(?:25[0-5]|2[0-4]\\d|1?\\d?\\d)(?:\\.|$)){4}", "\\bword\\b", "^[а-яё]+$",
    "^[\\u4e00-\\u9fff]{2}$", "^(a|b(c|d)*)$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_sample_of_a_pattern_matches_it(pattern: str) -> None:
    for seed in range(30):
        assert pattern_matches(pattern, sample_match(pattern, random.Random(seed)))


@pytest.mark.parametrize(
    ("pattern", "least", "most"), [("^a+$", 50, 50), ("^[ab]*$", 7, 9), ("a", 20, 20), ("^a", 9, 9)]
)
def test_a_sample_of_a_pattern_keeps_the_length(pattern: str, least: int, most: int) -> None:
    text = sample_match(pattern, random.Random(1), least, most)
    assert least <= len(text) <= most
    assert pattern_matches(pattern, text)


@pytest.mark.parametrize(
    "pattern", ["(?i)a", "[a-z&&[b]]", "\\p{Greek}", "(", "[", "a{2", "\\", "[z-a]", "(?<n", "\\u{110000}", "(" * 200]
)
def test_a_pattern_that_is_not_covered_says_so_instead_of_guessing(pattern: str) -> None:
    with pytest.raises(CannotSample) as caught:
        sample_match(pattern, random.Random(1))
    assert repr(pattern[:20])[:-1] in str(caught.value)


LITERALS = st.text("abcXYZ019 _-@", min_size=1, max_size=5).map(re.escape)
CLASSES = st.sampled_from(["\\d", "\\w", "[a-f]", "[^x]", ".", "[A-Z0-9]", "\\s"])
REGEXES = st.recursive(
    LITERALS | CLASSES,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        )
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | st.lists(inner, min_size=2, max_size=3).map("".join)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(REGEXES, st.integers())
def test_any_pattern_of_the_covered_kind_is_sampled(pattern: str, seed: int) -> None:
    text = sample_match(f"^{pattern}$", random.Random(seed))
    assert pattern_matches(f"^{pattern}$", text)


@st.composite
def schemas(draw: st.DrawFn, levels: int = 3) -> tuple[dict[str, Any], object]:
    """A satisfiable schema, and an instance it was made for."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum"] + ["array", "object", "union"] * (levels > 0)
    match draw(st.sampled_from(kinds)):
        case "string":
            text = draw(st.text(max_size=8))
            return {"type": "string", "minLength": draw(st.integers(0, len(text))), "maxLength": len(text) + 2}, text
        case "integer":
            low, span = draw(st.integers(-99, 99)), draw(st.integers(0, 5))
            return {"type": "integer", "minimum": low, "maximum": low + span}, low + span
        case "number":
            low = draw(st.floats(-1e6, 1e6))
            return {"type": ["number", "null"], "minimum": low, "exclusiveMaximum": low + 1}, low
        case "boolean":
            return {"type": "boolean"}, draw(st.booleans())
        case "null":
            return {"type": "null"}, None
        case "enum":
            values = draw(st.lists(st.integers() | st.text(max_size=3) | st.none(), min_size=1, max_size=3))
            return {"enum": values}, values[0]
        case "array":
            schema, value = draw(schemas(levels - 1))
            count = draw(st.integers(0, 3))
            return {"type": "array", "items": schema, "minItems": count, "maxItems": count + 1}, [value] * count
        case "union":
            (one, value), (other, _) = draw(schemas(levels - 1)), draw(schemas(levels - 1))
            return {draw(st.sampled_from(["anyOf", "allOf"])): [one], "anyOf": [one, other]}, value
        case _:
            return draw(objects(levels - 1))


@st.composite
def objects(draw: st.DrawFn, levels: int = 2) -> tuple[dict[str, Any], object]:
    made = draw(st.dictionaries(st.text(min_size=1, max_size=4), schemas(levels), max_size=4))
    required = [name for name in made if draw(st.booleans())]
    schema = obj(
        properties={name: sub for name, (sub, _) in made.items()},
        required=required,
        additionalProperties=draw(st.booleans()),
    )
    return schema, {name: value for name, (_, value) in made.items() if name in required or draw(st.booleans())}


@settings(deadline=None, max_examples=200)
@given(objects(), st.integers())
def test_a_satisfiable_schema_accepts_its_instance_and_gets_a_stand_in(
    made: tuple[dict[str, Any], object], seed: int
) -> None:
    schema, instance = made
    compiled = compile_schema(json.dumps(schema).encode())
    assert compiled.errors(instance) == []
    assert compiled.errors(sample_instance(schema, seed)) == []
