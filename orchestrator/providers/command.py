"""Agents that are command-line programs: one process per agent, the prompt on stdin, the answer on stdout.

Guarantees: an agent that failed says why (its exit code or signal and the last lines of its stderr); a program that
cannot be started refuses the agent with a text that names it; after an abort or ``dispose`` nothing the agent started
is left (see `orchestrator.providers.child_process`).

The program learns about the call from its environment: ``WORKFLOW_AGENT_LABEL`` and ``WORKFLOW_AGENT_SEQ`` always,
``WORKFLOW_AGENT_PHASE``, ``WORKFLOW_AGENT_MODEL`` and ``WORKFLOW_AGENT_SCHEMA`` (JSON) where the call has one.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePath

import msgspec

from orchestrator.agents import AgentRequest, AgentResult
from orchestrator.providers.child_process import ChildExit, ChildProcess
from orchestrator.providers.json_answer import JsonAnswerError, parse_json_answer, replace_lone_surrogates
from protocol.errors import ErrorCode, WorkflowError

__all__ = ["CommandProvider"]

MAX_OUTPUT = 16 << 20
KILL_GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL: well under an engine's default ``dispose_grace``."""
MAX_VARIABLE = 100_000
"""Linux refuses to start a program with a variable of 128 KiB or more."""
REASON_LINES = 5
REASON_CHARS = 600

_child_numbers = itertools.count(1)
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")


class CommandProvider:
    """Starts one process per agent.

    With a schema the answer is the JSON in the program's output: all of it, or its last fenced block, or its last
    object in prose. A model behind the program must be told to answer so; see ``examples/agents/with-schema.sh``.

    Args:
        argv: the program and its arguments, never a shell line.
        kill_grace: seconds between SIGTERM and SIGKILL when an agent is aborted or disposed.
        max_output: bytes an agent may print.

    Raises:
        ValueError: ``argv`` is empty.
    """

    def __init__(self, argv: Sequence[str], *, kill_grace: float = KILL_GRACE, max_output: int = MAX_OUTPUT) -> None:
        if not argv or not argv[0]:
            raise ValueError("a command needs a program to run")
        self.argv = tuple(argv)
        self._kill_grace = kill_grace
        self._max_output = max_output
        self._running: set[ChildProcess] = set()

    async def start(self, request: AgentRequest) -> _CommandRun:
        """Starts the program for one agent.

        Raises:
            WorkflowError: it cannot be started, or the run was aborted already.
        """
        if request.signal.aborted:
            raise WorkflowError(ErrorCode.CANCELLED, f"the run was aborted: {request.signal.reason}")
        environment = _environment(request)
        try:
            child = ChildProcess(
                self.argv,
                stdin=replace_lone_surrogates(request.prompt).encode(),
                env=environment,
                output_limit=self._max_output,
                grace=self._kill_grace,
            )
        except (OSError, ValueError) as error:
            raise WorkflowError(ErrorCode.AGENT_START, self._refusal(error)) from error
        self._running.add(child)
        return _CommandRun(child, request, PurePath(self.argv[0]).name, self._max_output, self._running.discard)

    def kill_all(self) -> None:
        """SIGKILL to every agent that runs: for a holder who will not wait for the grace."""
        for child in tuple(self._running):
            child.kill()

    def _refusal(self, error: OSError | ValueError) -> str:
        program = self.argv[0]
        match error:
            case FileNotFoundError():
                return f"the agent command {program!r} was not found; install it, or name another with command:ARGV"
            case PermissionError():
                return f"the agent command {program!r} is not executable"
            case OSError(errno=errno.ENOEXEC):
                return f"the agent command {program!r} is not a program: a script needs a first line such as #!/bin/sh"
            case OSError():
                return f"the agent command {program!r} could not be started: {os.strerror(error.errno or 0)}"
            case _:
                return f"the agent command {program!r} could not be started: {error}"


class _CommandRun:
    def __init__(
        self,
        child: ChildProcess,
        request: AgentRequest,
        program: str,
        max_output: int,
        forget: Callable[[ChildProcess], None],
    ) -> None:
        self.id = f"command-{next(_child_numbers)}"
        self._child = child
        self._request = request
        self._program = program
        self._max_output = max_output
        self._forget = forget
        loop = asyncio.get_running_loop()
        # An abort may come from any thread.
        self._remove_listener = request.signal.add_listener(lambda _reason: loop.call_soon_threadsafe(child.stop))

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._result()

    async def _result(self) -> AgentResult:
        return self._judge(await self._child.wait())

    def _judge(self, end: ChildExit) -> AgentResult:
        if end.overflowed:
            return _failed(f"{self._program} printed more than {self._max_output} bytes and was stopped")
        if self._request.signal.aborted:
            return AgentResult(stop_reason="cancelled", error=f"aborted: {self._request.signal.reason}")
        if end.returncode != 0:
            return _failed(f"{self._program} {_how_it_ended(end.returncode)}{_last_lines(end.stderr_tail)}")
        text = end.stdout.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
        if self._request.schema is None:
            return AgentResult(text=text)
        try:
            return AgentResult(text=text, structured=parse_json_answer(text))
        except JsonAnswerError as error:
            return AgentResult(text=text, stop_reason="error", error=f"{self._program}: {error}")

    async def dispose(self) -> None:
        """Ends whatever of the agent still runs. A caller that gives up waiting makes the end immediate."""
        self._remove_listener()
        try:
            await self._child.close()
        finally:
            self._forget(self._child)


def _failed(reason: str) -> AgentResult:
    return AgentResult(stop_reason="error", error=reason)


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _last_lines(stderr: bytes) -> str:
    text = _TERMINAL_CODES.sub("", stderr.decode("utf-8", "replace").replace("\r", "\n"))
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    kept = "\n".join(lines[-REASON_LINES:])
    if len(kept) > REASON_CHARS:
        kept = "…" + kept[1 - REASON_CHARS :]
    return f": {kept}" if kept else ""


def _environment(request: AgentRequest) -> dict[str, str]:
    """The host's environment and what is to know about the call; nothing of a workflow this one may run inside."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKFLOW_AGENT_")}
    environment["WORKFLOW_AGENT_LABEL"] = _variable(request.label)
    environment["WORKFLOW_AGENT_SEQ"] = str(request.seq)
    if request.phase is not None:
        environment["WORKFLOW_AGENT_PHASE"] = _variable(request.phase)
    if request.model is not None:
        environment["WORKFLOW_AGENT_MODEL"] = _variable(request.model)
    if request.schema is not None:
        schema = msgspec.json.encode(request.schema)
        if len(schema) > MAX_VARIABLE:
            raise WorkflowError(
                ErrorCode.AGENT_START,
                f"the schema of agent {request.seq} has {len(schema)} bytes as JSON; a command agent gets it in an "
                f"environment variable, which holds {MAX_VARIABLE}: make the schema smaller",
            )
        environment["WORKFLOW_AGENT_SCHEMA"] = schema.decode()
    return environment


def _variable(text: str) -> str:
    """Text as an environment variable can hold it: without NUL, and not longer than the kernel takes."""
    data = replace_lone_surrogates(text.replace("\x00", "\ufffd")).encode()
    return data[:MAX_VARIABLE].decode("utf-8", "ignore")
