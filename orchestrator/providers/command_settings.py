"""What may be said about an agent that is a command-line program, checked at construction.

Guarantees: a senseless setting is a `ValueError` that names the setting and what it accepts; placeholders are filled in
only where a setting is made for it, so that braces in a program's own arguments mean nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import get_args

import msgspec

from orchestrator.providers.command_output import OutputFormat, OutputReader, Paths

__all__ = ["KILL_GRACE", "MAX_OUTPUT", "CommandSettings", "command_settings_from_spec"]

MAX_OUTPUT = 16 << 20
KILL_GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL: well under an engine's default ``dispose_grace``."""
PLACEHOLDERS = {
    "model_args": "model",
    "effort_args": "effort",
    "agent_type_args": "agentType",
    "isolation_args": "isolation",
    "label_args": "label",
    "schema_args": "schema",
    "prompt_args": "prompt",
}
"""Setting → the one placeholder its arguments hold, in the order in which they follow ``argv``."""
OPTIONS = {"effort_args": "effort", "agent_type_args": "agentType", "isolation_args": "isolation"}


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a program as an agent.

    Each ``…_args`` setting is a group of arguments with its placeholder somewhere in it, such as
    ``("--model", "{model}")``. The group follows ``argv`` when the call has the value, and is left out otherwise.
    Paths name fields of the output; see `orchestrator.providers.command_output`.

    Args:
        argv: the program and its arguments, never a shell line.
        cwd: the program's working directory; the host's own without one.
        env: variables added to the host's environment.
        model_args: with ``{model}``, for calls that name a model.
        effort_args: with ``{effort}``; declares the option ``effort``.
        agent_type_args: with ``{agentType}``; declares the option ``agentType``.
        isolation_args: with ``{isolation}``; declares the option ``isolation``.
        label_args: with ``{label}``.
        schema_args: with ``{schema}``, the JSON Schema of calls that have one.
        prompt_args: with ``{prompt}``, for programs that do not read their standard input; it is empty then.
        schema_prompt: whether to write the schema and a request for JSON under the prompt of calls that have one.
        output: ``text``, ``json`` (one document) or ``jsonl`` (one object per line; other lines are skipped).
        text: the path of the answer, for ``json`` and ``jsonl``: in the last line that has it.
        where: for ``jsonl``, path → value: only lines with all of these count for ``text``.
        structured: the path of the answer to a call with a schema; without it, or where it is missing, the JSON in
            the text.
        error: one or more paths of a reported failure: a text, an object with a ``message``, or ``true``.
        usage_input: one or more paths of input tokens, added up.
        usage_output: one or more paths of output tokens, added up.
        timeout: seconds an agent may take, ``None`` for no limit.
        kill_grace: seconds between SIGTERM and SIGKILL when an agent is aborted, timed out or disposed.
        max_output: bytes an agent may print.

    Raises:
        ValueError: a senseless value.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    model_args: tuple[str, ...] = ()
    effort_args: tuple[str, ...] = ()
    agent_type_args: tuple[str, ...] = ()
    isolation_args: tuple[str, ...] = ()
    label_args: tuple[str, ...] = ()
    schema_args: tuple[str, ...] = ()
    prompt_args: tuple[str, ...] = ()
    schema_prompt: bool = False
    output: OutputFormat = "text"
    text: str | None = None
    where: dict[str, str | int | bool] = {}
    structured: str | None = None
    error: str | tuple[str, ...] = ()
    usage_input: str | tuple[str, ...] = ()
    usage_output: str | tuple[str, ...] = ()
    timeout: float | None = None
    kill_grace: float = KILL_GRACE
    max_output: int = MAX_OUTPUT

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv or not self.argv[0]:
            raise ValueError('argv must name a program to run: a list of strings such as ["claude", "-p"]')
        if self.cwd == "":
            raise ValueError("cwd must be a folder")
        if any(not name or "=" in name or "\0" in name + value for name, value in self.env.items()):
            raise ValueError("env must be a table of environment variables")
        for name, placeholder in PLACEHOLDERS.items():
            group: tuple[str, ...] = getattr(self, name)
            if group and not any(f"{{{placeholder}}}" in argument for argument in group):
                raise ValueError(f"{name} must have {{{placeholder}}} in one of its arguments")
        if self.output not in get_args(OutputFormat):
            raise ValueError('output must be "text", "json" or "jsonl"')
        self._check_paths()
        if self.timeout is not None and not 0 < self.timeout <= 10**9:
            raise ValueError("timeout must be a number of seconds over 0")
        if not 0 <= self.kill_grace <= 10**9:
            raise ValueError("kill_grace must be a number of seconds, 0 or more")
        if self.max_output < 1:
            raise ValueError("max_output must be a whole number of bytes over 0")

    def _check_paths(self) -> None:
        paths = {
            "text": _paths(self.text or ()),
            "structured": _paths(self.structured or ()),
            "error": _paths(self.error),
            "usage_input": _paths(self.usage_input),
            "usage_output": _paths(self.usage_output),
            "where": tuple(self.where),
        }
        for name, found in paths.items():
            if found and self.output == "text":
                raise ValueError(f'{name} needs output = "json" or "jsonl": plain text has no fields')
            if any(not part for path in found for part in path.split(".")):
                raise ValueError(f"{name} must be a path of field names such as usage.input_tokens")
        if self.output != "text" and not self.text:
            raise ValueError(f'text must name the field of the answer with output = "{self.output}", such as "result"')
        if self.where and self.output != "jsonl":
            raise ValueError('where needs output = "jsonl": it says which lines count')

    @property
    def supported_options(self) -> tuple[str, ...]:
        """The pass-through options of ``agent()`` that these settings honour."""
        return (*(option for name, option in OPTIONS.items() if getattr(self, name)), "stallMs")

    @property
    def reader(self) -> OutputReader:
        """What reads the program's output."""
        return OutputReader(
            output=self.output,
            text=self.text,
            where=self.where,
            structured=self.structured,
            error=_paths(self.error),
            usage_input=_paths(self.usage_input),
            usage_output=_paths(self.usage_output),
        )

    def arguments(self, values: Mapping[str, str | None]) -> list[str]:
        """The arguments after ``argv`` for a call with these values by placeholder; ``None`` drops its group."""
        found: list[str] = []
        for name, placeholder in PLACEHOLDERS.items():
            value = values.get(placeholder)
            if value is not None:
                group: tuple[str, ...] = getattr(self, name)
                found += [argument.replace(f"{{{placeholder}}}", value) for argument in group]
        return found


def command_settings_from_spec(rest: str) -> CommandSettings:
    """Settings from what follows ``command:`` in ``--agent``, split as a shell would.

    Raises:
        ValueError: it names no program.
    """
    try:
        argv = shlex.split(rest)
    except ValueError as error:
        raise ValueError(f"agent command {rest!r} cannot be read: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise ValueError("agent command: names no program; write for example command:claude -p")
    return CommandSettings(argv=tuple(argv))


def _paths(setting: str | Paths) -> Paths:
    return (setting,) if isinstance(setting, str) else tuple(setting)
