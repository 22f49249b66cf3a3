"""``workflow run``: one script from its file to its result.

Guarantees: stdout carries results only, also when a Python agent prints; Ctrl-C or SIGTERM cancels through the abort
signal and leaves nothing running; a second one does not wait for agents; the terminal is restored on every path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Generator
from typing import Any

import msgspec

from orchestrator.agents import AgentProvider
from orchestrator.cli.configuration import Agents
from orchestrator.cli.inputs import UsageProblem, read_script, shown_name
from orchestrator.cli.report import (
    json_bytes,
    outcome_of,
    outcome_of_refusal,
    rehearsal_notice,
    rehearsal_outcome,
    rehearsal_summary,
    summary,
    walls_notice,
)
from orchestrator.cli.view import View, make_view
from orchestrator.cli.writer import LineWriter
from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine, WorkflowStartRequest
from orchestrator.header import hint_for_missing_meta, split_header
from orchestrator.providers import RehearseProvider
from orchestrator.results import WorkflowResult
from orchestrator.signals import AbortController
from protocol.errors import ErrorCode, WorkflowError

__all__ = ["RunOptions", "make_request", "refusal_text", "run_command"]

HARD_EXIT_AFTER = 0.5
"""Seconds a second signal leaves for an orderly end before the process just goes; its workers go with it."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
USAGE_CODES = frozenset({ErrorCode.META_INVALID, ErrorCode.SCRIPT_PARSE, ErrorCode.INVALID_ARGUMENT})


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says, already checked as far as it can be without an engine."""

    file: str
    request: WorkflowStartRequest
    agents: Agents
    providers: dict[str, AgentProvider]
    config: EngineConfig
    as_json: bool = False
    events: str | None = None


class _Ending(msgspec.Struct, frozen=True):
    code: int
    output: bytes = b""


def make_request(file: str, meta: Any, args: Any) -> WorkflowStartRequest:
    """Reads the script and puts the request together.

    Raises:
        UsageProblem: the file cannot be used, or nothing says what the workflow is called.
    """
    script = read_script(file)
    if meta is None and _lacks_header(script):
        hint = hint_for_missing_meta(script)
        if hint is not None:
            raise UsageProblem(f"{shown_name(file)} has no meta. {hint}")
        raise UsageProblem(
            f"{shown_name(file)} does not say what it is: start it with "
            "export const meta = {name: '…', description: '…'}, "
            """or pass --meta '{"name": "…", "description": "…"}'"""
        )
    return WorkflowStartRequest(script=script, meta=meta, args=args)


def _lacks_header(script: str) -> bool:
    try:
        return split_header(script).literal is None
    except WorkflowError:  # it has one that is wrong: the engine says so, to `--json` as well
        return False


def refusal_text(file: str, error: WorkflowError) -> str:
    """The text for a script that never became a run."""
    return f"{shown_name(file)}: {error.message}"


def run_command(options: RunOptions) -> int:
    """Runs the script and writes its result. Returns the exit code."""
    with _EventFile(options.events) as events, contextlib.redirect_stdout(sys.stderr):
        ending = asyncio.run(_run(options, events))
    sys.stdout.buffer.write(ending.output)
    sys.stdout.buffer.flush()
    return ending.code


async def _run(options: RunOptions, events: _EventFile) -> _Ending:
    controller = AbortController()
    options.request.signal = controller.signal
    view = make_view()
    try:
        with _Interrupts(controller, options.providers, view) as interrupts, _logging_to(view):
            return await _attempt(options, events, view, interrupts)
    finally:
        view.close()


async def _attempt(options: RunOptions, events: _EventFile, view: View, interrupts: _Interrupts) -> _Ending:
    rehearsals = {name: made for name, made in options.providers.items() if isinstance(made, RehearseProvider)}
    if rehearsals:
        view.say(rehearsal_notice(tuple(rehearsals), all_of_them=len(rehearsals) == len(options.providers)))
    if options.agents.file is not None:
        view.say(f"agent {options.agents.default} ({options.agents.file})")
    began = time.monotonic()
    async with WorkflowEngine(options.config) as engine:
        options.agents.register(engine.agents, options.providers)
        engine.events.subscribe(view.take)
        engine.events.subscribe(events.take)
        try:
            async with await engine.start(options.request) as run:
                if notice := walls_notice(engine):
                    view.say(notice)
                run_id = str(run.id)
                result = await run.result
        except WorkflowError as error:
            return _refused(options, error, view, interrupts)
    events.finish(view)
    view.close()
    view.say(summary(result, time.monotonic() - began))
    outcome = outcome_of(run_id, result)
    for rehearsal in rehearsals.values():
        view.say(rehearsal_summary(rehearsal))
    if rehearsals:
        outcome["rehearsal"] = [phase for made in rehearsals.values() for phase in rehearsal_outcome(made)]
    if options.as_json:
        output = json_bytes(outcome, compact=events.to_stdout)
    else:
        output = json_bytes(result.value, compact=events.to_stdout) if result.stop_reason == "completed" else b""
    return _Ending(_exit_code(result, interrupts), output)


def _refused(options: RunOptions, error: WorkflowError, view: View, interrupts: _Interrupts) -> _Ending:
    view.close()
    view.say(f"workflow: {refusal_text(options.file, error)}")
    output = json_bytes(outcome_of_refusal(error)) if options.as_json else b""
    if interrupts.number is not None:
        return _Ending(128 + interrupts.number, output)
    return _Ending(2 if error.code in USAGE_CODES else 1, output)


def _exit_code(result: WorkflowResult, interrupts: _Interrupts) -> int:
    if result.stop_reason == "completed":
        return 0
    if result.stop_reason == "cancelled" and interrupts.number is not None:
        return 128 + interrupts.number
    return 1


class _Interrupts:
    """What signals do while a run goes on: the first cancels, the second kills agents, the third leaves at once."""

    def __init__(self, controller: AbortController, providers: dict[str, AgentProvider], view: View) -> None:
        self.number: int | None = None
        self._count = 0
        self._controller = controller
        self._providers = providers
        self._view = view
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _Interrupts:
        for number in SIGNALS:
            # Whoever started us with a signal ignored (nohup) wants it ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _take(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1:
            self.number = int(number)
            self._view.say("cancelling; once more stops everything at once")
            self._controller.abort(f"stopped by {number.name}")
            return
        for provider in self._providers.values():
            kill_all = getattr(provider, "kill_all", None)
            if kill_all is not None:
                kill_all()
        if self._count == 2:
            self._loop.call_later(HARD_EXIT_AFTER, self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self._view.close()
        self._view.say("workflow: stopped without waiting for agents that ignore the abort")
        self._view.close()
        os._exit(128 + (self.number or signal.SIGINT))


class _EventFile:
    """Every event of the run as one line of JSON, in a file or on stdout."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.to_stdout = name == "-"
        self._fd: int | None = None
        self._writer: LineWriter | None = None

    def __enter__(self) -> _EventFile:
        if self.to_stdout:
            self._writer = LineWriter(sys.stdout.fileno())
        elif self._name is not None:
            try:
                self._fd = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise UsageProblem(f"--events {self._name} cannot be written: {reason}") from None
            self._writer = LineWriter(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def take(self, event: Any) -> object:
        """Writes one event. What it returns while the reader is slow slows the run down, so that none is lost."""
        writer = self._writer
        if writer is None:
            return None
        writer.put(msgspec.json.encode(event) + b"\n")
        return writer.caught_up() if writer.behind else None

    def finish(self, view: View) -> None:
        """Writes what is left; says so when that is not possible."""
        if self._writer is None:
            return
        complete = self._writer.finish()
        if self._writer.problem is not None and not isinstance(self._writer.problem, BrokenPipeError):
            view.say(f"warning: --events {self._name} is incomplete: {self._writer.problem.strerror}")
        elif not complete:
            view.say(f"warning: --events {self._name} is incomplete: its reader is too slow")


@contextlib.contextmanager
def _logging_to(view: View) -> Generator[None]:
    """The engine's warnings as lines of the view, which owns the terminal."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            view.say(self.format(record))

    handler = Handler(logging.WARNING)
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
