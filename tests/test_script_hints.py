"""Hints for scripts that do not parse: from the real engine's own messages and places, and never a wrong one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import EngineConfig, WorkflowEngine, WorkflowError, WorkflowStartRequest
from orchestrator.header import hint_for_missing_meta, hint_for_parse_error
from tests.conftest import run_async

TYPES = "this looks like TypeScript ({}); a workflow script is plain JavaScript: remove the types"
ANNOTATION, ASSERTION, ARGUMENTS = (
    TYPES.format(what) for what in ("a type annotation", "a type assertion", "type arguments")
)
NOT_NULL = TYPES.format("a non-null `!`")
NO_MODULES = "a workflow script has no modules and no require"
EXPORTS_NOTHING = "a workflow script exports nothing"
BACKTICK = "a template literal ends just before this place; a backtick in one is written \\`"
APOSTROPHE = "a string ends just before this place; a ' inside it is written \\'"
NAMED = "JavaScript has no named arguments"
ASYNC = "the function around this `await` must be async"
OPENED = "the script ends inside the `{}` opened at line {}, column {}"
STRAY = "the `{}` at line {}, column {} closes nothing"

HINTS: dict[str, str | None] = {
    "const x: string = 'a'": ANNOTATION,
    "let x: string": ANNOTATION,
    "const x: Record<string, number> = {}": ANNOTATION,
    "const schema: { a: string } = {}": ANNOTATION,
    "const a = 1, b: number = 2": ANNOTATION,
    "const { a, b }: Foo = args": ANNOTATION,
    "for (const x: T of []) {}": ANNOTATION,
    "const f = (x: string, y?: number): Promise<void> => x": ANNOTATION,
    "const f = (a, b): void => {}": ANNOTATION,
    "const f = async (a: string) => a": ANNOTATION,
    "const f = ({ a }: { a: string }) => a": ANNOTATION,
    "const f = async <T>(x: T) => x": ANNOTATION,
    "async function f(x: string) { return x }": ANNOTATION,
    "async function f(x): Promise<string> { return x }": ANNOTATION,
    "function f(a?: string) {}": ANNOTATION,
    "class A { m(a: string) {} }": ANNOTATION,
    "class A { x: number = 1 }": ANNOTATION,
    "try { } catch (e: any) { }": ANNOTATION,
    "const x = (await agent('a')) as string": ASSERTION,
    "const x = ['a'] as const": ASSERTION,
    "const x = `a` as string": ASSERTION,
    "const x = {} satisfies Foo": ASSERTION,
    "log(x as any)": ASSERTION,
    "const m = new Map<string, number>()": ARGUMENTS,
    "const a = f<string[]>([])": ARGUMENTS,
    "const x = new Promise<void>((r) => r())": ARGUMENTS,
    "function f<T>(x) { return x }": ARGUMENTS,
    "const r = foo!.bar": NOT_NULL,
    "const r = foo!": NOT_NULL,
    "interface Foo { a: string }": TYPES.format("`interface`"),
    "type Foo = { a: string }": TYPES.format("`type`"),
    "enum A { B, C }": TYPES.format("`enum`"),
    "abstract class A {}": TYPES.format("`abstract`"),
    "declare const x": TYPES.format("`declare`"),
    "class A { private x: number }": TYPES.format("`private`"),
    "export interface X { a: string }": TYPES.format("`interface`"),
    "export type X = string": TYPES.format("`type`"),
    "import fs from 'fs'": NO_MODULES,
    "const a = 1\nimport { x } from './x.js'": NO_MODULES,
    "import type { X } from 'x'": NO_MODULES,
    "const fs = require('fs' 1)": NO_MODULES,
    "export default async function main() {}": EXPORTS_NOTHING,
    "export const helper = 1": EXPORTS_NOTHING,
    "export async function run() {}": EXPORTS_NOTHING,
    "export let meta = { name: 'x' }": "the header is written `export const meta = {…}`, not with let or var",
    "export const meta: Meta = { name: 'x' }": "the header has a type annotation",
    "export const meta = { name: 'x' } as const": "the header has a type assertion",
    "export const meta = { name: 'it's', description: 'x' }": "the `export const meta = {…}` header does not parse",
    "const r = await agent(`Run `npm test` and report`)": BACKTICK,
    "const p = `\nFirst\nSecond uses `code` here\n`": BACKTICK,
    "const p = `é 😀 `code` here`": BACKTICK,
    "const a = 'it's fine'": APOSTROPHE,
    "const f = agent('x', label: 'y')": NAMED,
    "function f() { return await agent('x') }": ASYNC,
    "const r = items.map(x => await agent(x))": ASYNC,
    "const a = 'hello\nworld'": "a string in quotes ends on its line",
    "const a = 1\n}\nreturn a": STRAY.format("}", 2, 1),
    "const a = f(1))": STRAY.format(")", 1, 15),
    "const a = “hello”": "typographic quotes are no JavaScript",
    "```js\nconst a = 1\n``` 5 6": "send the script alone, without the Markdown fence",
    # No guess where the words stand in a text, or where the engine's message says it all.
    "const a = 'interface Foo { a: string }' 5": None,
    "const a = 1 // import x from 'y'\nconst b = 1 2": None,
    "/* as string */ const a = 1 2": None,
    "const a = [1 2]": None,
    "const a = ['a': 1]": None,
    "const a = { b: 1: 2 }": None,
    "const a = b ? c\nreturn a": None,
    "const a = 1\nconst a = 2": None,
    "if (a) { b: }": None,
}
CUT = {
    "const a = 'hello wor": "the script ends inside a string",
    "const a = await agent(`do this\nand that": "the script ends inside a template literal",
    "const a = 1 /* foo\n bar": "the script ends inside a comment",
    "const a = items.map(x => {\n  const y = 1\n  phase('a')\n": OPENED.format("{", 1, 26),
    "const a = await agent('x', { label: 'a'": OPENED.format("{", 1, 28),
    "const a = [1, 2,\n 3": OPENED.format("[", 1, 11),
    "const a = `x ${foo(": OPENED.format("(", 1, 19),
    "const a =": "the script ends in the middle of an expression",
}
META = {"name": "n", "description": "d"}


async def messages(scripts: list[str]) -> list[str]:
    async def never(_request: object) -> str:
        raise AssertionError("no agent runs")

    found: list[str] = []
    async with WorkflowEngine(EngineConfig(spare_workers=1)) as engine:
        engine.agents.register("default", never)
        for script in scripts:
            with pytest.raises(WorkflowError) as caught:
                await engine.start(WorkflowStartRequest(script=script, meta=META))
            found.append(str(caught.value))
            await asyncio.sleep(0)
    return found


def test_the_real_engine_adds_the_right_hint_or_none_to_its_parse_errors() -> None:
    table: dict[str, str | None] = {f"{script}\nreturn 1": hint for script, hint in HINTS.items()} | CUT
    wrong = {}
    for (script, hint), message in zip(table.items(), run_async(messages(list(table))), strict=True):
        assert message.startswith("workflow script does not parse: ")
        _, found, text = message.partition("\nHint: ")
        if (hint is None and found) or (hint is not None and not text.startswith(hint)) or "\n" in text:
            wrong[script] = message
    assert wrong == {}


def test_a_place_counts_utf_16_units_and_every_kind_of_line_break() -> None:
    script = "'😀'\r\n\u2028const é = ['😀'] as const"
    assert (
        hint_for_parse_error(script, 3, len("const é = ['..'] ") + 1, "unexpected token: 'as'") == f"Hint: {ASSERTION}."
    )


@pytest.mark.parametrize(("line", "column"), [(0, 0), (-5, -5), (1, 10**9), (10**6, 1)])
def test_a_place_outside_the_script_is_no_error(line: int, column: int) -> None:
    hint = hint_for_parse_error("const a = 1\nreturn a", line, column, "unexpected token: 'x'")
    assert hint is None or hint.startswith("Hint: ")


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        ("return 1", None),
        ("return 'export const meta = {}' // export const meta", None),
        ("const p = `export const meta = {}`", None),
        ("export const meta: M = {}", "line 1: the header has a type annotation"),
        ("// x\nexport const meta = { name: 'x' } as const\nreturn 1", "line 2: the header has a type assertion"),
        ("\n\nexport const meta = { name: 'it's' }\nreturn 1", "line 3: the `export const meta = {…}` header does not"),
        ("export const meta = { name: 'x'\nreturn 1", "line 1: the `export const meta = {…}` header does not parse"),
        ("export const meta = { name: `x\nreturn 1", "line 1: the `export const meta = {…}` header does not parse"),
        ("export let meta = {}", "line 1: the header is written `export const meta = {…}`, not with let"),
        (
            "export default { name: 'meta' }",
            "line 1: the header is written `export const meta = {…}`, not as a default",
        ),
        ("\nconst meta = { name: 'x' }\nreturn 1", "line 2: the header is written `export const meta = {…}`; without"),
    ],
)
def test_a_script_that_only_seems_to_have_a_header_is_told_why(script: str, hint: str | None) -> None:
    found = hint_for_missing_meta(script)
    assert found is None if hint is None else (found or "").startswith(f"Hint: {hint}")


PIECES = st.lists(
    st.text(max_size=4)
    | st.sampled_from(
        [
            "`",
            "'",
            "${",
            "}",
            "{",
            "(",
            ")",
            "[",
            "export const meta = {",
            " as ",
            ": string",
            "<T>",
            "\n",
            "\u2028",
            "😀",
            "await ",
        ]
    ),
    max_size=15,
).map("".join)
MESSAGES = st.sampled_from(
    [
        "",
        "unexpected token: ':'",
        "missing ) after argument list",
        "missing = in const declaration",
        "export declarations may only appear at top level of a module",
        "unexpected garbage after function body, starting with '}'",
        "'' string literal contains an unescaped line break",
        "await is only valid in async functions, async generators and modules",
    ]
)


@settings(deadline=None)
@given(PIECES, st.integers(0, 6), st.integers(0, 40), MESSAGES)
def test_any_script_and_place_give_one_line_or_none(script: str, line: int, column: int, message: str) -> None:
    for hint in (hint_for_parse_error(script, line, column, message), hint_for_missing_meta(script)):
        assert hint is None or (hint.startswith("Hint: ") and hint.endswith(".") and "\n" not in hint)
