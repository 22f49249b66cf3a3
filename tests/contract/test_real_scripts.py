"""What public workflow scripts do, each as a script of our own: everything here must simply run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import AgentRequest, AgentResult, AgentStarted
from tests.contract.conftest import RunScript

SCHEMAS: dict[str, tuple[str, Any, Any]] = {
    # name: schema, an answer that fits, one that does not
    "descriptions everywhere": (
        "{ type: 'object', description: 'd', properties: { a: { type: 'string', description: 'the a', title: 't', "
        "examples: ['x'], default: 'x' } }, required: ['a'] }",
        {"a": "x"},
        {"a": 1},
    ),
    "an enum without a type": (
        "{ type: 'object', properties: { v: { enum: ['high', 'low', null, 3] } }, required: ['v'] }",
        {"v": None},
        {"v": "mid"},
    ),
    "minItems and maxItems": (
        "{ type: 'object', properties: { l: { type: 'array', minItems: 1, maxItems: 2, items: { type: 'string' } } } }",
        {"l": ["a", "b"]},
        {"l": ["a", "b", "c"]},
    ),
    "minimum and maximum": (
        "{ type: 'object', properties: { n: { type: 'integer', minimum: 1, maximum: 10 } } }",
        {"n": 10},
        {"n": 0},
    ),
    "a pattern": (
        "{ type: 'object', properties: { id: { type: 'string', pattern: '^[A-Z]{2}-\\\\d+$' } } }",
        {"id": "AB-12"},
        {"id": "ab"},
    ),
    "a list of types": (
        "{ type: 'object', properties: { v: { type: ['string', 'null'] } }, required: ['v'] }",
        {"v": None},
        {"v": 3},
    ),
    "additionalProperties as a schema": (
        "{ type: 'object', additionalProperties: { type: 'number' } }",
        {"a": 1, "b": 2.5},
        {"a": "1"},
    ),
    "additionalProperties false": (
        "{ type: 'object', properties: { a: {} }, additionalProperties: false }",
        {"a": [1]},
        {"b": 1},
    ),
    "nested lists of objects": (
        "{ type: 'object', properties: { rows: { type: 'array', items: { type: 'object', "
        "properties: { f: { type: 'string' }, line: { type: 'integer' } }, required: ['f'] } } }, required: ['rows'] }",
        {"rows": [{"f": "a", "line": 1}, {"f": "b"}]},
        {"rows": [{"line": 1}]},
    ),
    "definitions and references": (
        "{ type: 'object', $defs: { p: { type: 'string' } }, properties: { a: { $ref: '#/$defs/p' } } }",
        {"a": "x"},
        {"a": 1},
    ),
    "alternatives": (
        "{ type: 'object', properties: { v: { anyOf: [{ type: 'string' }, { type: 'boolean' }] } } }",
        {"v": True},
        {"v": 1},
    ),
    "a const": ("{ type: 'object', properties: { k: { const: 'yes' } }, required: ['k'] }", {"k": "yes"}, {"k": "no"}),
    "a dialect": (
        "{ $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'object', "
        "properties: { a: { type: 'null' } } }",
        {"a": None},
        {"a": 0},
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_as_models_write_them_is_accepted_and_checked(name: str, script: RunScript) -> None:
    schema, good, bad = SCHEMAS[name]

    async def agent(request: AgentRequest) -> AgentResult:
        return AgentResult(structured=good if request.prompt == "good" else bad)

    text = f"const s = {schema}; return [await agent('good', {{ schema: s }}), await agent('bad', {{ schema: s }})]"
    ran = script(text, agent=agent)
    assert ran.result.stop_reason == "completed", ran.result.error
    assert ran.result.value == [good, None]
    assert "does not match the schema" in ran.result.failures[0].reason


STYLES: dict[str, tuple[str, Any, Any]] = {
    # name: script, args, result
    "args guards": (
        "const files = (args && Array.isArray(args.files)) ? args.files : []; const depth = args?.depth ?? 'quick';\n"
        "if (!files.length) return { error: 'no files' }\nreturn { files, depth }",
        {"files": ["a"]},
        {"files": ["a"], "depth": "quick"},
    ),
    "an early return": (
        "if (!args.go) return { skipped: true }\nawait agent('never')",
        {"go": False},
        {"skipped": True},
    ),
    "filter(Boolean)": (
        "const r = (await parallel(['a', 'fail', 'b'].map((p) => () => agent(p)))).filter(Boolean)\nreturn r",
        None,
        ["ok:a", "ok:b"],
    ),
    "agent().then": ("return await agent('x').then((r) => r.toUpperCase()).finally(() => log('done'))", None, "OK:X"),
    "catch and go on": ("return await agent('boom').catch((e) => `lost: ${e.code}`)", None, "lost: AGENT_RESULT"),
    "a budget of its own": ("const budget = 3\nlet spent = 0\nwhile (spent < budget) spent++\nreturn spent", None, 3),
    "a loop until nothing is new": (
        "const seen = new Set()\nfor (let round = 0; round < 9; round++) {\n  const r = await agent('same')\n"
        "  if (seen.has(r)) break\n  seen.add(r)\n}\nreturn [...seen]",
        None,
        ["ok:same"],
    ),
    "batches": (
        "const chunk = (l, n) => l.length ? [l.slice(0, n), ...chunk(l.slice(n), n)] : []\nconst out = []\n"
        "for (const part of chunk([1, 2, 3, 4, 5], 2)) "
        "out.push(...await parallel(part.map((n) => () => agent('n' + n))))\nreturn out",
        None,
        [f"ok:n{n}" for n in range(1, 6)],
    ),
    "staggered starts": (
        "const sleep = (ms) => new Promise((r) => setTimeout(r, ms))\n"
        "return await parallel([0, 1, 2].map((i) => async () => { await sleep(i); return agent('s' + i) }))",
        None,
        ["ok:s0", "ok:s1", "ok:s2"],
    ),
    "a retry": (
        "async function retry(p, n) {\n  for (let i = 0; i < n; i++) {\n"
        "    const r = await agent(i < 2 ? 'fail' : p)\n    if (r) return r\n  }\n  return null }\n"
        "return await retry('x', 5)",
        None,
        "ok:x",
    ),
    "a vote": (
        "const votes = await parallel(Array.from({ length: 3 }, (_, i) => () => agent(`vote ${i}`)))\n"
        "return votes.filter((v) => v?.startsWith('ok')).length >= 2 ? 'yes' : 'no'",
        None,
        "yes",
    ),
    "helpers below their use": (
        "return double(await two())\nasync function two() { return 2 }\nfunction double(n) { return n * 2 }",
        None,
        4,
    ),
    "prompts that look like code": (
        "const p = 'export const meta = {} import(\\'x\\') Date.now() })(); (async () => {'\n"
        "return (await agent(p)) === 'ok:' + p",
        None,
        True,
    ),
    "tagged templates and nested backticks": (
        "const t = (s, ...v) => s.raw.join('|') + v\nreturn t`a${`b${1}`}c`",
        None,
        "a|cb1",
    ),
    "JSON in a prompt": ("return JSON.parse((await agent(JSON.stringify({ a: [1] }))).slice(3))", None, {"a": [1]}),
    "comments of every kind": ("/* a */ // b\n/** c */\nreturn 1 // d", None, 1),
    "no semicolons": ("const a = 1\nconst b = 2\n;[a, b].forEach((n) => log(String(n)))\nreturn a + b", None, 3),
    "nothing returned": ("await agent('x')", None, None),
    "a log of everything": ("log(`r: ${JSON.stringify({ a: undefined, b: [undefined] })}`)\nreturn 1", None, 1),
}


@pytest.mark.parametrize("name", STYLES)
def test_a_style_of_public_scripts_runs(name: str, value: Callable[..., Any]) -> None:
    text, args, expected = STYLES[name]
    assert value(text, args=args) == expected
    assert value("\ufeff" + text.replace("\n", "\r\n"), args=args) == expected, "with a byte order mark and CRLF"


def test_emoji_and_other_letters_in_the_source(value: Callable[..., Any]) -> None:
    text = "const größe = '📏', 名 = { 'clé 🔑': größe } // ❤️\nreturn { ...名, s: `✅ ${größe}` }"
    assert value(text) == {"clé 🔑": "📏", "s": "✅ 📏"}


def test_a_template_keeps_its_own_line_breaks_as_javascript_has_them(value: Callable[..., Any]) -> None:
    assert value("return `a\nb`.length + `a\r\nb`.length") == 6


def test_263_kilobytes_of_source(value: Callable[..., Any]) -> None:
    lines = [f"const line{n} = 'the {n}th line of a very long script, with some text in it'" for n in range(3500)]
    text = "\n".join(lines)
    assert len(text) > 263_000
    assert value(text + "\nreturn [line0.length, line3499.slice(0, 12)]") == [56, "the 3499th l"]


def test_the_place_in_a_long_source(failure: Callable[..., Any]) -> None:
    text = "\n".join(f"const line{n} = {n}" for n in range(20_000))
    _, error = failure(text + "\nnull.x")
    assert "(line 20001, column 1)\nnull.x\n^" in error


def test_prompts_of_38000_characters(script: RunScript) -> None:
    lengths: list[int] = []

    async def agent(request: AgentRequest) -> str:
        lengths.append(len(request.prompt))
        return request.prompt

    ran = script(
        "return (await parallel([1, 2, 3].map((n) => () => agent(`${n} ` + 'é'.repeat(38000))))).map((r) => r.length)",
        agent=agent,
    )
    assert ran.result.value == [38_002] * 3
    assert lengths == [38_002] * 3
    assert {len(event.label) for event in ran.events if isinstance(event, AgentStarted)} == {48}


def test_62_agents_with_repeating_labels(script: RunScript) -> None:
    text = """phase('Work')
    const one = (i) => agent(`task ${i}`, { label: `worker ${i % 4}` })
    const r = await parallel(Array.from({ length: 62 }, (_, i) => () => one(i)))
    return r.filter(Boolean).length"""
    ran = script(text)
    assert (ran.result.value, ran.result.agents_completed) == (62, 62)
    started = [event for event in ran.events if isinstance(event, AgentStarted)]
    assert len({event.seq for event in started}) == len({event.child_id for event in started}) == 62
    assert {event.label for event in started} == {f"worker {n}" for n in range(4)}


def test_a_thousand_agents_in_one_list(value: Callable[..., Any]) -> None:
    text = (
        "return (await parallel(Array.from({ length: 1000 }, (_, i) => () => agent('' + i)))).map((r) => +r.slice(3))"
    )
    assert value(text) == list(range(1000))


def test_a_report_in_markdown_survives(value: Callable[..., Any]) -> None:
    text = "# Title\n\n```js\nconst a = `x`;\n```\n\n| a | b |\n|---|---|\n| \\| | 'q' \"q\" |\n"
    back = value("return (await agent(args)).slice(3)", args=text)
    assert back == text
    assert re.search(r"```js\nconst a = `x`;\n```", back)
