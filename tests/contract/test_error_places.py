"""Errors shown to the model: the author's own line and column, the source line, a caret, and nothing of the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import ErrorCode, WorkflowError
from tests.contract.conftest import RunScript

# name: script, first line of the error without its place, line, column, the source line as shown
THROWN: dict[str, tuple[str, str, int, int, str]] = {
    "the first line": ("null.foo", 'TypeError: can\'t access property "foo" of null', 1, 1, "null.foo"),
    "a later line": (
        "const a = 1\nconst b = null\nreturn b.foo",
        'TypeError: can\'t access property "foo", b is null',
        3,
        1,
        "return b.foo",
    ),
    "an indented line": ("\n\n    throw new Error('in')", "Error: in", 3, 11, "    throw new Error('in')"),
    "after an await": (
        "await agent('x')\n\nnull.foo",
        'TypeError: can\'t access property "foo" of null',
        3,
        1,
        "null.foo",
    ),
    "an async function": (
        "const f = async () => {\n  await null;\n  throw new Error('deep')\n}\nawait f()",
        "Error: deep",
        3,
        9,
        "  throw new Error('deep')",
    ),
    "a method": (
        "class A { b() { return null.x } }\n\nnew A().b()",
        'TypeError: can\'t access property "x" of null',
        1,
        17,
        "class A { b() { return null.x } }",
    ),
    "a callback of a built-in": (
        "[1].map((x) => {\n throw new RangeError('m') })",
        "RangeError: m",
        2,
        8,
        " throw new RangeError('m') })",
    ),
    "a callback of Promise.all": (
        "await Promise.all([agent('x'), (async () => {\n await null\n throw new TypeError('t') })()])",
        "TypeError: t",
        3,
        8,
        " throw new TypeError('t') })()])",
    ),
    "a promise's executor": (
        "await new Promise((_, no) =>\n  no(new Error('e')))",
        "Error: e",
        2,
        6,
        "  no(new Error('e')))",
    ),
    "a timer's callback that rejects": (
        "await new Promise((_, no) => setTimeout(() =>\n  no(new Error('late')), 1))",
        "Error: late",
        2,
        6,
        "  no(new Error('late')), 1))",
    ),
    "where it was made, not where it was thrown": (
        "const e = new Error('made')\nawait null\nthrow e",
        "Error: made",
        1,
        11,
        "const e = new Error('made')",
    ),
    "an error of eval'd code, at the eval": (
        "\neval('\\n\\nnull.x')",
        'TypeError: can\'t access property "x" of null',
        2,
        1,
        "eval('\\n\\nnull.x')",
    ),
    "an error of a made function, at its call": (
        "\n  new Function('throw new Error(2)')()",
        "Error: 2",
        2,
        37,
        "  new Function('throw new Error(2)')()",
    ),
    "an unknown name": ("return agnet('x')", "ReferenceError: agnet is not defined", 1, 1, "return agnet('x')"),
    "JSON that does not parse": (
        "JSON.parse('{bad')",
        "SyntaxError: JSON.parse: expected property name or '}' at line 1 column 2 of the JSON data",
        1,
        6,
        "JSON.parse('{bad')",
    ),
    "endless recursion": (
        "function r() { r() }\nr()",
        "InternalError: too much recursion",
        1,
        16,
        "function r() { r() }",
    ),
    "a class of the script's own": (
        "class Bad extends Error { name = 'Bad' }\nthrow new Bad('x')",
        "Bad: x",
        2,
        7,
        "throw new Bad('x')",
    ),
    "a class with constructors on the way": (
        "class A extends Error { constructor(m) { super(m) } }\nclass B extends A {}\n"
        "const f = () => {\n throw new B('x') }\nf()",
        "Error: x",
        4,
        8,
        " throw new B('x') }",
    ),
    "CRLF line ends": (
        "\r\nconst a = 1\r\n\r\nnull.x\r\n",
        'TypeError: can\'t access property "x" of null',
        4,
        1,
        "null.x",
    ),
    "a byte order mark": ("\ufeffconst a = 1\nnull.x", 'TypeError: can\'t access property "x" of null', 2, 1, "null.x"),
    "tabs": ("\t\tnull.x", 'TypeError: can\'t access property "x" of null', 1, 3, "\t\tnull.x"),
    "characters of two units": (
        "const a = '😀'; null.x",
        'TypeError: can\'t access property "x" of null',
        1,
        17,
        "const a = '😀'; null.x",
    ),
    "a line separator in a string": (
        "const s = '\u2028'; null.x",
        'TypeError: can\'t access property "x" of null',
        2,
        4,
        "'; null.x",
    ),
    "a script that names another source": (
        "//# sourceURL=/etc/passwd\nnull.x",
        'TypeError: can\'t access property "x" of null',
        2,
        1,
        "null.x",
    ),
    "a hook's refusal": (
        "\n await agent('')",
        "WorkflowError: agent() requires a non-empty prompt string",
        2,
        8,
        " await agent('')",
    ),
    "a hook's refusal inside parallel": (
        "return await parallel([\n  async () => { await agent('x'); await agent('y', { bad: 1 }) },\n])",
        'WorkflowError: agent() option "bad" is not recognized '
        "(supported: label, phase, schema, provider, model, agentType, effort, isolation, stallMs)",
        2,
        41,
        "  async () => { await agent('x'); await agent('y', { bad: 1 }) },",
    ),
    "a hook's refusal inside pipeline": (
        "await pipeline([1], async () => {\n  await null\n  await agent(5)\n})",
        "WorkflowError: agent() requires a non-empty prompt string",
        3,
        9,
        "  await agent(5)",
    ),
    "a broken provider, at the call": (
        "const all = ['x', 'boom']\nawait parallel(all.map((p) =>\n   () => agent(p)))",
        "WorkflowError: child agent run failed: RuntimeError: the provider broke",
        3,
        15,
        "   () => agent(p)))",
    ),
    "an option the host refuses, at the call": (
        "\nawait agent('x', { effort: 'high' })",
        'WorkflowError: agent() option "effort" is not supported by the agent provider "default" '
        "(supported: label, phase, schema, provider, model)",
        2,
        7,
        "await agent('x', { effort: 'high' })",
    ),
    "a schema the host refuses, at the call": (
        "\nawait agent('x', { schema: { type: 'array' } })",
        "WorkflowError: agent() schema is outside the supported subset — unsupported JSON schema: "
        'schema.type must be "object" (structured output is object-rooted)',
        2,
        7,
        "await agent('x', { schema: { type: 'array' } })",
    ),
    "setTimeout without a function": (
        "\nsetTimeout('x', 1)",
        "TypeError: setTimeout() requires a function",
        2,
        11,
        "setTimeout('x', 1)",
    ),
}


def looks_inside(text: str) -> list[str]:
    """Traces of the host or the engine in a text for the model."""
    marks = (
        r"runtime\.js",
        r"Traceback",
        r"\.py\b",
        r"File \"",
        r"AsyncFunction",
        r"async\*",
        r"@",
        r"/home",
        r"/usr",
        r"/tmp",
        r"site-packages",
        r"0x[0-9a-f]{6}",
        r"workflow-script",
    )
    return [mark for mark in marks if re.search(mark, text)]


@pytest.mark.parametrize("name", THROWN)
def test_an_error_shows_its_place(name: str, failure: Callable[..., Any]) -> None:
    text, message, line, column, source = THROWN[name]
    _, error = failure(text)
    caret = "".join("\t" if char == "\t" else " " for char in source[: column - 1]) + "^"
    shown = error.split("\n")
    assert shown[0] == f"{message} (line {line}, column {column})"
    assert shown[1] == source
    if "😀" in source:  # columns count UTF-16 units, as editors and engines do
        caret += " "
        assert shown[2].rstrip() + " " == caret
    else:
        assert shown[2] == caret
    assert len(shown) == 3
    assert looks_inside(error.replace("/etc/passwd", "")) == []


def test_a_long_line_is_shown_around_the_place(failure: Callable[..., Any]) -> None:
    _, error = failure("x = 1; " + ";" * 5000 + "null.foo;" + "y" * 5000)
    first, source, caret = error.split("\n")
    assert first.endswith("(line 1, column 5008)")
    assert len(source) <= 160
    assert source[len(caret) - 1 :].startswith("null.foo")


def test_a_huge_message_is_cut_and_keeps_its_place(failure: Callable[..., Any]) -> None:
    _, error = failure("\nthrow new Error('a'.repeat(1e6))")
    assert len(error) < 64 * 1024
    assert "a… (line 2, column 7)\nthrow new Error" in error


# name: what is thrown, what the reader sees
STRANGE = {
    "null": ("throw null", "null"),
    "undefined": ("throw undefined", "undefined"),
    "text": ("throw 'x'", "x"),
    "empty text": ("throw ''", "a thrown empty string"),
    "a number": ("throw 42", "42"),
    "a bigint": ("throw 10n", "10"),
    "a symbol": ("throw Symbol('s')", "a thrown symbol"),
    "a function": ("throw () => 1", "a thrown function"),
    "an object with a message": ("throw { message: 'm', code: 'C' }", "m"),
    "an object without one": ("throw { a: [1] }", 'a thrown object: {"a":[1]}'),
    "a list": ("throw [1, 2]", "a thrown object: [1,2]"),
    "an object without prototype": ("throw Object.create(null)", "a thrown object: {}"),
    "a throwing toString": ("throw { toString() { throw 1 } }", "[an object that cannot be shown]"),
    "a throwing getter": ("throw { get message() { throw 1 } }", "[an object that cannot be shown]"),
    "a hostile proxy": (
        "throw new Proxy({}, { getOwnPropertyDescriptor() { throw 1 }, getPrototypeOf() { throw 1 } })",
        "[an object that cannot be shown]",
    ),
    "a rejected null": ("await Promise.reject(null)", "null"),
    "half a character": ("throw 'a\\ud83d'", "a\ufffd"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_whatever_is_thrown_settles_the_run_with_readable_text(name: str, failure: Callable[..., Any]) -> None:
    text, seen = STRANGE[name]
    assert failure(text) == (ErrorCode.SCRIPT_ERROR, seen)


def test_an_error_with_a_hostile_to_string_still_shows_its_message_and_place(failure: Callable[..., Any]) -> None:
    _, error = failure("class E extends Error { toString() { throw 1 } }\nthrow new E('the message')")
    assert error.startswith("Error: the message (line 2, column 7)\n")


def test_a_script_that_reads_a_stack_sees_only_its_own_frames_and_lines(value: Callable[..., Any]) -> None:
    text = "function inner() { throw new Error('x') }\nasync function outer() {\n  await agent('q')\n  inner()\n}\n"
    stack = value(text + "try { await outer() } catch (e) { return e.stack }")
    assert stack.split("\n")[:2] == ["inner@script:1:26", "outer@script:4:3"]
    assert looks_inside(stack.replace("@script", "").replace("async*", "")) == []


def test_a_fatal_errors_stack_begins_at_the_call(value: Callable[..., Any]) -> None:
    text = "const out = []\nfor (const p of ['', 'boom']) {\n"
    text += "  try { await agent(p) } catch (e) { out.push(e.stack.split('\\n')[0]) }\n}"
    assert value(text + "\nreturn out") == ["anonymous@script:3:15", "anonymous@script:3:15"]


# --- scripts that do not parse ---

# name: script, message, line, column, the source line as shown
UNPARSED: dict[str, tuple[str, str, int, int, str]] = {
    "a wrong token": (
        "const a = 1\nconst b = 2\nlet c = ;\nreturn 1",
        "expected expression, got ';'",
        3,
        9,
        "let c = ;",
    ),
    "an unclosed brace": ("if (true) {\n  log('x')", "missing } after function body", 2, 11, "  log('x')"),
    "an unclosed call": ("await agent('x'\nreturn 1", "missing ) after argument list", 2, 1, "return 1"),
    "an unescaped backtick in a prompt": (
        "\nconst p = `use `code` here`",
        "unexpected token: identifier",
        2,
        17,
        "const p = `use `code` here`",
    ),
    "cut in the middle of a string": (
        "log('a')\nreturn 'the answ",
        "'' string literal contains an unescaped line break",
        2,
        17,
        "return 'the answ",
    ),
    "cut in the middle of a template": (
        "log('a')\nreturn `the answ",
        "`` literal not terminated before end of script",
        2,
        17,
        "return `the answ",
    ),
    "cut in the middle of a comment": ("return 1 /* and", "unterminated comment", 1, 16, "return 1 /* and"),
    "a TypeScript annotation": ("\nlet x: number = 1", "unexpected token: ':'", 2, 6, "let x: number = 1"),
    "an import": (
        "import fs from 'fs'",
        "import declarations may only appear at top level of a module",
        1,
        1,
        "import fs from 'fs'",
    ),
    "an export": (
        "\nexport default 1",
        "export declarations may only appear at top level of a module",
        2,
        1,
        "export default 1",
    ),
    "a double declaration": ("let a;\nlet a", "redeclaration of let a", 2, 5, "let a"),
    "a brace too many": ("return 1\n}", "unexpected garbage after function body, starting with '}'", 2, 2, "}"),
    "CRLF": ("const a = 1\r\nlet c = ;\r\n", "expected expression, got ';'", 2, 9, "let c = ;"),
}


@pytest.mark.parametrize("name", UNPARSED)
def test_a_script_that_does_not_parse_shows_the_place_and_emits_nothing(name: str, script: RunScript) -> None:
    text, message, line, column, source = UNPARSED[name]
    with pytest.raises(WorkflowError) as caught:
        script(text)
    assert caught.value.code is ErrorCode.SCRIPT_PARSE
    shown = str(caught.value).split("\n")
    assert shown[0] == f"workflow script does not parse: {message} (line {line}, column {column})"
    assert shown[1:3] == [source, " " * (column - 1) + "^"]
    assert looks_inside(str(caught.value)) == []


INJECTIONS = (
    "})(); (async () => {",
    "return 1 })(); (async () => { return 2",
    "}); (async () => {",
    "}, function () {",
    "} catch (e) {",
    "}\n(async () => {",
    "});",
    "}}",
    "*/ }, () => { /*",
    "} /* ",
    "return 1 }) => { return 2",
    "}; async function other() {",
    "`}`}",
    "'}'; }",
    "//\n}",
    "\u2028}",
    "} // ",
    "return 1 }\n//",
    "}\n<!--",
)


@pytest.mark.parametrize("text", INJECTIONS)
def test_a_body_that_closes_its_wrapper_does_not_parse(text: str, script: RunScript) -> None:
    with pytest.raises(WorkflowError, match="workflow script does not parse") as caught:
        script(text)
    assert caught.value.code is ErrorCode.SCRIPT_PARSE


@pytest.mark.parametrize(
    "text",
    [
        "return 1 // }",
        "return '})(); (async () => {'.length && 1",
        "/* } */ return 1",
        "return 1 //",
        "{ { } } return 1",
        "return 1 <!-- }",
        "/}/.test('}'); return 1",
    ],
)
def test_braces_in_text_and_comments_are_no_injection(text: str, value: Callable[..., Any]) -> None:
    assert value(text) == 1
