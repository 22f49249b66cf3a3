"""Finds the ``export const meta = {…}`` header that script files written for Claude Code start with.

Guarantees: the header is found by a real parser, so the same words in comments, strings and prompts are left alone;
the body keeps every line and column of the author's text; the literal that is handed on is a pure literal, so reading
it runs nothing. A header that does not parse is left in the body, for the engine's own parser to report.
"""

from __future__ import annotations

import re

import msgspec
from tree_sitter import Node

from orchestrator.script_hints import hint_for_missing_meta, hint_for_parse_error
from orchestrator.script_source import describe_place, parse, place_of, plain_text
from protocol.errors import ErrorCode, WorkflowError

__all__ = ["HEADER_AND_META", "SplitScript", "hint_for_missing_meta", "hint_for_parse_error", "split_header"]

HEADER_AND_META = (
    "workflow meta rides the `meta` request field, not the script: remove the `export const meta = {...}` statement "
    "from the body, or leave the `meta` field out"
)

_PREFIX = 16 * 1024
_NOT_LINE_BREAK = re.compile(r"[^\r\n\u2028\u2029]")
_WRITE_OUT = (
    "write every value out, because the header is read before the script runs: strings, numbers, true, false, null, "
    "arrays and objects only"
)

_PURE = frozenset(
    (
        "object", "pair", "array", "string", "template_string", "number", "true", "false", "null", "undefined",
        "string_fragment", "escape_sequence", "property_identifier", "comment", "html_comment",
    )
)  # fmt: skip
_IMPURE = {
    "arrow_function": "a function",
    "await_expression": "an await",
    "binary_expression": "a calculation (text in several pieces is written as one)",
    "call_expression": "a call",
    "class": "a class",
    "computed_property_name": "a computed key",
    "function_expression": "a function",
    "generator_function": "a function",
    "identifier": "a variable",
    "member_expression": "a property access",
    "method_definition": "a method",
    "new_expression": "a constructor call",
    "parenthesized_expression": "a parenthesis",
    "regex": "a regular expression",
    "shorthand_property_identifier": "a shorthand property",
    "spread_element": "a spread",
    "subscript_expression": "a property access",
    "template_substitution": "a template literal with a substitution",
    "ternary_expression": "a condition",
    "unary_expression": "an operator",
}


class SplitScript(msgspec.Struct, frozen=True):
    """A script and its header, apart.

    Args:
        body: the script with the header blanked, so that every line and column stays the author's.
        literal: the source text of the header's object literal, ``None`` when the script has no header.
    """

    body: str
    literal: str | None = None


def split_header(script: str) -> SplitScript:
    """Takes the header out of ``script``. Also drops a byte order mark, and makes a ``#!`` line a comment.

    Raises:
        WorkflowError: ``META_INVALID`` when the header is no pure literal, ``SCRIPT_PARSE`` when there are two.
    """
    text = plain_text(script)
    if "export" not in text or "meta" not in text:
        return SplitScript(body=text)
    source = text.encode()
    headers = _find(source)
    if not headers:
        return SplitScript(body=text)
    if len(headers) > 1:
        first, _ = place_of(source, headers[0].start_byte)
        raise WorkflowError(
            ErrorCode.SCRIPT_PARSE,
            f"workflow script does not parse: a second `export const meta` header, the first is at line {first}: "
            f"keep one {describe_place(source, headers[1].start_byte)}",
        )
    literal = _pure_literal(source, headers[0])
    return SplitScript(body=_blanked(source, headers[0], literal), literal=_text_of(source, literal))


def _find(source: bytes) -> list[Node]:
    """The header statements at top level that parse."""
    if len(source) > _PREFIX:
        # A parse of 300 KB takes 40 ms, and nearly every header is at the beginning.
        header = _find_in_prefix(source)
        if header is not None:
            return [header]
    return [node for node in parse(source).children if _is_header(node)]


def _find_in_prefix(source: bytes) -> Node | None:
    """The only header, when the beginning of the script is enough to be sure of that."""
    for node in (children := parse(source[:_PREFIX]).children):
        if _is_header(node):
            # What follows the statement shows that it is over, and that no second one can come.
            over = any(other.start_byte >= node.end_byte and not other.is_extra for other in children)
            return node if over and source.find(b"export", node.end_byte) < 0 else None
        if node.has_error:
            return None  # perhaps a template literal that the cut leaves open, with the words in it
    return None


def _is_header(node: Node) -> bool:
    return node.type == "export_statement" and not node.has_error and _declarator(node) is not None


def _declarator(statement: Node) -> Node | None:
    """The ``meta = …`` of an ``export const`` statement."""
    declaration = statement.child_by_field_name("declaration")
    if declaration is None or declaration.type != "lexical_declaration":
        return None
    kind = declaration.child_by_field_name("kind")
    if kind is None or kind.type != "const":
        return None
    for declarator in declaration.named_children:
        name = declarator.child_by_field_name("name")
        if name is not None and name.text == b"meta" and declarator.child_by_field_name("value") is not None:
            return declarator
    return None


def _pure_literal(source: bytes, statement: Node) -> Node:
    """The object literal of a header. Raises `WorkflowError` when it is anything else."""
    declarator = _declarator(statement)
    value = None if declarator is None else declarator.child_by_field_name("value")
    assert declarator is not None
    assert value is not None
    siblings = [node for node in declarator.parent.named_children if not node.is_extra] if declarator.parent else []
    for other in siblings:
        if other.id != declarator.id:
            raise _impure(source, other, "another variable in the same statement", "declare nothing but meta there")
    if value.type != "object":
        found = _IMPURE.get(value.type, f"a value of another kind ({value.type.replace('_', ' ')})")
        if (inner := _leading_object(value)) is not None:
            todo = "put a `;` behind the closing brace, because the statement goes on with the next line"
            raise _impure(source, _next_token(inner) or value, f"{found} that begins with the object", todo)
        raise _impure(source, value, found, f"write `export const meta = {{…}}`; {_WRITE_OUT}")
    stack = [value]
    while stack:
        node = stack.pop()
        found = _impurity(node)
        if found is not None:
            raise _impure(source, node, found, _WRITE_OUT)
        if node.type != "unary_expression":
            stack.extend(reversed(node.named_children))
    return value


def _next_token(node: Node) -> Node | None:
    """The token where a statement goes on behind an object that should have ended it."""
    at: Node | None = node
    while at is not None:
        if at.next_sibling is not None:
            return at.next_sibling
        at = at.parent
    return None


def _leading_object(value: Node) -> Node | None:
    node: Node | None = value
    while node is not None and node.start_byte == value.start_byte:
        if node.type == "object":
            return node
        node = node.child(0) if node.child_count else None
    return None


def _impurity(node: Node) -> str | None:
    """What makes this one node impure, ``None`` when nothing does; its children are looked at on their own."""
    kind = node.type
    if kind == "number":
        return "a BigInt" if (node.text or b"").endswith(b"n") else None
    if kind == "array":
        return "an empty array element" if _has_hole(node) else None
    if kind == "unary_expression":
        operator, argument = node.child_by_field_name("operator"), node.child_by_field_name("argument")
        if operator is not None and operator.type == "-" and argument is not None and argument.type == "number":
            return _impurity(argument)
    if kind in _PURE:
        return None
    text = " ".join((node.text or b"").decode().split())
    found = _IMPURE.get(kind, f"code ({kind.replace('_', ' ')})")
    return f"{found}, `{text if len(text) <= 40 else text[:39] + '…'}`"


def _has_hole(array: Node) -> bool:
    before = "["
    for child in array.children:
        if child.type == "," and before in ("[", ","):
            return True
        if not child.is_extra:
            before = child.type
    return False


def _impure(source: bytes, node: Node, found: str, todo: str) -> WorkflowError:
    line, column = place_of(source, node.start_byte)
    return WorkflowError(
        ErrorCode.META_INVALID,
        f"invalid meta: export const meta must be a pure literal (line {line}, column {column}): {found}; {todo}",
    )


def _text_of(source: bytes, node: Node) -> str:
    return source[node.start_byte : node.end_byte].decode()


def _blanked(source: bytes, statement: Node, literal: Node) -> str:
    declaration = statement.child_by_field_name("declaration")
    last = declaration.children[-1] if declaration is not None else literal
    # Without a semicolon the statement reaches over the comments behind it: they stay.
    end = last.end_byte if last.type == ";" else literal.end_byte
    blank = _NOT_LINE_BREAK.sub(" ", source[statement.start_byte : end].decode())
    before = statement.prev_sibling
    while before is not None and before.is_extra:
        before = before.prev_sibling
    if before is not None:
        # Two statements that the header kept apart must not become one: `f` above and `(x)` below would be a call.
        blank = f";{blank[1:]}"
    return source[: statement.start_byte].decode() + blank + source[end:].decode()
