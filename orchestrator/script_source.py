"""A script's text as the engine sees it: parsed, and with places as the author counts them.

Byte offsets are what the parser speaks, lines and columns (from 1, columns in UTF-16 units, as JavaScript engines
count them) are what errors show; the conversions live here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tree_sitter_javascript
from tree_sitter import Language, Node, Parser

from orchestrator.meta import replace_lone_surrogates

__all__ = ["LINE_BREAK", "describe_place", "leaves", "offset_of", "parse", "place_of", "plain_text"]

LINE_BREAK = re.compile(r"\r\n|[\n\r\u2028\u2029]")

_LANGUAGE = Language(tree_sitter_javascript.language())
_SHOWN = 160


def plain_text(script: str) -> str:
    """The script without a byte order mark or lone surrogates, and with a ``#!`` line made a comment of its length."""
    text = replace_lone_surrogates(script).removeprefix("\ufeff")
    return f"//{text[2:]}" if text.startswith("#!") else text


def parse(source: bytes) -> Node:
    """The root of the syntax tree. Errors do not raise: they are nodes of it."""
    # A parser per call: it keeps state, and engines run on any thread.
    # NUL, legal in comments and strings, would end them for it.
    return Parser(_LANGUAGE).parse(source.replace(b"\0", b" ")).root_node


def place_of(source: bytes, offset: int) -> tuple[int, int]:
    """The line and column of a byte offset."""
    line, _, before = _line_up_to(source, offset)
    return line, len(before.encode("utf-16-le")) // 2 + 1


def describe_place(source: bytes, offset: int) -> str:
    """``(line L, column C)``, the source line, and a caret under the place."""
    line, column = place_of(source, offset)
    _, start, before = _line_up_to(source, offset)
    shown = LINE_BREAK.split(source[start:].decode("utf-8", "replace"), 1)[0]
    cut = max(0, len(before) - 100)
    indent = "".join("\t" if char == "\t" else " " for char in before[cut:])
    return f"(line {line}, column {column})\n{shown[cut : cut + _SHOWN]}\n{indent}^"


def _line_up_to(source: bytes, offset: int) -> tuple[int, int, str]:
    """The number of the line an offset is on, the offset of its start, and its text before the offset."""
    text = source[:offset].decode("utf-8", "replace")
    line, start = 1, 0
    for found in LINE_BREAK.finditer(text):
        line, start = line + 1, found.end()
    before = text[start:]
    return line, offset - len(before.encode()), before


def offset_of(text: str, line: int, column: int) -> tuple[int, int, int]:
    """The byte offsets of a place, and of the start and the end of its line. Places outside are moved inside."""
    start = 0
    breaks = LINE_BREAK.finditer(text)
    for _ in range(line - 1):
        found = next(breaks, None)
        if found is None:
            break
        start = found.end()
    end_match = next(breaks, None)
    end = len(text) if end_match is None else end_match.start()
    units = text[start:end].encode("utf-16-le")[: max(0, column - 1) * 2]
    first = len(text[:start].encode())
    return (
        first + len(units.decode("utf-16-le", "ignore").encode()),
        first,
        first + len(text[start:end].encode()),
    )


def leaves(root: Node) -> Iterator[Node]:
    """Every token of a tree, in order, without recursion."""
    cursor = root.walk()
    while True:
        if not cursor.goto_first_child():
            node = cursor.node
            if node is not None:
                yield node
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return
