"""Agents that are command-line programs: one process per agent, the prompt on stdin, the answer on stdout.

Guarantees: an agent that failed says why (its exit code or signal, and the failure it reports or the last lines of its
stderr); a program that cannot be started refuses the agent with a text that names it; after an abort, a timeout or
``dispose`` nothing the agent started is left (see `orchestrator.providers.child_process`).

The program learns about the call from its environment: ``WORKFLOW_AGENT_LABEL`` and ``WORKFLOW_AGENT_SEQ`` always,
``WORKFLOW_AGENT_PHASE``, ``WORKFLOW_AGENT_MODEL``, ``WORKFLOW_AGENT_SCHEMA`` (JSON), ``WORKFLOW_AGENT_EFFORT``,
``WORKFLOW_AGENT_TYPE`` and ``WORKFLOW_AGENT_ISOLATION`` where the call has one; and from arguments, where the settings
say so.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePath

import msgspec

from orchestrator.agents import AgentRequest, AgentResult
from orchestrator.providers.child_endings import how_it_ended, last_lines, why_not_started
from orchestrator.providers.child_process import ChildExit, ChildProcess
from orchestrator.providers.command_output import CommandOutput
from orchestrator.providers.command_settings import CommandSettings
from orchestrator.providers.json_answer import JsonAnswerError, parse_json_answer, replace_lone_surrogates
from protocol.errors import ErrorCode, WorkflowError

__all__ = ["CommandProvider", "CommandSettings"]

MAX_VARIABLE = 100_000
"""Linux refuses to start a program with a variable or an argument of 128 KiB or more."""

_child_numbers = itertools.count(1)


class CommandProvider:
    """Starts one process per agent.

    With a schema the answer is the value at the path ``structured`` or else the JSON in the program's text: all of it,
    or its last fenced block, or its last object in prose. Whether a model behind the program is told to answer so is a
    setting (``schema_args``, ``schema_prompt``).

    Args:
        settings: what to start and how to read it; a list of strings is an ``argv`` with all else as it is by default.

    Raises:
        ValueError: a senseless setting.
    """

    def __init__(self, settings: CommandSettings | Sequence[str]) -> None:
        self.settings = settings if isinstance(settings, CommandSettings) else CommandSettings(argv=tuple(settings))
        self.supported_options = self.settings.supported_options
        self._reader = self.settings.reader
        self._running: set[ChildProcess] = set()

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, without those that depend on a call."""
        return self.settings.argv

    async def start(self, request: AgentRequest) -> _CommandRun:
        """Starts the program for one agent.

        Raises:
            WorkflowError: it cannot be started, or the run was aborted already.
        """
        if request.signal.aborted:
            raise WorkflowError(ErrorCode.CANCELLED, f"the run was aborted: {request.signal.reason}")
        settings = self.settings
        prompt, schema = _prompt(request, settings.schema_prompt), _schema(request)
        environment = _environment(request, schema, settings.env)
        arguments = settings.arguments(
            {
                "model": request.model,
                "effort": request.options.get("effort"),
                "agentType": request.options.get("agentType"),
                "isolation": request.options.get("isolation"),
                "label": request.label,
                "schema": schema,
                "prompt": _checked_argument(prompt, request.seq) if settings.prompt_args else None,
            }
        )
        try:
            child = ChildProcess(
                (*settings.argv, *(replace_lone_surrogates(text.replace("\x00", "\ufffd")) for text in arguments)),
                stdin=b"" if settings.prompt_args else replace_lone_surrogates(prompt).encode(),
                env=environment,
                output_limit=settings.max_output,
                grace=settings.kill_grace,
                cwd=settings.cwd,
            )
        except (OSError, ValueError) as error:
            raise WorkflowError(ErrorCode.AGENT_START, self._refusal(error)) from error
        self._running.add(child)
        return _CommandRun(child, request, settings, self._reader.read, self._running.discard)

    def kill_all(self) -> None:
        """SIGKILL to every agent that runs: for a holder who will not wait for the grace."""
        for child in tuple(self._running):
            child.kill()

    def _refusal(self, error: OSError | ValueError) -> str:
        if (
            isinstance(error, FileNotFoundError)
            and self.settings.cwd is not None
            and error.filename == self.settings.cwd
        ):
            why = "cannot start in its working directory: there is no such folder (cwd)"
        else:
            why = why_not_started(error)
        return f"the agent command {self.argv[0]!r} {why}"


class _CommandRun:
    def __init__(
        self,
        child: ChildProcess,
        request: AgentRequest,
        settings: CommandSettings,
        read: Callable[[bytes], CommandOutput],
        forget: Callable[[ChildProcess], None],
    ) -> None:
        self.id = f"command-{next(_child_numbers)}"
        self._child = child
        self._request = request
        self._settings = settings
        self._program = PurePath(settings.argv[0]).name
        self._read = read
        self._forget = forget
        self._given_up: str | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        loop = asyncio.get_running_loop()
        if settings.timeout is not None:
            text = f"took longer than {settings.timeout:g} s (timeout) and was stopped"
            self._timers["timeout"] = loop.call_later(settings.timeout, self._give_up, text)
        stall = request.options.get("stallMs")
        if stall is not None:
            self._check_stall(float(stall))
        # An abort may come from any thread.
        self._remove_listener = request.signal.add_listener(lambda _reason: loop.call_soon_threadsafe(child.stop))

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._result()

    async def _result(self) -> AgentResult:
        try:
            return self._judge(await self._child.wait())
        finally:
            self._stop_timers()

    def _check_stall(self, limit: float) -> None:
        loop = asyncio.get_running_loop()
        due = self._child.last_output + limit / 1000
        if due <= loop.time():
            self._give_up(f"printed nothing for {limit:g} ms (stallMs) and was stopped")
        else:
            self._timers["stall"] = loop.call_at(due, self._check_stall, limit)

    def _give_up(self, why: str) -> None:
        self._stop_timers()
        self._given_up = why
        self._child.stop()

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _judge(self, end: ChildExit) -> AgentResult:
        if end.overflowed:
            limit = self._settings.max_output
            return _failed(f"{self._program} printed more than {limit} bytes (max_output) and was stopped")
        if self._request.signal.aborted:
            return AgentResult(stop_reason="cancelled", error=f"aborted: {self._request.signal.reason}")
        output = self._read(end.stdout)
        if self._given_up is not None:
            return _failed(f"{self._program} {self._given_up}{last_lines(end.stderr_tail)}", output)
        if end.returncode != 0:
            reason = _reason(output.error) or last_lines(end.stderr_tail)
            return _failed(f"{self._program} {how_it_ended(end.returncode)}{reason}", output)
        if output.error is not None:
            return _failed(f"{self._program} failed{_reason(output.error)}", output)
        if self._request.schema is not None:
            return self._structured(output)
        if output.text is None:
            return _failed(f"{self._program} {output.problem}{last_lines(end.stderr_tail)}", output)
        return AgentResult(text=output.text, usage=output.usage)

    def _structured(self, output: CommandOutput) -> AgentResult:
        text = output.text or ""
        if output.structured is not msgspec.UNSET:
            return AgentResult(text=text, structured=output.structured, usage=output.usage)
        if output.text is None:
            return _failed(f"{self._program} {output.problem}", output)
        try:
            return AgentResult(text=text, structured=parse_json_answer(text), usage=output.usage)
        except JsonAnswerError as error:
            return AgentResult(text=text, stop_reason="error", error=f"{self._program}: {error}", usage=output.usage)

    async def dispose(self) -> None:
        """Ends whatever of the agent still runs. A caller that gives up waiting makes the end immediate."""
        self._remove_listener()
        self._stop_timers()
        try:
            await self._child.close()
        finally:
            self._forget(self._child)


def _failed(reason: str, output: CommandOutput | None = None) -> AgentResult:
    return AgentResult(stop_reason="error", error=reason, usage=None if output is None else output.usage)


def _reason(reported: str | None) -> str:
    return "" if reported is None else last_lines(reported.encode("utf-8", "replace"))


def _prompt(request: AgentRequest, with_schema: bool) -> str:
    if request.schema is None or not with_schema:
        return request.prompt
    from orchestrator.providers.structured import instruction

    return f"{request.prompt}\n\n{instruction(request.schema)}"


def _schema(request: AgentRequest) -> str | None:
    if request.schema is None:
        return None
    schema = msgspec.json.encode(request.schema)
    if len(schema) > MAX_VARIABLE:
        raise WorkflowError(
            ErrorCode.AGENT_START,
            f"the schema of agent {request.seq} has {len(schema)} bytes as JSON; a command agent gets it in an "
            f"environment variable, which holds {MAX_VARIABLE}: make the schema smaller",
        )
    return schema.decode()


def _checked_argument(prompt: str, seq: int) -> str:
    size = len(replace_lone_surrogates(prompt).encode())
    if size > MAX_VARIABLE:
        raise WorkflowError(
            ErrorCode.AGENT_START,
            f"the prompt of agent {seq} has {size} bytes; prompt_args passes it as an argument, which holds "
            f"{MAX_VARIABLE}: leave prompt_args out where the program reads its standard input",
        )
    return prompt


def _environment(request: AgentRequest, schema: str | None, added: Mapping[str, str]) -> dict[str, str]:
    """The host's environment and what is to know about the call; nothing of a workflow this one may run inside."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKFLOW_AGENT_")}
    environment.update(added)
    known = {
        "LABEL": request.label,
        "SEQ": str(request.seq),
        "PHASE": request.phase,
        "MODEL": request.model,
        "EFFORT": request.options.get("effort"),
        "TYPE": request.options.get("agentType"),
        "ISOLATION": request.options.get("isolation"),
        "SCHEMA": schema,
    }
    for name, value in known.items():
        if value is not None:
            environment[f"WORKFLOW_AGENT_{name}"] = _variable(value)
    return environment


def _variable(text: str) -> str:
    """Text as an environment variable can hold it: without NUL, and not longer than the kernel takes."""
    data = replace_lone_surrogates(text.replace("\x00", "\ufffd")).encode()
    return data[:MAX_VARIABLE].decode("utf-8", "ignore")
