"""Agents that are Python code, named ``module:function``.

Guarantees: whatever is wrong with the name (no such module, an import that fails, no such attribute, not async) is
one line that says which part and what is accepted. Importing runs the user's module; nothing else of it runs here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, cast

import msgspec

from orchestrator.agents import AgentFunction, AgentProvider, FunctionProvider

__all__ = [
    "PythonNameError",
    "PythonSettings",
    "load_python_provider",
    "make_python_provider",
    "python_settings_from_spec",
]

ACCEPTED = "an async function, or an object with an async start(request)"


class PythonNameError(ValueError):
    """``module:function`` does not name an agent."""


class PythonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Python code is an agent.

    Args:
        function: ``module:function``; see `load_python_provider`.
        path: a folder to find the module in, after the current one.

    Raises:
        ValueError: ``function`` is not written like that.
    """

    function: str
    path: str | None = None

    def __post_init__(self) -> None:
        module, colon, path = self.function.partition(":")
        if not colon or not path or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"function must be module:function, for example my_agents:review, not {self.function!r}")


def python_settings_from_spec(rest: str) -> PythonSettings:
    """Settings from what follows ``python:`` in ``--agent``.

    Raises:
        ValueError: it is not ``module:function``.
    """
    try:
        return PythonSettings(function=rest)
    except ValueError:
        raise ValueError(f"agent python: {rest!r} is not module:function, for example my_agents:review") from None


def make_python_provider(settings: PythonSettings) -> AgentProvider:
    """The provider that the settings name.

    Raises:
        PythonNameError: there is none.
    """
    if settings.path is not None and settings.path not in sys.path:
        sys.path.append(settings.path)
    try:
        return load_python_provider(settings.function)
    except PythonNameError as error:
        raise PythonNameError(f"agent python: {error}") from error


def load_python_provider(name: str) -> AgentProvider:
    """Imports ``module:function`` (``function`` may be dotted) and makes a provider of what it names.

    The current directory is importable first, as for ``python -m``.

    Raises:
        PythonNameError: it does not name an agent.
    """
    try:
        settings = PythonSettings(function=name)
    except ValueError:
        raise PythonNameError(f"{name!r} is not module:function, for example my_agents:review") from None
    module_name, _, path = settings.function.partition(":")
    found = _import(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise PythonNameError(f"module {module_name!r} has no {path!r}") from None
    return _as_provider(found, name)


def _import(module_name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise PythonNameError(
                f"there is no module {module_name!r} in the current directory or the Python environment"
            ) from None
        raise PythonNameError(f"importing {module_name!r} failed: it needs the module {missing!r}") from error
    except (Exception, SystemExit) as error:
        raise PythonNameError(f"importing {module_name!r} failed: {_one_line(error)}") from error


def _as_provider(found: Any, name: str) -> AgentProvider:
    if inspect.isclass(found):
        raise PythonNameError(f"{name!r} is a class; name {ACCEPTED}, such as an instance of it")
    start = getattr(found, "start", None)
    if start is not None and _is_async(start):
        return cast(AgentProvider, found)
    if callable(found) and (_is_async(found) or _is_async(type(found).__call__)):
        supported = getattr(found, "supported_options", ())
        return FunctionProvider(cast(AgentFunction, found), tuple(supported))
    if callable(found):
        raise PythonNameError(f"{name!r} is not async; name {ACCEPTED}")
    raise PythonNameError(f"{name!r} is a {type(found).__name__}; name {ACCEPTED}")


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)  # sees through functools.partial and bound methods


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
