"""Who does the work, as one string: ``rehearse``, ``command:ARGV``, ``openai:MODEL`` and so on."""

from __future__ import annotations

import msgspec

from orchestrator.agents import AgentProvider
from orchestrator.providers.kinds import KINDS, make_provider, settings_from_spec
from orchestrator.providers.rehearse import RehearseSettings

__all__ = ["ACCEPTED", "ProviderSpecError", "parse_spec", "provider_from_spec"]

ACCEPTED = (
    "rehearse, command:ARGV (for example command:claude -p), openai:MODEL[@BASE_URL], acp:ARGV (for example "
    "acp:gemini --acp) or python:module:function"
)


class ProviderSpecError(ValueError):
    """The string names no provider; says in one line what is accepted."""


def parse_spec(spec: str) -> tuple[str, msgspec.Struct]:
    """The kind of agent that ``spec`` names, and its settings. Nothing is imported or started for it.

    Raises:
        ProviderSpecError: it names none.
    """
    kind, colon, rest = spec.strip().partition(":")
    if kind == "rehearse" and not colon:
        return kind, RehearseSettings()
    if kind not in KINDS or kind == "rehearse" or not colon:
        raise ProviderSpecError(f"unknown agent {spec!r}: it must be {ACCEPTED}")
    try:
        return kind, settings_from_spec(kind, rest)
    except ValueError as error:
        raise ProviderSpecError(str(error)) from None


def provider_from_spec(spec: str) -> AgentProvider:
    """Makes the provider that ``spec`` names.

    Raises:
        ProviderSpecError: it names none, or one whose extra is not installed.
    """
    kind, settings = parse_spec(spec)
    try:
        return make_provider(kind, settings)
    except ValueError as error:
        raise ProviderSpecError(str(error)) from error
