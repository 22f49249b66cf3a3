"""Reads what the user typed or named: script files, JSON, sizes, agents.

Guarantees: whatever is wrong with it is a `UsageProblem` whose text is one line and names the input as the user did.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agents import AgentProvider

__all__ = ["DEFAULT_AGENT", "UsageProblem", "parse_agents", "parse_json_option", "parse_size", "read_script"]

DEFAULT_AGENT = "rehearse"
_AGENT_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_SIZE = re.compile(r"(\d+)\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class UsageProblem(Exception):
    """Something the user gave cannot be used. Its text is one line; the exit code is 2."""


def read_script(name: str) -> str:
    """The text of a script file, or of standard input for ``-``. A byte order mark and CRLF stay: they are legal."""
    shown = shown_name(name)
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageProblem(_file_problem(shown, error)) from None
    except ValueError:  # a NUL in the name
        raise UsageProblem(f"{name!r} is not a file name") from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageProblem(
            f"{shown} is not UTF-8 text (byte 0x{data[error.start]:02x} in line {line}): save it as UTF-8"
        ) from None
    if not text.removeprefix("\ufeff").strip():
        raise UsageProblem(f"{shown} is empty: a workflow script ends in `return <json value>`")
    return text


def shown_name(name: str) -> str:
    """How messages call a script: as the user typed it."""
    return "standard input" if name == "-" else name


def parse_json_option(option: str, text: str) -> Any:
    """The value of an option that takes JSON, or ``@FILE`` with JSON in it."""
    import msgspec

    source, data = option, text.encode("utf-8", "surrogateescape")
    if text.startswith("@"):
        source = f"{option} {text}"
        try:
            data = Path(text[1:]).read_bytes().removeprefix(b"\xef\xbb\xbf")
        except OSError as error:
            raise UsageProblem(f"{option}: {_file_problem(text[1:], error)}") from None
        except ValueError:
            raise UsageProblem(f"{option}: {text[1:]!r} is not a file name") from None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = str(error).removeprefix("JSON is malformed: ")
        raise UsageProblem(f"{source} is not JSON: {problem} (it takes JSON text, or @FILE with JSON in it)") from None
    except RecursionError:
        raise UsageProblem(f"{source} is nested too deeply") from None


def parse_size(option: str, text: str) -> int:
    """Bytes: a whole number with an optional K, M or G (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageProblem(f"{option} must be a size such as 256M or 1G, not {text!r}")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def parse_agents(specs: tuple[str, ...]) -> dict[str, AgentProvider]:
    """Providers by name from ``SPEC`` (the default one) and ``NAME=SPEC``, each name at most once."""
    from orchestrator.providers import provider_from_spec

    providers: dict[str, AgentProvider] = {}
    for text in specs:
        match = _AGENT_NAME.fullmatch(text)
        name, spec = (match[1], match[2]) if match else ("default", text)
        if name in providers:
            raise UsageProblem(f"--agent names {name!r} twice; write NAME=SPEC for a second provider")
        try:
            providers[name] = provider_from_spec(spec)
        except ValueError as error:
            raise UsageProblem(f"--agent: {error}") from None
    if "default" not in providers:
        providers["default"] = provider_from_spec(DEFAULT_AGENT)
    return providers


def _file_problem(name: str, error: OSError) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return f"no such file: {name}"
        case IsADirectoryError():
            return f"{name} is a directory, not a file"
        case PermissionError():
            return f"{name} may not be read"
        case _:
            return f"{name} cannot be read: {error.strerror or type(error).__name__}"
