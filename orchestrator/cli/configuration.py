"""What the command line and ``workflow.toml`` say together; the command line wins.

Guarantees: whatever is wrong is a `UsageProblem` that names the option as it was typed, or the file and its table.
Agents are chosen without importing or starting anything of theirs; they are made when `Agents.make` is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.cli.inputs import UsageProblem
from orchestrator.config import EngineConfig
from orchestrator.providers.specs import ProviderSpecError, parse_spec
from orchestrator.toml_table import nearest
from orchestrator.workflow_file import (
    ConfiguredAgent,
    WorkflowFile,
    WorkflowFileError,
    find_workflow_file,
    read_workflow_file,
)

if TYPE_CHECKING:
    from orchestrator.agents import AgentProvider, AgentRegistry

__all__ = ["Agents", "choose_agents", "engine_config", "load_file"]

DEFAULT_NAME = "default"
DEFAULT_AGENT = "rehearse"
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of one command.

    Args:
        default: the name of the one that works when a call names none.
        configured: all of them by name.
        sources: where each is said, for messages.
        file: the name of the file that says which one is the default; ``None`` when the file does not.
    """

    default: str
    configured: dict[str, ConfiguredAgent]
    sources: dict[str, str]
    file: str | None = None

    def make(self) -> dict[str, AgentProvider]:
        """Makes the providers, which imports Python agents.

        Raises:
            UsageProblem: one needs something that is not installed, or names something that is not there.
        """
        made: dict[str, AgentProvider] = {}
        for name, agent in self.configured.items():
            try:
                made[name] = agent.make()
            except ValueError as error:
                raise UsageProblem(f"{self.sources[name]}: {error}") from None
        return made

    def register(self, registry: AgentRegistry, made: Mapping[str, AgentProvider] | None = None) -> None:
        """Registers the providers under their names and caps, made here unless they were before."""
        for name, provider in (self.make() if made is None else made).items():
            registry.register(name, provider, max_concurrent=self.configured[name].max_concurrent)


def load_file(config: str | None, no_config: bool) -> WorkflowFile | None:
    """The file of ``--config``, or the nearest one; ``None`` when there is none or none is wanted."""
    if no_config:
        if config is not None:
            raise UsageProblem("--config and --no-config exclude each other")
        return None
    if config is not None:
        path: Path | None = Path(config)
    else:
        try:
            path = find_workflow_file(Path.cwd())
        except OSError:  # the working directory is gone
            path = None
    try:
        return None if path is None else read_workflow_file(path)
    except WorkflowFileError as error:
        raise UsageProblem(f"--config: {error}" if config is not None else str(error)) from None
    except ValueError:  # a NUL in the name
        raise UsageProblem(f"--config: {config!r} is not a file name") from None


def choose_agents(specs: tuple[str, ...], file: WorkflowFile | None) -> Agents:
    """The agents of ``--agent`` options (``SPEC``, ``NAME=SPEC``, or a ``NAME`` of the file) and of the file."""
    configured = {} if file is None else dict(file.agents)
    sources = {} if file is None else {name: f"{file.name}: [agents.{name}]" for name in file.agents}
    default: str | None = None
    named: set[str] = set()
    for text in specs:
        match = _NAMED.fullmatch(text)
        name, spec = (match[1], match[2]) if match else (DEFAULT_NAME, text)
        if name in named:
            raise UsageProblem(f"--agent names {name!r} twice; write NAME=SPEC for a second provider")
        named.add(name)
        if match is None and file is not None and text in file.agents:
            default = text
            continue
        try:
            configured[name] = ConfiguredAgent(*parse_spec(spec))
        except ProviderSpecError as error:
            guess = nearest(spec, () if file is None else file.agents)
            raise UsageProblem(f"--agent: unknown agent {spec!r}{guess}" if guess else f"--agent: {error}") from None
        sources[name] = "--agent"
        if name == DEFAULT_NAME:
            default = name
    if default is not None:
        return Agents(default=default, configured=configured, sources=sources)
    if file is not None and file.default is not None:
        return Agents(default=file.default, configured=configured, sources=sources, file=file.name)
    configured[DEFAULT_NAME] = ConfiguredAgent(*parse_spec(DEFAULT_AGENT))
    return Agents(default=DEFAULT_NAME, configured=configured, sources=sources)


def engine_config(
    options: Mapping[str, tuple[str, Any]], file: WorkflowFile | None = None, provider: str = DEFAULT_NAME
) -> EngineConfig:
    """The engine's settings; one it refuses is called by its option.

    Args:
        options: option → the field it sets and its value, ``None`` when it was not given.
        file: its limits hold where no option was given.
        provider: the name of the default agent.
    """
    given = {} if file is None else dict(file.limits)
    given |= {field: value for field, value in options.values() if value is not None}
    try:
        return EngineConfig(provider=provider, **given)
    except ValueError as error:
        text = str(error)
        for option, (field, _) in options.items():
            text = text.replace(f"EngineConfig.{field} ", f"{option} ")
        raise UsageProblem(text) from None
