"""Agent providers that ship with the engine, for use from Python and from the ``workflow`` command."""

from orchestrator.providers.acp_settings import AcpSettings
from orchestrator.providers.command import CommandProvider, CommandSettings
from orchestrator.providers.openai_settings import OpenAISettings
from orchestrator.providers.python_function import PythonNameError, PythonSettings, load_python_provider
from orchestrator.providers.rehearse import RehearsalPhase, RehearseProvider, RehearseSettings
from orchestrator.providers.specs import ProviderSpecError, provider_from_spec

__all__ = [
    "AcpSettings",
    "CommandProvider",
    "CommandSettings",
    "OpenAISettings",
    "ProviderSpecError",
    "PythonNameError",
    "PythonSettings",
    "RehearsalPhase",
    "RehearseProvider",
    "RehearseSettings",
    "load_python_provider",
    "provider_from_spec",
]
