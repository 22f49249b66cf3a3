"""`split_header`: the header is found where it is code, blanked in place, and handed on only when it is pure."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.header import HEADER_AND_META, split_header
from protocol.errors import ErrorCode, WorkflowError

LITERAL = "{ name: 'x', description: `d`, phases: [{ title: 'a' }] }"
HEADER = f"export const meta = {LITERAL}"
BODY = r"""
// a comment
const items = args.files.map(f => ({ path: f, n: 1 }))
async function one(item, i) {
  const r = await agent(`Review ${item.path} and say "it's \`fine\`"`, { label: `r:${i}`, schema: { type: 'object' } })
  if (!r) { return null } else { log('got ' + r.a) }
  return { ...r, re: /ab+c[/]/g.test(r.a) }
}
const results = await parallel(items.map((x, i) => () => one(x, i)))
for (const r of results) { if (r) log(`x ${r.a}`) }
return { results: results.filter(Boolean), export: "export const meta = {}" }
"""


def spaces(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


@pytest.mark.parametrize("end", ["\n", ";\n", "\r\n", ";\r\n", " ;\n", "\u2028", " // the meta\n", " /* the */\n"])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n\n",
        "// export const meta = {}\n",
        "/* export const meta = { */\r\n",
        "'export const meta = {}'\n;\n",
        "\t",
    ],
)
def test_the_header_is_blanked_and_everything_else_stays_where_it_was(before: str, end: str) -> None:
    script = before + HEADER + end + BODY
    split = split_header(script)
    assert split.literal == LITERAL
    rest = before + spaces(HEADER) + end.replace(";", " ") + BODY
    assert split.body == rest or (";" in before and split.body.replace(";", " ") == rest.replace(";", " "))
    assert len(split.body) == len(script)


def test_a_header_of_several_lines_keeps_its_line_breaks() -> None:
    literal = "{\r\n  name: 'é😀', // }\r\n\tdescription:\n`two\nlines`\u2028}"
    header = f"export   const\nmeta =\n{literal};"
    split = split_header(f"{header}\nreturn 1")
    assert split.literal == literal
    assert split.body == re.sub(r"[^\r\n\u2028]", " ", header) + "\nreturn 1"


def test_a_byte_order_mark_goes_and_a_hashbang_line_becomes_a_comment() -> None:
    assert split_header("\ufeffreturn 1").body == "return 1"
    assert split_header("#!/usr/bin/env workflow\nreturn 1").body == "///usr/bin/env workflow\nreturn 1"
    split = split_header(f"\ufeff#!/bin/x\r\n{HEADER}\r\nreturn 1")
    assert (split.body, split.literal) == (f"///bin/x\r\n{spaces(HEADER)}\r\nreturn 1", LITERAL)


def test_characters_of_several_bytes_before_the_header_do_not_shift_it() -> None:
    before = "// é ü 😀 漢字\nconst s = '😀😀é'\n"
    split = split_header(f"{before}{HEADER}\nreturn '😀'")
    assert split.literal == LITERAL
    assert split.body == f"{before};{spaces(HEADER)[1:]}\nreturn '😀'"


def test_a_header_after_other_statements_leaves_a_semicolon_between_them() -> None:
    # Without it the two statements around the header would become the call `list(first)`.
    split = split_header(f"const list = items\n{HEADER};\n(first)\nreturn 1")
    assert split.body == f"const list = items\n;{spaces(HEADER)}\n(first)\nreturn 1"


@pytest.mark.parametrize(
    "script",
    [
        "return 1",
        "",
        "return 'export const meta = {}'",
        "const p = `Write:\nexport const meta = { name: 'x', description: 'y' }\n`\nreturn p",
        "const p = `${`export const meta = {}`} export const meta = {}`\nreturn p",
        "// export const meta = {}\nreturn 1",
        "/*\nexport const meta = {}\n*/\nreturn 1",
        "return /export const meta = {}/.test('x')",
        "const meta = {}, exported = 1\nreturn meta",
        "return { export: 1, meta: 2 }",
        "export let meta = {}\nreturn 1",
        "export var meta = {}\nreturn 1",
        "export const other = { meta: 1 }\nreturn 1",
        "export const { meta } = args\nreturn 1",
        "export const metadata = {}\nreturn 1",
        "export { meta }\nreturn 1",
        "export default { meta: 1 }",
        "export const meta\nreturn 1",
        "{ export const meta = {} }",
        "function f() { export const meta = {} }",
        "if (args) { export const meta = {} }",
    ],
)
def test_the_words_elsewhere_are_not_a_header(script: str) -> None:
    split = split_header(script)
    assert (split.body, split.literal) == (script, None)


@pytest.mark.parametrize(
    "header",
    [
        "export const meta: Meta = { name: 'x' }",
        "export const meta = { name: 'x' } as const",
        "export const meta = { name: 'it's', description: 'd' }",
        "export const meta = { name: 'x' description: 'd' }",
        "export const meta = { name: 'x', description: 'd'",
        "export const meta = { name: `x, description: 'd' }",
        "export const meta = { name: 'x' } phase('a')",
        "export const meta = { name: }",
        "export const meta =",
    ],
)
def test_a_header_that_does_not_parse_is_left_for_the_engine_to_report(header: str) -> None:
    script = f"{header}\nreturn 1"
    split = split_header(script)
    assert (split.body, split.literal) == (script, None)


@pytest.mark.parametrize("end", ["\n", ";\n"])
def test_the_header_is_found_wherever_the_script_is_cut_off_behind_it(end: str) -> None:
    script = HEADER + end + BODY
    lost = []
    for length in range(len(HEADER + end), len(script) + 1):
        split = split_header(script[:length])
        if split.literal != LITERAL or len(split.body) != length:
            lost.append(script[length - 5 : length])
    # Cut behind the first slash, a header without a semicolon goes on as a division: JavaScript reads it so as well.
    assert lost == ([] if ";" in end else [" }\n\n/"])


@pytest.mark.parametrize(
    "broken", ["} }", "const x: string = 1", "interface A { b: string }", "f(((", "'", "`", "/*", "#"]
)
def test_errors_elsewhere_do_not_hide_the_header(broken: str) -> None:
    assert split_header(f"{HEADER};\n{broken}\nreturn 1").literal == LITERAL


@pytest.mark.parametrize(
    ("literal", "column", "found"),
    [
        ("{ a: b }", 6, "a variable, `b`"),
        ("{ a: NaN }", 6, "a variable, `NaN`"),
        ("{ a: f(1) }", 6, "a call, `f(1)`"),
        ("{ a: [{ b: f() }] }", 12, "a call, `f()`"),
        ("{ ...a }", 3, "a spread, `...a`"),
        ("{ a: [...b] }", 7, "a spread, `...b`"),
        ("{ [a]: 1 }", 3, "a computed key, `[a]`"),
        ("{ a }", 3, "a shorthand property, `a`"),
        ("{ get a() { return 1 } }", 3, "a method, `get a() { return 1 }`"),
        ("{ a() {} }", 3, "a method, `a() {}`"),
        ("{ a: () => 1 }", 6, "a function, `() => 1`"),
        ("{ a: function () {} }", 6, "a function, `function () {}`"),
        ("{ a: class {} }", 6, "a class, `class {}`"),
        ("{ a: `b${c}` }", 8, "a template literal with a substitution, `${c}`"),
        ("{ a: tag`b` }", 6, "a call, `tag`b``"),
        ("{ a: 'b' +\n 'c' }", 6, "a calculation (text in several pieces is written as one), `'b' + 'c'`"),
        ("{ a: x ? 1 : 2 }", 6, "a condition, `x ? 1 : 2`"),
        ("{ a: b.c }", 6, "a property access, `b.c`"),
        ("{ a: new Date() }", 6, "a constructor call, `new Date()`"),
        ("{ a: /b/ }", 6, "a regular expression, `/b/`"),
        ("{ a: await b }", 6, "an await, `await b`"),
        ("{ a: +1 }", 6, "an operator, `+1`"),
        ("{ a: -b }", 6, "an operator, `-b`"),
        ("{ a: - -1 }", 6, "an operator, `- -1`"),
        ("{ a: 1n }", 6, "a BigInt"),
        ("{ a: -1n }", 6, "a BigInt"),
        ("{ a: (1) }", 6, "a parenthesis, `(1)`"),
        ("{ a: [1, , 2] }", 6, "an empty array element"),
        ("{ a: [,] }", 6, "an empty array element"),
        ("{ '😀': b }", 9, "a variable, `b`"),
        ("Object.freeze({})", 1, "a call"),
        ("'text'", 1, "a value of another kind (string)"),
        ("{}, other = 1", 5, "another variable in the same statement"),
    ],
)
def test_a_header_that_is_no_pure_literal_is_refused_at_its_place(literal: str, column: int, found: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        split_header(f"// one\n\nexport const meta = {literal};\nreturn 1")
    assert caught.value.code is ErrorCode.META_INVALID
    place = f"(line 3, column {column + len('export const meta = ')})"
    assert caught.value.message.startswith(f"invalid meta: export const meta must be a pure literal {place}: {found}; ")


@pytest.mark.parametrize("continued", ["(async () => 1)()", "[1].map(f)", "`x`", "/ 2", ".keys"])
def test_a_missing_semicolon_that_continues_the_header_is_named(continued: str) -> None:
    with pytest.raises(WorkflowError, match=r"\(line 2, column 1\).*put a `;` behind the closing brace"):
        split_header(f"{HEADER}\n{continued}\nreturn 1")


@pytest.mark.parametrize(
    "literal",
    [
        "{}",
        "{ a: undefined, 'b': null, \"c\": true, 3: false, d: -1.5e3, e: 0x1f, f: `t`, g: [], h: [1, 2,], }",
        "{ /* one */ a: /* two */ 'it\\'s', // three\n b: [ /* four */ ] }",
        "{ a: { b: { c: [[['x']]] } }, if: 1, await: 2, export: 3, meta: 4 }",
        "{ a: 'export const meta = {}', b: `export const meta = {}` }",
        '{ a: "\\u00e9\\\n continued" }',
    ],
)
def test_a_pure_literal_is_handed_on_as_it_is_written(literal: str) -> None:
    assert split_header(f"export const meta = {literal};\nreturn 1").literal == literal


def test_two_headers_are_refused_at_the_second() -> None:
    with pytest.raises(WorkflowError) as caught:
        split_header(f"\n{HEADER}\nconst a = 1\n\texport const meta = {{ name: 'second' }}\nreturn 1")
    assert caught.value.code is ErrorCode.SCRIPT_PARSE
    assert caught.value.message == (
        "workflow script does not parse: a second `export const meta` header, the first is at line 2: keep one "
        "(line 4, column 2)\n\texport const meta = { name: 'second' }\n\t^"
    )


def long_body(calls: int) -> str:
    return "".join(f"const r{i} = await agent(`é ${{x}} {i}`, {{ label: 'l{i}' }});\n" for i in range(calls))


@pytest.mark.parametrize("tail", ["", "// export is a word\n"])
def test_long_scripts_are_split_like_short_ones(tail: str) -> None:
    body = long_body(5000) + tail
    assert len(body) > 263_000
    split = split_header(f"{HEADER}\n{body}")
    assert split.literal == LITERAL
    assert split.body == f"{spaces(HEADER)}\n{body}"


def test_a_second_header_far_behind_the_first_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"a second `export const meta` header.*\(line 1002, column 1\)"):
        split_header(f"{HEADER}\n{long_body(1000)}{HEADER}\n")


@pytest.mark.parametrize(("opening", "closing"), [("const p = `", "`"), ("/* ", " */"), ("const p = `${f(`", "`)}`")])
def test_a_header_inside_a_text_of_many_pages_is_text(opening: str, closing: str) -> None:
    filler = "many words\n" * 5000
    for before, after in ((filler, ""), ("", filler), (filler, filler)):
        script = f"{opening}{before}\n{HEADER}\n{after}{closing}\nreturn 1"
        split = split_header(script)
        assert (split.body, split.literal) == (script, None)


def test_a_header_behind_many_pages_is_found() -> None:
    before = long_body(1000)
    split = split_header(f"{before}{HEADER}\nreturn 1")
    assert split.literal == LITERAL
    assert split.body == f"{before};{spaces(HEADER)[1:]}\nreturn 1"


@pytest.mark.parametrize("nested", ["[", "{a:", "(", "-", "`${", "if(a)", "!", "a=>"])
def test_deep_nesting_neither_crashes_nor_hides_the_header(nested: str) -> None:
    assert split_header(f"{HEADER};{nested * 20_000}").literal == LITERAL
    assert split_header(f"export const meta = {{a: {nested * 20_000}").literal is None


def test_a_literal_of_many_levels_is_read_without_recursion() -> None:
    literal = f"{{a: {'[' * 20_000}{']' * 20_000}}}"
    assert split_header(f"export const meta = {literal}").literal == literal


def test_lone_surrogates_become_replacement_characters_of_the_same_width() -> None:
    split = split_header(f"'\ud800'\n{HEADER}\nreturn '\udfff'")
    assert split.literal == LITERAL
    assert split.body == f"'\ufffd'\n;{spaces(HEADER)[1:]}\nreturn '\ufffd'"


def test_the_text_about_header_and_meta_says_what_to_remove() -> None:
    assert HEADER_AND_META == (
        "workflow meta rides the `meta` request field, not the script: remove the `export const meta = {...}` "
        "statement from the body, or leave the `meta` field out"
    )


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["export const meta = {}", "`", "\\", "${", "*/", "//", "\n", "\r\n", "\u2028", "export", "meta", "😀"]
)


@settings(deadline=None)
@given(name=texts, prompt=texts, comment=texts)
def test_whatever_the_strings_and_comments_hold_the_header_is_the_statement(
    name: str, prompt: str, comment: str
) -> None:
    note = re.sub(r"[\r\n\u2028\u2029]|\*/", " ", comment)
    template = prompt.replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${")
    literal = f"{{ name: {json.dumps(name)}, description: 'd' }}"
    before, after = f"/* {note} */ // {note}\n", f";\nconst p = `{template}` // {note}\nreturn {json.dumps(prompt)}\n"
    split = split_header(f"{before}export const meta = {literal}{after}")
    assert split.literal == literal
    assert split.body == before + spaces(f"export const meta = {literal};") + after[1:]


@settings(deadline=None)
@given(st.lists(texts | st.sampled_from([HEADER, "{", "}", "(", ")", "'", "/", ";", " "]), max_size=12).map("".join))
def test_any_text_is_split_or_refused_and_keeps_its_lines(script: str) -> None:
    try:
        split = split_header(script)
    except WorkflowError:
        assert "export" in script
        return
    plain = script.removeprefix("\ufeff")
    assert len(split.body) == len(plain)
    breaks = re.compile(r"[\r\n\u2028\u2029]")
    assert [found.span() for found in breaks.finditer(split.body)] == [f.span() for f in breaks.finditer(plain)]
