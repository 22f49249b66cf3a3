"""Who does the work, as one string: ``rehearse``, ``command:ARGV`` or ``python:module:function``."""

from __future__ import annotations

import shlex

from orchestrator.agents import AgentProvider
from orchestrator.providers.command import CommandProvider
from orchestrator.providers.python_function import PythonNameError, load_python_provider
from orchestrator.providers.rehearse import RehearseProvider

__all__ = ["ProviderSpecError", "provider_from_spec"]

ACCEPTED = "rehearse, command:ARGV (for example command:claude -p) or python:module:function"


class ProviderSpecError(ValueError):
    """The string names no provider; says in one line what is accepted."""


def provider_from_spec(spec: str) -> AgentProvider:
    """Makes the provider that ``spec`` names.

    Raises:
        ProviderSpecError: it names none.
    """
    kind, colon, rest = spec.strip().partition(":")
    match kind:
        case "rehearse" if not colon:
            return RehearseProvider()
        case "command" if colon:
            return CommandProvider(_argv(rest))
        case "python" if colon:
            try:
                return load_python_provider(rest)
            except PythonNameError as error:
                raise ProviderSpecError(f"agent python: {error}") from error
        case _:
            raise ProviderSpecError(f"unknown agent {spec!r}: it must be {ACCEPTED}")


def _argv(text: str) -> list[str]:
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise ProviderSpecError(f"agent command {text!r} cannot be read: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise ProviderSpecError("agent command: names no program; write for example command:claude -p")
    return argv
