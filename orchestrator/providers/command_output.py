"""What a program printed, read as an agent's answer: plain text, one JSON document, or one JSON document per line.

Guarantees: pure; whatever the bytes are, the outcome is an answer or one bounded line that says what is missing. Counts
of tokens are whole numbers that are not negative; anything else at their place counts as not reported.

A path names a field: ``result``, ``usage.input_tokens``, ``choices.0.text`` (a number is a place in a list). A ``*``
stands for every member: ``stats.models.*.tokens.prompt``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn, cast

import msgspec

from orchestrator.agents import Usage
from orchestrator.providers.json_answer import replace_lone_surrogates

__all__ = ["CommandOutput", "OutputFormat", "OutputReader", "Paths"]

OutputFormat = Literal["text", "json", "jsonl"]
Paths = tuple[str, ...]
Scalar = str | int | bool

SHOWN = 200
MISSING: Any = object()


class CommandOutput(msgspec.Struct, frozen=True):
    """One reading of a program's output.

    Args:
        text: the answer; ``None`` when it is not there, and ``problem`` says so.
        structured: the value at the path of structured answers; unset without such a path or such a value.
        error: the failure that the output itself reports.
        usage: the tokens it reports; ``None`` when it reports none.
        problem: why there is no text, as the end of a sentence that begins with the program's name.
    """

    text: str | None = None
    structured: Any = msgspec.UNSET
    error: str | None = None
    usage: Usage | None = None
    problem: str = ""


class OutputReader(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the output the parts of an answer are. See `orchestrator.providers.command.CommandSettings`."""

    output: OutputFormat = "text"
    text: str | None = None
    where: Mapping[str, Scalar] = {}
    structured: str | None = None
    error: Paths = ()
    usage_input: Paths = ()
    usage_output: Paths = ()

    def read(self, stdout: bytes) -> CommandOutput:
        """Reads everything a program printed."""
        printed = stdout.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
        if self.output == "text":
            return CommandOutput(text=printed)
        documents = _documents(printed) if self.output == "json" else _lines(printed)
        if not documents:
            what = "JSON" if self.output == "json" else "line of JSON"
            return CommandOutput(problem=f"printed no {what}{_shown(printed)}")
        assert self.text is not None
        found = self._last(documents, self.text, self.where)
        error = self._error(documents)
        return CommandOutput(
            text=None if found is MISSING else _as_text(found),
            structured=self._structured(documents),
            error=error,
            usage=self._usage(documents),
            problem=f"printed no {self.text!r}{_shown(printed)}" if found is MISSING else "",
        )

    def _last(self, documents: list[Any], path: str, where: Mapping[str, Scalar]) -> Any:
        """The value at ``path`` in the last document that has one and matches; null is no value."""
        for document in reversed(documents):
            if all(expected in _find(document, at) for at, expected in where.items()):
                for value in _find(document, path):
                    if value is not None:
                        return value
        return MISSING

    def _structured(self, documents: list[Any]) -> Any:
        if self.structured is None:
            return msgspec.UNSET
        value = self._last(documents, self.structured, {})
        return msgspec.UNSET if value is MISSING else replace_lone_surrogates(value)

    def _error(self, documents: list[Any]) -> str | None:
        for path in self.error:
            value = self._last(documents, path, {})
            if value is MISSING or value is False or value in ("", 0, [], {}):
                continue
            if value is True:
                text = self._last(documents, self.text or "", self.where)
                return f"it reports {path}" if text in (MISSING, "") else _as_text(text)
            if isinstance(value, dict) and isinstance(message := cast(dict[str, Any], value).get("message"), str):
                return replace_lone_surrogates(message)
            return _as_text(value)
        return None

    def _usage(self, documents: list[Any]) -> Usage | None:
        given, produced = self._sum(documents, self.usage_input), self._sum(documents, self.usage_output)
        if given is None and produced is None:
            return None
        return Usage(input_tokens=given or 0, output_tokens=produced or 0)

    def _sum(self, documents: list[Any], paths: Paths) -> int | None:
        """The counts at all paths added up, each from the last document that has it; ``None`` when none is there."""
        total: int | None = None
        for path in paths:
            for document in reversed(documents):
                counts = [value for value in _find(document, path) if type(value) is int and value >= 0]
                if counts:
                    total = (total or 0) + sum(counts)
                    break
        return total


def _find(document: Any, path: str) -> list[Any]:
    """Every value at ``path``, which is more than one only where it has a ``*``."""
    values = [document]
    for name in path.split("."):
        below: list[Any] = []
        for value in values:
            match value:
                case dict():
                    members = cast(dict[str, Any], value)
                    if name == "*":
                        below += members.values()
                    elif name in members:
                        below.append(members[name])
                case list():
                    items = cast(list[Any], value)
                    if name == "*":
                        below += items
                    elif name.isdecimal() and int(name) < len(items):
                        below.append(items[int(name)])
                case _:
                    pass
        values = below
    return values


def _documents(printed: str) -> list[Any]:
    """The one document; a program that prints a line of greeting before it is forgiven."""
    found = _decode(printed)
    if found is MISSING:
        start = printed.find("\n{")
        found = MISSING if start < 0 else _decode(printed[start:])
    return [] if found is MISSING else [found]


def _lines(printed: str) -> list[Any]:
    """The objects among the lines: programs mix plain lines in, and they mean nothing."""
    found: Iterable[Any] = (_decode(line) for line in printed.split("\n") if line.lstrip().startswith("{"))
    return [document for document in found if document is not MISSING]


def _decode(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return MISSING


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    return json.dumps(replace_lone_surrogates(value), ensure_ascii=False)


def _shown(printed: str) -> str:
    text = " ".join(printed.split())
    if not text:
        return ": it printed nothing"
    return f": {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
