"""``workflow.toml``: the default agent, named agents and limits of a project, found upward from the working directory.

Guarantees: nothing in the file is ignored: whatever is not understood is an error that names the table, the field and
the nearest name there is, and all of them come in one message. Messages call the file by its path from the working
directory and show no value that may be a secret; the file itself may hold none. Reading it imports and starts nothing
of an agent's.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from orchestrator.agents import AgentProvider
from orchestrator.config import EngineConfig
from orchestrator.providers.kinds import KINDS, make_provider, settings_type
from orchestrator.providers.specs import ProviderSpecError, parse_spec
from orchestrator.toml_table import SECRET_KEY, looks_like_a_secret, nearest, read_table

__all__ = [
    "FILE_NAME",
    "ConfiguredAgent",
    "WorkflowFile",
    "WorkflowFileError",
    "find_workflow_file",
    "read_workflow_file",
]

FILE_NAME = "workflow.toml"
DEFAULT = "default"
"""The table whose agent is the default one when ``agent`` names none."""
_AGENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class WorkflowFileError(ValueError):
    """The file cannot be used; says everything that is wrong with it."""


class ConfiguredAgent(msgspec.Struct, frozen=True):
    """One agent of the file: its kind, the settings of that kind, and its cap over all runs."""

    kind: str
    settings: msgspec.Struct
    max_concurrent: int | None = None

    def make(self) -> AgentProvider:
        """The provider.

        Raises:
            ValueError: it needs something that is not installed, or names something that is not there.
        """
        return make_provider(self.kind, self.settings)


class WorkflowFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says.

    Args:
        name: its path from the working directory, for messages.
        agents: the agents by name, a default one that ``agent`` gives as a spec included.
        default: the name of the default agent; ``None`` when the file has none.
        limits: fields of `EngineConfig`.
    """

    name: str
    agents: dict[str, ConfiguredAgent] = {}
    default: str | None = None
    limits: dict[str, Any] = {}


def find_workflow_file(start: Path) -> Path | None:
    """The nearest ``workflow.toml`` in ``start`` or above it, not looking above a directory that holds ``.git``."""
    for folder in (start, *start.parents):
        if os.path.isfile(folder / FILE_NAME):
            return folder / FILE_NAME
        if os.path.exists(folder / ".git"):
            return None
    return None


def read_workflow_file(path: Path) -> WorkflowFile:
    """Reads and checks a file.

    Raises:
        WorkflowFileError: it cannot be read, is not TOML, or says something that makes no sense.
    """
    shown = _shown(path)
    try:
        content: dict[str, Any] = tomllib.loads(path.read_bytes().decode().removeprefix("\ufeff"))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or "it cannot be read"
        raise WorkflowFileError(f"{shown}: {reason}") from None
    except UnicodeDecodeError:
        raise WorkflowFileError(f"{shown} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise WorkflowFileError(f"{shown} is not TOML: {error}") from None
    except RecursionError:
        raise WorkflowFileError(f"{shown} is nested too deeply") from None
    reader = _Reader(path.parent)
    found = reader.read(content, shown)
    if reader.problems:
        if len(reader.problems) == 1:
            raise WorkflowFileError(f"{shown}: {reader.problems[0]}")
        listed = "".join(f"\n  {problem}" for problem in reader.problems)
        raise WorkflowFileError(f"{shown} has {len(reader.problems)} problems:{listed}")
    return found


class _Reader:
    """Collects what is wrong instead of stopping at the first of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[str] = []

    def read(self, content: dict[str, Any], shown: str) -> WorkflowFile:
        for name in content:
            if name not in ("agent", "agents", "limits"):
                self._unknown("", name, ("agent", "agents", "limits"))
        agents: dict[str, ConfiguredAgent] = {}
        tables = self._table("agents", content.get("agents", {}))
        for name, table in tables.items():
            agent = self._agent(name, table)
            if agent is not None:
                agents[name] = agent
        default = self._default(content.get("agent"), tables, agents)
        return WorkflowFile(name=shown, agents=agents, default=default, limits=self._limits(content.get("limits", {})))

    def _agent(self, name: str, table: object) -> ConfiguredAgent | None:
        where = f"[agents.{name}]"
        if _AGENT_NAME.fullmatch(name) is None:
            self.problems.append(f"{where}: a name is made of letters, digits and _ . -, and begins with none of . -")
            return None
        if not isinstance(table, dict):
            self.problems.append(f"agents.{name} must be a table: write {where} above its settings")
            return None
        fields = dict(cast(dict[str, Any], table))
        self._find_secrets(where, fields)
        kind, cap = fields.pop("use", None), fields.pop("max_concurrent", None)
        if cap is not None and (type(cap) is not int or cap < 1):
            self.problems.append(f"{where} max_concurrent must be a whole number of at least 1")
        if not isinstance(kind, str) or kind not in KINDS:
            accepted = ", ".join(f'"{known}"' for known in KINDS)
            guess = nearest(kind, KINDS) if isinstance(kind, str) else ""
            self.problems.append(f"{where} needs use = one of {accepted}{guess}")
            return None
        settings = read_table(settings_type(kind), fields, where, self.problems, known=("use", "max_concurrent"))
        if settings is None:
            return None
        return ConfiguredAgent(kind, self._beside_the_file(kind, settings), cap)

    def _beside_the_file(self, kind: str, settings: msgspec.Struct) -> msgspec.Struct:
        """Programs, folders and modules that a project's file names are found from where it is, wherever one works."""
        values: Any = settings
        if kind == "python":
            return msgspec.structs.replace(settings, path=self._absolute(values.path or ""))
        if kind not in ("command", "acp"):
            return settings
        changes: dict[str, Any] = {}
        start: str | None = None
        if values.cwd is not None:
            changes["cwd"] = start = self._absolute(values.cwd)
        program: str = values.argv[0]
        if os.sep in program and not os.path.isabs(program):
            path = os.path.relpath(self._absolute(program), start)  # messages show it, and should show no host path
            changes["argv"] = (path if os.sep in path else os.path.join(os.curdir, path), *values.argv[1:])
        return msgspec.structs.replace(settings, **changes)

    def _absolute(self, path: str) -> str:
        return os.path.abspath(self._folder / path)

    def _default(self, agent: object, tables: Mapping[str, object], agents: dict[str, ConfiguredAgent]) -> str | None:
        if agent is None:
            return DEFAULT if DEFAULT in tables else None
        if not isinstance(agent, str):
            self.problems.append(
                "agent must be a text: the name of a table [agents.NAME], or an agent such as --agent has"
            )
            return None
        if agent in tables:
            return agent
        try:
            kind, settings = parse_spec(agent)
        except ProviderSpecError as error:
            guess = "" if ":" in agent else nearest(agent, tables)
            self.problems.append(f"agent {agent!r} names no table [agents.{agent}]{guess}" if guess else str(error))
            return None
        if DEFAULT in tables:
            self.problems.append(f"agent and [agents.{DEFAULT}] both say which agent is the default one; remove one")
        agents[DEFAULT] = ConfiguredAgent(kind, self._beside_the_file(kind, settings))
        return DEFAULT

    def _limits(self, table: object) -> dict[str, Any]:
        limits = self._table("limits", table)
        if limits.pop("provider", None) is not None:
            self.problems.append("[limits] has no provider: name the default agent with agent = … at the top")
        config = read_table(EngineConfig, limits, "[limits]", self.problems, hidden=("provider",))
        return {} if config is None else {name: getattr(config, name) for name in limits}

    def _table(self, name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.problems.append(f"{name} must be a table: write [{name}{'.NAME' if name == 'agents' else ''}]")
            return {}
        return dict(cast(dict[str, Any], value))

    def _unknown(self, where: str, name: str, known: Collection[str]) -> None:
        place = f"{where} has no setting" if where else "there is no"
        self.problems.append(f"{place} {name!r}{nearest(name, known) or ': it has ' + ', '.join(known)}")

    def _find_secrets(self, where: str, fields: dict[str, Any], path: str = "") -> None:
        """Takes out what may be a secret, so that no later message can show it."""
        for name, value in tuple(fields.items()):
            at = f"{path}{name}"
            secret = SECRET_KEY.search(name) is not None and name != "api_key_env"
            if secret or looks_like_a_secret(value):
                del fields[name]
                self.problems.append(
                    f"{where} {at}: a secret does not belong into this file; put it into an environment variable"
                    " (agents that use a key name its variable with api_key_env)"
                )
            elif isinstance(value, dict):
                self._find_secrets(where, cast(dict[str, Any], value), f"{at}.")


def _shown(path: Path) -> str:
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        return path.name
