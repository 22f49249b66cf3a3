"""Makes a string that matches a regular expression of a schema.

Covers what the schemas of real scripts use: literals, classes, groups, alternation, repetition, anchors and the
common escapes. Anything else raises `CannotSample`, and so does a string that turns out not to match.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random

import msgspec

from orchestrator.schema_patterns import pattern_matches

__all__ = ["CannotSample", "sample_match"]

MAX_LENGTH = 100_000

_LETTERS = string.ascii_lowercase
_WORD = string.ascii_letters + string.digits
_POOL = _LETTERS + string.ascii_uppercase + string.digits + " -_.,:;/@#%&=+*!?()[]{}<>|'\"$^~`\\\t\n"
_CLASSES = {"d": string.digits, "w": _WORD + "_", "s": " \t\n"}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_PROPERTIES = {
    "L": string.ascii_letters, "Letter": string.ascii_letters, "Alphabetic": string.ascii_letters,
    "Lu": string.ascii_uppercase, "Ll": _LETTERS, "N": string.digits, "Nd": string.digits, "P": ".,;:!?-",
}  # fmt: skip
_TRIES = 40


class CannotSample(Exception):
    """No stand-in could be made. The message says of what."""


class _Chars(msgspec.Struct, frozen=True):
    """One character out of these."""

    chars: str


class _Sequence(msgspec.Struct, frozen=True):
    parts: tuple[_Node, ...]


class _Choice(msgspec.Struct, frozen=True):
    branches: tuple[_Node, ...]


class _Repeat(msgspec.Struct, frozen=True):
    part: _Node
    least: int
    most: int | None


_Node = _Chars | _Sequence | _Choice | _Repeat
_EMPTY = _Sequence(())


def sample_match(pattern: str, rng: Random, min_length: int = 0, max_length: int | None = None) -> str:
    """A string with a match of ``pattern``, of a length between the bounds.

    Raises:
        CannotSample: the pattern uses something that is not covered, or no attempt fits.
    """
    parser = _Parser(pattern)
    node = parser.parse()
    most = MAX_LENGTH if max_length is None else min(max_length, MAX_LENGTH)
    for attempt in range(_TRIES):
        # Repetitions grow from attempt to attempt, so that short matches come first and long ones are reached.
        growth = attempt % 4 if attempt < 8 else min(most, max(4, min_length) * attempt // 8)
        pieces: list[str] = []
        _write(node, rng, growth, pieces, most)
        text = "".join(pieces)
        if len(text) < min_length and not parser.ends:
            text += "".join(rng.choices(_LETTERS, k=min_length - len(text)))
        elif len(text) < min_length and not parser.starts:
            text = "".join(rng.choices(_LETTERS, k=min_length - len(text))) + text
        if min_length <= len(text) <= most and pattern_matches(pattern, text):
            return text
    raise CannotSample(f"no string of the right length found for the pattern {pattern[:100]!r}")


def _write(node: _Node, rng: Random, growth: int, pieces: list[str], most: int) -> None:
    match node:
        case _Chars(chars):
            pieces.append(rng.choice(chars))
        case _Sequence(parts):
            for part in parts:
                _write(part, rng, growth, pieces, most)
        case _Choice(branches):
            _write(rng.choice(branches), rng, growth, pieces, most)
        case _Repeat(part, least, upper):
            extra = growth if upper is None else min(growth, upper - least)
            for _ in range(least + rng.randint(0, max(0, extra))):
                _write(part, rng, growth, pieces, most)
                if len(pieces) > most:
                    return


class _Parser:
    """A recursive descent over one pattern. ``starts`` and ``ends`` say whether it is anchored there."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self.starts = False
        self.ends = False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._unknown()
        return node

    def _unknown(self) -> CannotSample:
        return CannotSample(f"a stand-in for the pattern {self._text[:100]!r}: position {self._at} is not understood")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._unknown()
        self._at += 1
        return char

    def _accept(self, token: str) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > 50:
            raise self._unknown()
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
        while True:
            if self._accept("*"):
                part = _Repeat(part, 0, None)
            elif self._accept("+"):
                part = _Repeat(part, 1, None)
            elif self._accept("?"):
                part = _Repeat(part, 0, 1)
            elif self._peek() == "{" and (bounds := self._bounds()) is not None:
                part = _Repeat(part, *bounds)
            else:
                return part
            self._accept("?")  # lazy: the same strings match

    def _bounds(self) -> tuple[int, int | None] | None:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None
        self._at = end + 1
        return int(low), int(high) if high else None if comma else int(low)

    def _atom(self) -> _Node:
        char = self._take()
        match char:
            case "^":
                self.starts = True
                return _EMPTY
            case "$":
                self.ends = True
                return _EMPTY
            case "(":
                return self._group()
            case "[":
                return _Chars(self._class())
            case ".":
                return _Chars(_LETTERS)
            case "\\":
                if self._accept("b") or self._accept("B"):
                    return _EMPTY
                return _Chars(_preferred(self._escape()))
            case _:
                return _Chars(char)

    def _group(self) -> _Node:
        if self._accept("?<") or self._accept("?P<"):
            while self._take() != ">":
                pass
        elif self._accept("?") and not self._accept(":"):
            raise self._unknown()
        node = self._choice()
        if not self._accept(")"):
            raise self._unknown()
        return node

    def _escape(self) -> str:
        """The characters an escape stands for, the backslash already taken."""
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return _without(_CLASSES[char.lower()])
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._code_point(2)
        if char == "u":
            return self._braced(_from_hex) if self._accept("{") else self._code_point(4)
        if char == "p" and self._accept("{"):
            return self._braced(lambda name: _PROPERTIES.get(name.rpartition("=")[2], ""))
        if char.isalnum():
            raise self._unknown()
        return char

    def _code_point(self, digits: int) -> str:
        text = self._text[self._at : self._at + digits]
        self._at += digits
        return self._known(_from_hex(text) if len(text) == digits else "")

    def _braced(self, read: Callable[[str], str]) -> str:
        name, _, _ = self._text[self._at :].partition("}")
        self._at += len(name) + 1
        return self._known(read(name))

    def _known(self, chars: str) -> str:
        if not chars:
            raise self._unknown()
        return chars

    def _class(self) -> str:
        negated = self._accept("^")
        chars: list[str] = []
        while not self._accept("]"):
            item = self._class_item()
            if len(item) == 1 and self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                last = self._class_item()
                if len(last) != 1 or last < item:
                    raise self._unknown()
                # All of ASCII, but of a larger script only its beginning: one character is wanted.
                item = "".join(map(chr, range(ord(item), min(ord(last), ord(item) + 128) + 1)))
            chars.append(item)
        found = "".join(chars)
        return self._known(_preferred(_without(found)) if negated else found)

    def _class_item(self) -> str:
        char = self._take()
        if char == "[":  # nested classes and set operations belong to the regex engine's own dialect
            raise self._unknown()
        return self._escape() if char == "\\" else char


def _from_hex(text: str) -> str:
    try:
        code = int(text, 16)
    except ValueError:
        return ""
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else ""


def _without(chars: str) -> str:
    return "".join(char for char in _POOL if char not in chars)


def _preferred(chars: str) -> str:
    """Of many characters the readable ones."""
    return "".join(char for char in chars if char.isalnum()) or chars
