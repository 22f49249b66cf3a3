"""Agent providers that ship with the engine, for use from Python and from the ``workflow`` command."""

from orchestrator.providers.command import CommandProvider, CommandSettings
from orchestrator.providers.python_function import PythonNameError, load_python_provider
from orchestrator.providers.rehearse import RehearsalPhase, RehearseProvider
from orchestrator.providers.specs import ProviderSpecError, provider_from_spec

__all__ = [
    "CommandProvider",
    "CommandSettings",
    "ProviderSpecError",
    "PythonNameError",
    "RehearsalPhase",
    "RehearseProvider",
    "load_python_provider",
    "provider_from_spec",
]
