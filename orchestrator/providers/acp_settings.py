"""What the ``acp:`` agent can be told, and the short form of it behind ``--agent acp:``.

Guarantees: a setting that makes no sense is an error that names it and says what it accepts.
"""

from __future__ import annotations

import shlex
from typing import Literal, get_args

import msgspec

__all__ = ["AcpSettings", "AnswerText", "PermissionPolicy", "acp_settings_from_spec"]

PermissionPolicy = Literal["refuse", "allow"]
AnswerText = Literal["final", "all"]

_ACCEPTED = "acp:ARGV (for example acp:gemini --acp)"


class AcpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a program that speaks the Agent Client Protocol, and what to answer when it asks.

    Args:
        argv: the program and its arguments, never a shell line.
        cwd: the working directory of the program and of its sessions; the host's own without one.
        env: variables added to the host's environment.
        permissions: what the agent is told when it asks whether it may use a tool: ``refuse`` or ``allow``.
        reuse: whether one process serves all calls, each in a session of its own; ``false`` starts one per call.
        model: for calls that name none themselves; the agent's own choice without one.
        mode: the session mode of calls that name no ``agentType``; the agent's own choice without one.
        auth_method: the id of the protocol's authentication method to ask for, for agents that need it.
        answer: ``final`` is the agent's last message, what it said after its last tool call; ``all`` is everything it
            said.
        structured_retries: how often an answer that does not match the schema is asked for again.
        start_timeout: seconds until the agent must be ready, and until it must have opened a session.
        cancel_grace: seconds a cancelled agent has to answer before its process is ended.
        kill_grace: seconds between SIGTERM and SIGKILL when a process is ended. Both together should stay below the
            engine's ``dispose_grace``.
        max_output: characters an agent may say in one answer.

    Raises:
        ValueError: a value that makes no sense.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    permissions: PermissionPolicy = "refuse"
    reuse: bool = True
    model: str | None = None
    mode: str | None = None
    auth_method: str | None = None
    answer: AnswerText = "final"
    structured_retries: int = 2
    start_timeout: float = 60.0
    cancel_grace: float = 2.0
    kill_grace: float = 1.0
    max_output: int = 16 << 20

    def __post_init__(self) -> None:
        _require(
            not isinstance(self.argv, str) and bool(self.argv) and all(self.argv[:1]),
            "argv",
            'the program and its arguments, such as ["gemini", "--acp"]',
        )
        for name in ("cwd", "model", "mode", "auth_method"):
            value: str | None = getattr(self, name)
            _require(value is None or (value != "" and value == value.strip()), name, "a name that is not empty")
        for name, value in self.env.items():
            holds = name != "" and "=" not in name and "\0" not in name + value
            _require(holds, "env", "a table of environment variables")
        _require(self.permissions in get_args(PermissionPolicy), "permissions", 'either "refuse" or "allow"')
        _require(self.answer in get_args(AnswerText), "answer", 'either "final" or "all"')
        _require(0 <= self.structured_retries <= 20, "structured_retries", "a count from 0 to 20")
        _require(0 < self.start_timeout <= 3600, "start_timeout", "seconds, more than 0 and at most 3600")
        _require(0 <= self.cancel_grace <= 3600, "cancel_grace", "seconds from 0 to 3600")
        _require(0 <= self.kill_grace <= 3600, "kill_grace", "seconds from 0 to 3600")
        _require(self.max_output >= 1, "max_output", "a count of at least 1")


def acp_settings_from_spec(rest: str) -> AcpSettings:
    """Settings from what follows ``acp:`` in ``--agent``: the program and its arguments. All else is at its default.

    Raises:
        ValueError: it names no program, or its quotes do not match.
    """
    try:
        argv = shlex.split(rest)
    except ValueError as error:
        raise ValueError(f"agent acp: {rest!r} cannot be read: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise ValueError(f"agent acp: names no program; write {_ACCEPTED}")
    return AcpSettings(argv=tuple(argv))


def _require(holds: bool, name: str, accepted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {accepted}")
