"""What to do about a script that does not parse, in one line, where its source shows the usual reason.

Used after the engine's own parser gave the place and its message; the hint never replaces them. Only code is looked
at: the text of strings, templates, comments and regular expressions is blanked first, since prompts hold anything.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from orchestrator.script_source import leaves, offset_of, parse, place_of, plain_text

__all__ = ["hint_for_missing_meta", "hint_for_parse_error"]

_TYPESCRIPT = "a workflow script is plain JavaScript: remove the types"
_NO_MODULES = (
    "a workflow script has no modules and no require: agent(), parallel(), pipeline(), phase(), log() and args are "
    "there already; let an agent do what needs files, the network or a shell"
)
_HEADER_FORM = "the header is written `export const meta = {…}`"

_TEXT_NODES = frozenset(
    ("string_fragment", "escape_sequence", "comment", "html_comment", "regex_pattern", "regex_flags", "hash_bang_line")
)
_OPENERS = {b"(": b")", b"[": b"]", b"{": b"}", b"${": b"}"}

_NAME = rb"[A-Za-z_$][\w$]*"
_BEFORE_DECLARED = re.compile(
    rb"(?:^|[;{}]\s*)(?:export\s+)?(?:declare\s+)?(?:interface|type|namespace|module|abstract|declare|enum)\s+$"
)
_BEFORE_MEMBER = re.compile(rb"(?:^|[\s({,;])(?:private|public|protected|readonly|override|abstract)\s+$")
_AFTER_OPERAND = re.compile(rb"[\w$)\]}'\"`>]\s*$")
_TYPE_FOLLOWS = re.compile(rb"\??\s*:\s*[A-Za-z_$\[{('\"]")
_NAME_WITH_TYPE = re.compile(_NAME + rb"\s*[!?]?\s*:")
_TYPE_ARGUMENTS = re.compile(rb"[\w$]\s*<[\w$\s.,|\[\]{}:;?<>&'\"]*(?:>\s*|\[\s*)$")
_OPEN_ARGUMENTS = re.compile(rb"[\w$]\s*<[\w$\s.,|\[\]<>]*$")
_REST_OF_ARGUMENTS = re.compile(rb"[\w$\s.,|\[\]<>]*>\s*\(")
_TYPE_PARAMETERS = re.compile(rb"<\s*" + _NAME + rb"(?:\s+extends\b[^>]*|\s*,[^>]*)?>\s*\(")
_NOT_NULL = re.compile(rb"!\s*(?:[.;,)\]}\[]|$)")

_NOT_A_TYPE = ("missing ) after argument list", "missing ] after element list", "missing } after property list")
"""At a colon these mean a missing brace around options, not a type."""


def hint_for_parse_error(script: str, line: int, column: int, message: str) -> str | None:
    """One line of advice, or ``None`` where the source does not show the reason.

    Args:
        script: the whole script, header included.
        line: of the error, from 1.
        column: of the error, from 1, in UTF-16 units.
        message: of the engine's parser.
    """
    text = plain_text(script)
    if text.lstrip().startswith("```"):
        return "Hint: send the script alone, without the Markdown fence around it."
    source = text.encode()
    offset, start, end = offset_of(text, line, column)
    root = parse(source)
    masked = _masked(source, root, start, end)
    before, after = masked[: offset - start], masked[offset - start :]
    reason = (
        _module_hint(root, before, after, offset, message)
        or _typescript_hint(before, after, message)
        or _quote_hint(source, offset, start, message)
        or _async_hint(before, message)
        or _named_argument_hint(before, after, message)
        or _end_hint(source, root, offset, end, message)
        or _character_hint(message)
    )
    return None if reason is None else f"Hint: {reason}."


def hint_for_missing_meta(script: str) -> str | None:
    """Why a script that seems to have a header has none, or ``None``.

    For a request without ``meta`` whose script `split_header` found no header in.
    """
    text = plain_text(script)
    if "meta" not in text:
        return None
    source = text.encode()
    root = parse(source)
    for node in root.children:
        line, _ = place_of(source, node.start_byte)
        shown = (node.text or b"")[:200]
        if node.type == "export_statement" and re.match(rb"export\s+(?:const|let|var)\s+meta\b", shown):
            if re.match(rb"export\s+(?:let|var)\b", shown):
                return f"Hint: line {line}: {_HEADER_FORM}, not with let or var."
            return f"Hint: line {line}: {_broken_header(node, shown)}."
        if node.type == "export_statement" and re.match(rb"export\s+default\b", shown):
            return f"Hint: line {line}: {_HEADER_FORM}, not as a default export."
        if node.type in ("lexical_declaration", "variable_declaration"):
            names = [declarator.child_by_field_name("name") for declarator in node.named_children]
            if any(name is not None and name.text == b"meta" for name in names):
                return f"Hint: line {line}: {_HEADER_FORM}; without `export` it is an ordinary variable."
    # A header that breaks off is no statement of the tree, only its tokens are there.
    words: list[Node] = []
    for leaf in leaves(root):
        words = [*words[-2:], leaf]
        if [word.text for word in words] == [b"export", b"const", b"meta"]:
            line, _ = place_of(source, words[0].start_byte)
            rest = source[words[0].start_byte :]
            return f"Hint: line {line}: {_broken_header(root, rest)}."
    return None


def _broken_header(node: Node, shown: bytes) -> str:
    if re.match(rb"export\s+const\s+meta\s*:", shown):
        return f"the header has a type annotation; {_TYPESCRIPT}"
    if re.search(rb"\}\s*(?:as|satisfies)\s", node.text or b""):
        return f"the header has a type assertion; {_TYPESCRIPT}"
    return "the `export const meta = {…}` header does not parse: look for an unescaped quote, a missing comma or brace"


def _masked(source: bytes, root: Node, start: int, end: int) -> bytes:
    """One line of the source in which only code is left; the delimiters of texts stay."""
    masked = bytearray(source[start:end])
    stack = [root]
    while stack:
        node = stack.pop()
        if node.end_byte <= start or node.start_byte >= end:
            continue
        if node.type in _TEXT_NODES:
            first, last = max(node.start_byte, start), min(node.end_byte, end)
            masked[first - start : last - start] = b" " * (last - first)
        else:
            stack.extend(node.children)
    return bytes(masked)


# ------------------------------------------------------------------------------------------------ what it may be


def _module_hint(root: Node, before: bytes, after: bytes, offset: int, message: str) -> str | None:
    if re.search(rb"\brequire\s*\(", before):
        return _NO_MODULES
    if "may only appear at top level of a module" not in message:
        return None
    if after.startswith(b"import"):
        return _NO_MODULES
    if re.match(rb"export\s+default\b", after):
        return "a workflow script exports nothing: its body runs from top to bottom and ends in `return <value>`"
    if re.match(rb"export\s+(?:let|var)\s+meta\b", after):
        return f"{_HEADER_FORM}, not with let or var"
    if re.match(rb"export\s+const\s+meta\b", after):
        node = next((node for node in root.children if node.start_byte == offset), None)
        return _broken_header(node if node is not None else root, after)
    if (found := re.match(rb"export\s+(interface|type|enum|declare|namespace|abstract)\b", after)) is not None:
        return f"this looks like TypeScript (`{found[1].decode()}`); {_TYPESCRIPT}"
    return "a workflow script exports nothing but its `export const meta = {…}` header: leave this `export` out"


def _typescript_hint(before: bytes, after: bytes, message: str) -> str | None:
    what: str | None = None
    if re.match(rb"(?:as|satisfies)\s", after) and _AFTER_OPERAND.search(before):
        what = "a type assertion"
    elif (found := _BEFORE_DECLARED.search(before)) is not None and re.match(_NAME, after):
        what = f"`{found.group().split()[-1].decode()}`"
    elif re.match(rb"(?:const\s+)?enum\s", after) or re.match(rb"interface\s+" + _NAME, after):
        what = f"`{after.split()[0].decode()}`"
    elif _BEFORE_MEMBER.search(before) and re.match(_NAME, after):
        what = f"`{before.split()[-1].decode().lstrip('({,;')}`"
    elif after.startswith(b"implements "):
        what = "`implements`"
    elif _NOT_NULL.match(after) and _AFTER_OPERAND.search(before):
        what = "a non-null `!`"
    elif _may_be_typed(before, message) and _is_annotation(before, after, message):
        what = "a type annotation"
    elif (
        _TYPE_ARGUMENTS.search(before)
        or _TYPE_PARAMETERS.match(after)
        or (_OPEN_ARGUMENTS.search(before) and _REST_OF_ARGUMENTS.match(after))
    ):
        what = "type arguments"
    return None if what is None else f"this looks like TypeScript ({what}); {_TYPESCRIPT}"


def _may_be_typed(before: bytes, message: str) -> bool:
    # The engine takes `async (a: string) =>` for a call of a function named async, up to the arrow.
    return not any(part in message for part in _NOT_A_TYPE) or re.search(rb"\basync\s*\([^()]*$", before) is not None


def _is_annotation(before: bytes, after: bytes, message: str) -> bool:
    if _TYPE_FOLLOWS.match(after) and _AFTER_OPERAND.search(before):
        return True
    # For a declaration the engine points at the name instead of at the colon.
    at_name = any(part in message for part in ("missing = in const", "missing ;", "bad class member"))
    return at_name and _NAME_WITH_TYPE.match(after) is not None


def _quote_hint(source: bytes, offset: int, start: int, message: str) -> str | None:
    """A text that ended too early: the token in error stands directly behind its closing quote."""
    before = source[start:offset].rstrip()
    token = source[offset : offset + 1]
    if not before or not token or not (token.isalnum() or token in b"_$\\#@"):
        return None
    if before.endswith(b"`"):
        return (
            "a template literal ends just before this place; a backtick in one is written \\` (or a comma is missing)"
        )
    if before.endswith((b"'", b'"')) and offset == start + len(before):
        quote = before[-1:].decode()
        return (
            f"a string ends just before this place; a {quote} inside it is written \\{quote}, or use a template literal"
        )
    return None


def _async_hint(before: bytes, message: str) -> str | None:
    if message.find("await is only valid") >= 0 or re.search(rb"\bawait\s+$", before):
        return "the function around this `await` must be async, e.g. `items.map(async (item) => await …)`"
    return None


def _named_argument_hint(before: bytes, after: bytes, message: str) -> str | None:
    if "missing ) after argument list" in message and after.startswith(b":") and re.search(rb"[\w$]$", before):
        return "JavaScript has no named arguments: options go into an object, e.g. `agent(prompt, { label: … })`"
    return None


def _end_hint(source: bytes, root: Node, offset: int, end: int, message: str) -> str | None:
    rest = source[offset:].strip()
    if "unescaped line break" in message:
        if not source[end:].strip():
            return "the script ends inside a string: it seems cut off, send it whole"
        return "a string in quotes ends on its line: use a template literal (backticks) for several lines, or \\n"
    if "not terminated before end of script" in message:
        return "the script ends inside a template literal: it seems cut off, or a backtick is missing"
    if "unterminated comment" in message:
        return "the script ends inside a comment: it seems cut off, or a */ is missing"
    opened, stray = _brackets(root)
    if stray is not None and (stray.start_byte == offset or "unexpected garbage after function body" in message):
        line, column = place_of(source, stray.start_byte)
        return f"the `{(stray.text or b'').decode()}` at line {line}, column {column} closes nothing: one too many"
    if rest:
        return None
    if opened is None:
        return "the script ends in the middle of an expression: it seems cut off, send it whole"
    line, column = place_of(source, opened.start_byte)
    shown = (opened.text or b"").decode()
    return f"the script ends inside the `{shown}` opened at line {line}, column {column}: close it, or send all of it"


def _brackets(root: Node) -> tuple[Node | None, Node | None]:
    """The innermost bracket that is open at the end, and the first closing one without an opening one."""
    stack: list[Node] = []
    stray: Node | None = None
    for leaf in leaves(root):
        text = b"" if leaf.is_missing or leaf.type in _TEXT_NODES else (leaf.text or b"")
        if text in _OPENERS:
            stack.append(leaf)
        elif text in (b")", b"]", b"}"):
            if stack and _OPENERS[stack[-1].text or b""] == text:
                stack.pop()
            elif stray is None:
                stray = leaf
    return (stack[-1] if stack else None), stray


def _character_hint(message: str) -> str | None:
    if re.search(r"illegal character U\+20(?:18|19|1C|1D)", message):
        return "typographic quotes are no JavaScript: write ' or \" or `"
    return None
