"""Values that cross: lossless plain JSON or a refusal with the exact path, in both directions."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import AgentRequest, AgentResult, EngineConfig, ErrorCode, WorkflowError
from tests.contract.conftest import RunScript
from tests.support import run_script

REFUSED = {
    "a function": ("return () => 1", "", "functions are not plain JSON data"),
    "a class": ("return { a: class A {} }", ".a", "functions are not plain JSON data"),
    "a hook": ("return { hooks: [agent] }", ".hooks[0]", "functions are not plain JSON data"),
    "a symbol": ("return { a: [Symbol('s')] }", ".a[0]", "symbols are not plain JSON data"),
    "a bigint": ("return { items: [{ n: 1n }] }", ".items[0].n", "bigints are not JSON data"),
    "NaN": ("return { n: NaN }", ".n", "non-finite numbers are not JSON data"),
    "Infinity": ("return [[-Infinity]]", "[0][0]", "non-finite numbers are not JSON data"),
    "a cycle through an object": ("const o = {}; o.self = { o }; return o", ".self.o", "circular references"),
    "a cycle through an array": ("const a = []; a.push([a]); return { a }", ".a[0][0]", "circular references"),
    "a hole": ("return { a: [1, , 3] }", ".a[1]", "sparse arrays are not JSON data"),
    "a hole at the end": ("const a = [1]; a.length = 3; return a", "[1]", "sparse arrays are not JSON data"),
    "an array of nothing but holes": ("return [, ,]", "[0]", "sparse arrays are not JSON data"),
    "an array with a name": ("const a = [1]; a.total = 3; return a", ".total", "arrays with non-index properties"),
    "an array with a negative index": (
        "const a = [1]; a[-1] = 3; return a",
        '["-1"]',
        "arrays with non-index properties",
    ),
    "a match": ("return 'abc'.match(/b/)", ".index", "arrays with non-index properties"),
    "a symbol key": ("return { a: { [Symbol('s')]: 1 } }", ".a", "symbol-keyed properties are not plain JSON data"),
    "a date": ("return { items: [0, 1, 2, { when: new Date(0) }] }", ".items[3].when", "only plain objects and arrays"),
    "a map": ("return { m: new Map([[1, 2]]) }", ".m", "only plain objects and arrays are JSON data"),
    "a set": ("return [new Set()]", "[0]", "only plain objects and arrays are JSON data"),
    "a regular expression": ("return { r: /x/ }", ".r", "only plain objects and arrays are JSON data"),
    "an error": ("return { e: new Error('x') }", ".e", "only plain objects and arrays are JSON data"),
    "an instance": ("class A { x = 1 } return { a: new A() }", ".a", "only plain objects and arrays are JSON data"),
    "an array subclass": ("class A extends Array {} return A.from([1])", "", "only plain objects and arrays"),
    "a child of an object": ("return { a: Object.create({ x: 1 }) }", ".a", "only plain objects and arrays"),
    "a boxed number": ("return [new Number(1)]", "[0]", "only plain objects and arrays are JSON data"),
    "a typed array": ("return { b: new Uint8Array(2) }", ".b", "only plain objects and arrays are JSON data"),
    "a promise": ("return { p: agent('x') }", ".p", "this is a promise: await it"),
    "promises in a list": ("return ['a', 'b'].map((x) => agent(x))", "[0]", "this is a promise: await it"),
    "a throwing getter": (
        "return { a: { get x() { throw new Error('no') } } }",
        ".a.x",
        "reading the value threw: Error: no",
    ),
    "a getter that throws a symbol": (
        "return { get x() { throw Symbol('s') } }",
        ".x",
        "reading the value threw: a thrown",
    ),
    "a proxy with a throwing trap": (
        "return { p: new Proxy({}, { ownKeys() { throw new Error('t') } }) }",
        ".p",
        "reading the value threw: Error: t",
    ),
    "a proxy that lies about its length": (
        "return { p: new Proxy([1, 2], { get(t, k) { return k === 'length' ? 1e9 : t[k] } }) }",
        ".p[2]",
        "sparse arrays",
    ),
    "a proxy whose length throws": (
        "return { p: new Proxy([1], { get(t, k) { if (k === 'length') throw 5; return t[k] } }) }",
        ".p",
        "reading the value threw: 5",
    ),
    "a revoked proxy": (
        "const r = Proxy.revocable({}, {}); r.revoke(); return [r.proxy]",
        "[0]",
        "reading the value threw",
    ),
    "a key with a space": ("return { 'a key': [() => 1] }", '["a key"][0]', "functions are not plain JSON data"),
    "an empty key": ("return { '': { a: 1n } }", '[""].a', "bigints are not JSON data"),
    "a key with a quote": ("return { 'a\"b': 1n }", '["a\\"b"]', "bigints are not JSON data"),
    "a key with half a character": ("return { '\\ud83d': 1n }", '["\ufffd"]', "bigints are not JSON data"),
    "a then below the root": ("return { a: { then(r) { r(1) } } }", ".a.then", "functions are not plain JSON data"),
    "a toJSON of the script's own": ("return { a: { toJSON() { return 1 } } }", ".a.toJSON", "functions are not plain"),
    "arguments": ("return (function () { return { a: arguments } })(1)", ".a", "symbol-keyed properties"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_result_is_refused_with_its_path(name: str, failure: Callable[..., Any]) -> None:
    text, path, why = REFUSED[name]
    code, error = failure(text)
    assert code == ErrorCode.RESULT_UNSERIALIZABLE
    prefix = "WorkflowError: the workflow's return value is not plain JSON data — workflow result"
    assert error.startswith(f"{prefix}{path}: {why}"), error
    assert error.endswith("Return only JSON-serializable objects/arrays/scalars.")


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("a promise", "promises in a list")])
def test_a_schema_is_refused_with_its_path(name: str, failure: Callable[..., Any]) -> None:
    text, path, why = REFUSED[name]
    body = f"const make = () => {{ {text} }}; return await agent('x', {{ schema: {{ a: [make()] }} }})"
    code, error = failure(body)
    assert code == ErrorCode.INVALID_ARGUMENT
    assert f"agent() options must be plain JSON data — agent() options.schema.a[0]{path}: {why}" in error


KEPT: dict[str, tuple[str, Any]] = {
    "nothing": ("", None),
    "undefined at the root": ("return undefined", None),
    "null": ("return null", None),
    "scalars": ("return ['', 'a', 0, 1, -1, true, false, null]", ["", "a", 0, 1, -1, True, False, None]),
    "whole numbers": ("return [1, 1.0, 3e2, 2 ** 53, -(2 ** 53)]", [1, 1, 300, 2**53, -(2**53)]),
    "fractions": (
        "return [0.1, 1.5, 5e-324, 1.7976931348623157e308]",
        [0.1, 1.5, 5e-324, 1.7976931348623157e308],
    ),
    "numbers beyond 2**53": ("return [1e21, 2 ** 70]", [1e21, 2.0**70]),
    "minus zero, as JSON.stringify writes it": ("return -0", 0),
    "the same object twice": (
        "const s = { x: 1 }; return { a: s, b: [s, s] }",
        {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]},
    ),
    "an object without prototype": ("const o = Object.create(null); o.x = { y: 1 }; return o", {"x": {"y": 1}}),
    "frozen objects": ("return Object.freeze({ a: Object.freeze([1]) })", {"a": [1]}),
    "getters": ("return { a: 1, get b() { return 2 } }", {"a": 1, "b": 2}),
    "a transparent proxy": ("return new Proxy({ a: [1] }, {})", {"a": [1]}),
    "only enumerable properties": ("return Object.defineProperty({ a: 1 }, 'b', { value: 2 })", {"a": 1}),
    "a __proto__ key": ('return JSON.parse(\'{"__proto__": {"x": 1}, "y": 2}\')', {"__proto__": {"x": 1}, "y": 2}),
    "a computed __proto__ key": ("return { ['__proto__']: [1] }", {"__proto__": [1]}),
    "keys in their order": ("return Object.keys({ b: 1, a: 2, 'a b': 3 })", ["b", "a", "a b"]),
    "any text": ("return '😀é\\u2028\\u0000\\ufeff\"\\\\'", '😀é\u2028\u0000\ufeff"\\'),
    "a thenable": ("return { then(done) { done({ a: 7 }) } }", {"a": 7}),
    "a promise at the root": ("return agent('x')", "ok:x"),
    "a promise of a promise": ("return Promise.resolve((async () => agent('x'))())", "ok:x"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_result_keeps(name: str, value: Callable[..., Any]) -> None:
    text, expected = KEPT[name]
    # As JSON text, because Python takes 1, 1.0 and True for equal.
    assert json.dumps(value(text)) == json.dumps(expected)


ARGS: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**53, "", "😀\u2028\u0000", [], {}, [[{}]], {"a": {"b": [1, "x", None]}}),
    *({"__proto__": {"x": 1}, "y": 2}, {"": 1, "a b": [2]}, {"constructor": 1, "toString": 2}),
]


@pytest.mark.parametrize("arg", ARGS)
def test_args_come_back_as_they_went(arg: Any, value: Callable[..., Any]) -> None:
    assert json.dumps(value("return args", args=arg)) == json.dumps(arg)


def test_a_proto_key_pollutes_nothing_in_the_script(value: Callable[..., Any]) -> None:
    text = "return [Object.keys(args), args.x, Object.getPrototypeOf(args) === Object.prototype, ({}).x]"
    assert value(text, args={"__proto__": {"x": 1}}) == [["__proto__"], None, True, None]


def test_a_proto_key_in_an_agents_answer_is_data(value: Callable[..., Any]) -> None:
    async def agent(_: AgentRequest) -> AgentResult:
        return AgentResult(structured={"__proto__": {"x": 1}})

    text = "const r = await agent('q', { schema: { type: 'object' } }); return [r.x === undefined, Object.keys(r), r]"
    assert value(text, agent=agent) == [True, ["__proto__"], {"__proto__": {"x": 1}}]


def test_absent_args_are_undefined_and_none_is_null(value: Callable[..., Any]) -> None:
    assert value("return [typeof args, 'args' in globalThis]") == ["undefined", True]
    assert value("return [args === null]", args=None) == [True]


def test_a_script_cannot_change_the_hosts_args(value: Callable[..., Any]) -> None:
    args = {"a": 1, "list": [1, {"b": 2}]}
    assert (
        value("args.a = 2; args.list.push(3); args.list[1].b = 9; delete args.gone; return args.list.length", args=args)
        == 3
    )
    assert args == {"a": 1, "list": [1, {"b": 2}]}


def test_the_host_cannot_change_the_scripts_args_after_the_start(script: RunScript) -> None:
    args = {"list": [1]}

    async def agent(_: AgentRequest) -> str:
        args["list"].append(2)
        return "done"

    assert script("await agent('x'); return args", agent=agent, args=args).result.value == {"list": [1]}


class _Colour(enum.IntEnum):
    RED = 1


class _Text(str):
    pass


def test_plain_subclasses_and_tuples_in_args_are_plain(value: Callable[..., Any]) -> None:
    assert value("return args", args={"c": _Colour.RED, "t": _Text("x"), "u": (1, (2,))}) == {
        "c": 1,
        "t": "x",
        "u": [1, [2]],
    }


def _nested(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


_circular: list[Any] = []
_circular.append(_circular)

BAD_ARGS: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": [float("nan")]}, "args.a[0]: non-finite numbers are not JSON data"),
    "infinity": (float("inf"), "args: non-finite numbers are not JSON data"),
    "a set": ({"a b": {1}}, 'args["a b"]: a set is not JSON data'),
    "bytes": ([b"x"], "args[0]: a bytes is not JSON data"),
    "a date": ({"when": datetime.date(2020, 1, 1)}, "args.when: a date is not JSON data"),
    "a decimal": (decimal.Decimal(1), "args: a Decimal is not JSON data"),
    "a function": ({"f": print}, "args.f: a builtin_function_or_method is not JSON data"),
    "an object": (object(), "args: a object is not JSON data"),
    "a number as a key": ({"a": {1: 2}}, "args.a: the key 1 is not a string"),
    "half a character in a path": ({"\ud83d": {1}}, 'args["\ufffd"]: a set is not JSON data'),
    "a circle": (_circular, "args: nested too deeply, or circular"),
    "5,000 levels": (_nested(5000), "args: nested too deeply, or circular"),
}


@pytest.mark.parametrize("name", BAD_ARGS)
def test_args_that_are_not_json_are_refused_with_their_path(name: str, script: RunScript) -> None:
    args, why = BAD_ARGS[name]
    with pytest.raises(WorkflowError) as caught:
        script("return 1", args=args)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert str(caught.value) == f"workflow args must be plain JSON data — {why}"


BAD_ANSWERS: dict[str, tuple[AgentResult, str]] = {
    "NaN": (
        AgentResult(structured={"n": float("nan")}),
        "its answer is not JSON: answer.n: non-finite numbers",
    ),
    "a circle": (AgentResult(structured=_circular), "its answer is not JSON: answer: nested too deeply, or circular"),
    "a set": (AgentResult(structured={1}), "its answer is not JSON: answer: a set is not JSON data"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_agents_answer_that_is_not_json_breaks_the_agent(name: str, failure: Callable[..., Any]) -> None:
    result, why = BAD_ANSWERS[name]

    async def agent(_: AgentRequest) -> AgentResult:
        return result

    code, error = failure("return await agent('q', { schema: { type: 'object' } })", agent=agent)
    assert code == ErrorCode.AGENT_RESULT
    assert error.startswith(f"WorkflowError: child agent run failed: {why}")
    assert "(line 1, column 14)" in error


# --- undefined ---


def test_a_property_that_is_undefined_is_left_out_and_named_once(script: RunScript) -> None:
    result = script("return [1, 2, 3].map((id) => ({ id, status: undefined, deep: { status: undefined } }))").result
    assert result.value == [{"id": 1, "deep": {}}, {"id": 2, "deep": {}}, {"id": 3, "deep": {}}]
    assert result.warnings == (
        "workflow result[0].status: a property whose value is undefined was left out (and at 5 more places)",
    )


def test_undefined_in_a_list_becomes_null_and_is_named_once(script: RunScript) -> None:
    result = script("return { a: [undefined, 1, undefined] }").result
    assert result.value == {"a": [None, 1, None]}
    assert result.warnings == ("workflow result.a[0]: undefined became null (and at 1 more place)",)


def test_warnings_are_bounded(script: RunScript) -> None:
    result = script("return Object.fromEntries(Array.from({ length: 500 }, (_, i) => ['k' + i, undefined]))").result
    assert result.value == {}
    assert 1 < len(result.warnings) <= 64


def test_an_undefined_in_an_option_counts_as_absent(value: Callable[..., Any]) -> None:
    async def agent(request: AgentRequest) -> str:
        return str([request.label, request.phase, request.model, request.schema])

    text = (
        "return await agent('the prompt', { label: undefined, phase: undefined, model: undefined, schema: undefined })"
    )
    assert value(text, agent=agent) == "['the prompt', None, None, None]"


# --- depth and size ---


@pytest.mark.parametrize("wrap", ["[v]", "{ v }"])
def test_nesting_works_up_to_the_limit_and_beyond_it_is_one_clear_error(wrap: str, script: RunScript) -> None:
    text = "let v = 1; for (let i = 0; i < {n}; i++) v = {wrap}; return v"
    at = script(text.replace("{n}", "500").replace("{wrap}", wrap)).result
    assert at.stop_reason == "completed"
    for levels in ("501", "5000", "200000"):
        beyond = script(text.replace("{n}", levels).replace("{wrap}", wrap)).result
        assert (beyond.code, "workflow result: nested deeper than 500 levels" in str(beyond.error)) == (
            ErrorCode.RESULT_UNSERIALIZABLE, True,
        )  # fmt: skip


def test_the_deepest_setting_works_to_its_last_level() -> None:
    config = EngineConfig(max_depth=800, spare_workers=0)
    text = "let v = 1; for (let i = 0; i < 800; i++) v = [v]; return v"
    assert run_script(text, config=config).result.stop_reason == "completed"


def test_a_deep_schema_is_one_clear_error(failure: Callable[..., Any]) -> None:
    text = "let s = { type: 'object' }; for (let i = 0; i < 5000; i++) s = { type: 'object', properties: { s } }; "
    code, error = failure(text + "await agent('x', { schema: s })")
    assert code == ErrorCode.INVALID_ARGUMENT
    assert "agent() options.schema: nested deeper than 500 levels" in error


def test_two_hundred_thousand_elements_cross_both_ways(value: Callable[..., Any]) -> None:
    assert value("return args.map((n) => n + 1)", args=list(range(200_000))) == list(range(1, 200_001))


def test_ten_megabytes_cross_both_ways(value: Callable[..., Any]) -> None:
    rows = [{"id": n, "text": "x" * 100} for n in range(80_000)]
    back = value("return { rows: args, text: 'y'.repeat(1e6) }", args=rows)
    assert (len(back["rows"]), back["rows"][-1], len(back["text"])) == (80_000, rows[-1], 1_000_000)


def test_ten_megabytes_come_from_an_agent_and_go_to_one(value: Callable[..., Any]) -> None:
    async def agent(request: AgentRequest) -> str:
        return request.prompt + "!"

    assert value("const r = await agent('z'.repeat(1e7)); return [r.length, r.at(-1)]", agent=agent) == [
        10_000_001,
        "!",
    ]


def test_a_result_over_the_frame_limit_is_one_clear_error() -> None:
    config = EngineConfig(max_frame=64 * 1024, spare_workers=0)
    result = run_script("return 'x'.repeat(70000)", config=config).result
    assert result.code == ErrorCode.RESULT_UNSERIALIZABLE
    assert "workflow result is over the limit of 65536 bytes for one message" in str(result.error)


def test_a_prompt_over_the_frame_limit_is_one_clear_error() -> None:
    config = EngineConfig(max_frame=64 * 1024, spare_workers=0)
    result = run_script("return await agent('x'.repeat(70000))", config=config).result
    assert result.code == ErrorCode.INVALID_ARGUMENT
    assert "over the limit of 65536 bytes for one message" in str(result.error)


def test_args_over_the_frame_limit_are_refused_before_the_run() -> None:
    config = EngineConfig(max_frame=64 * 1024, spare_workers=0)
    with pytest.raises(WorkflowError, match=r"workflow args of 70002 bytes are over the limit of 65536 \(max_frame\)"):
        run_script("return 1", config=config, args="x" * 70_000)
