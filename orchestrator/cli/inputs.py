"""Reads what the user typed or named: script files, JSON, sizes.

Guarantees: whatever is wrong with it is a `UsageProblem` whose text is one line and names the input as the user did.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

__all__ = ["UsageProblem", "parse_json_option", "parse_size", "read_script"]


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
    from orchestrator.toml_table import parse_size as bytes_of

    size = bytes_of(text)
    if size is None:
        raise UsageProblem(f"{option} must be a size such as 256M or 1G, not {text!r}")
    return size


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
