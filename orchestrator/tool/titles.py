"""The name a script gives itself in its ``export const meta`` header, for the title of its card.

Display only: the engine reads the header in the sandbox. Nothing here runs anything of the script or raises.
"""

from __future__ import annotations

from functools import lru_cache

import tree_sitter
import tree_sitter_javascript

from orchestrator.header import split_header

__all__ = ["header_name"]


@lru_cache(maxsize=1)
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_javascript.language()))


def header_name(script: str) -> str | None:
    """The plain string that the header's ``name`` is, ``None`` where there is none."""
    try:
        literal = split_header(script).literal
        if literal is None:
            return None
        tree = _parser().parse(f"({literal})".encode())
    except Exception:  # whatever is wrong with the script, the engine will say it better
        return None
    return _name_in(tree.root_node)


def _name_in(program: tree_sitter.Node) -> str | None:
    node: tree_sitter.Node | None = program
    while node is not None and node.type != "object":
        node = node.named_children[0] if node.named_children else None
    for pair in () if node is None else node.named_children:
        key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
        if key is None or value is None or _text(key).strip("'\"") != "name":
            continue
        fragments = value.named_children
        if value.type in ("string", "template_string") and all(part.type == "string_fragment" for part in fragments):
            return "".join(_text(part) for part in fragments) or None
    return None


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode(errors="replace")
