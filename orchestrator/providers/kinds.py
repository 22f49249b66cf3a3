"""The kinds of agents there are: what each can be told, and how it is made of that.

Guarantees: a kind's own module is imported when the kind is used, not before; what a kind needs and does not find is
one line that says how to install it.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import msgspec

from orchestrator.agents import AgentProvider

__all__ = ["KINDS", "MissingExtraError", "make_provider", "settings_from_spec", "settings_type"]

_SETTINGS = {
    "command": "orchestrator.providers.command_settings:CommandSettings",
    "openai": "orchestrator.providers.openai_settings:OpenAISettings",
    "acp": "orchestrator.providers.acp_settings:AcpSettings",
    "python": "orchestrator.providers.python_function:PythonSettings",
    "rehearse": "orchestrator.providers.rehearse:RehearseSettings",
}
_FROM_SPEC = {
    "command": "orchestrator.providers.command_settings:command_settings_from_spec",
    "openai": "orchestrator.providers.openai_settings:openai_settings_from_spec",
    "acp": "orchestrator.providers.acp_settings:acp_settings_from_spec",
    "python": "orchestrator.providers.python_function:python_settings_from_spec",
}
_MAKERS = {
    "command": "orchestrator.providers.command:CommandProvider",
    "openai": "orchestrator.providers.openai:OpenAIProvider",
    "acp": "orchestrator.providers.acp:AcpProvider",
    "python": "orchestrator.providers.python_function:make_python_provider",
    "rehearse": "orchestrator.providers.rehearse:RehearseProvider",
}
KINDS = tuple(_SETTINGS)
"""Every kind, in the order in which messages list them."""


class MissingExtraError(ValueError):
    """A kind of agent needs a package that is not installed; says which command installs it."""


def settings_type(kind: str) -> type[msgspec.Struct]:
    """The struct whose fields are what an agent of that kind can be told."""
    return cast(type[msgspec.Struct], _load(_SETTINGS[kind]))


def settings_from_spec(kind: str, rest: str) -> msgspec.Struct:
    """The settings that the text behind ``KIND:`` stands for.

    Raises:
        ValueError: it stands for none.
    """
    return cast(msgspec.Struct, _load(_FROM_SPEC[kind])(rest))


def make_provider(kind: str, settings: msgspec.Struct) -> AgentProvider:
    """A provider with these settings.

    Raises:
        MissingExtraError: the kind's extra is not installed.
        ValueError: the settings name something that is not there.
    """
    try:
        return cast(AgentProvider, _load(_MAKERS[kind])(settings))
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("orchestrator"):
            raise
        text = str(error) if "pip install" in str(error) else f"pip install 'workflow-orchestrator[{kind}]'"
        raise MissingExtraError(f"agent {kind}: {text}") from None


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
