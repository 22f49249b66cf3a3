"""The ``workflow`` command among other processes: readers that stall or go, signals, a terminal; and what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator import EventOrderChecker, WorkflowEvent
from tests.command_line import META, PATIENCE, ROOT, WORKFLOW, read_until, run, running
from tests.lifeline import Lifeline


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    path = tmp_path / "lifeline"
    line = Lifeline(path)
    monkeypatch.setenv("LIFELINE", str(path))
    yield line
    line.close()


# --- broken and slow readers ---


def test_a_reader_of_stdout_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen(
        [*WORKFLOW, "run", "-", "--meta", META], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(b"return 'x'.repeat(1000000)", timeout=PATIENCE)
    assert "Traceback" not in errors.decode()
    assert "BrokenPipe" not in errors.decode()


def test_a_reader_of_stderr_that_goes_away_does_not_stop_the_run() -> None:
    process = subprocess.Popen(
        [*WORKFLOW, "run", "-", "--meta", META], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    process.stderr.close()
    output, _ = process.communicate(b"for (let i = 0; i < 1000; i++) log('x'.repeat(1000)); return 5", timeout=PATIENCE)
    assert (process.returncode, json.loads(output)) == (0, 5)


def test_closed_standard_streams_do_not_matter() -> None:
    command = " ".join(["exec", *WORKFLOW, "run", "-", "--meta", f"'{META}'", "2>&-"])
    done = subprocess.run(
        ["sh", "-c", command], input=b"return 5", stdout=subprocess.PIPE, timeout=PATIENCE, check=False
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, 5)


def test_control_characters_of_a_script_never_reach_the_terminal() -> None:
    script = r"""phase('p\u001b[31m'); log('\u001b]0;title\u0007 and \r overwritten \u202e');
    await agent('exit 1', {label: '\u001b[2J'}); throw new Error('\u001b[31mred')"""
    done = run(script, "--agent", "command:sh")
    assert re.findall(rb"[\x00-\x08\x0b-\x1f\x7f]", done.stderr) == []
    assert "\u202e" not in done.stderr.decode()


# --- signals ---


HANGING = "command:sh -c 'exec 3>\"$LIFELINE\"; sleep 99 & echo up >&3; wait'"
STUBBORN = 'command:sh -c \'trap "" TERM; exec 3>"$LIFELINE"; echo up >&3; while :; do sleep 99; done\''


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_cancels_the_run_and_leaves_nothing(lifeline: Lifeline, number: signal.Signals, code: int) -> None:
    with running("return await agent('x')", "--json", "--agent", HANGING) as process:
        assert lifeline.hear() == b"up\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert not lifeline.held()
    outcome = json.loads(output)
    assert (outcome["stop_reason"], outcome["agents"]["cancelled"]) == ("cancelled", 1)
    assert "Traceback" not in errors.decode()


def test_a_spinning_script_is_cancelled_too() -> None:
    with running("log('spinning'); await null; for (;;) {}") as process:
        read_until(process, b"spinning")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


def test_a_second_signal_does_not_wait_for_a_command_that_ignores_the_first(lifeline: Lifeline) -> None:
    with running("return await agent('x')", "--agent", STUBBORN) as process:
        assert lifeline.hear() == b"up\n"
        process.send_signal(signal.SIGINT)
        read_until(process, b"cancelling")  # two signals at once would be one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not lifeline.held()


def test_a_second_signal_does_not_wait_for_python_agents_that_ignore_the_first(
    tmp_path: Path, lifeline: Lifeline
) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import asyncio, os\n"
        "async def agent(request):\n"
        "    line = os.open(os.environ['LIFELINE'], os.O_WRONLY)\n"
        "    os.write(line, b'up')\n"
        "    while True:\n"
        "        try:\n"
        "            await asyncio.sleep(99)\n"
        "        except asyncio.CancelledError:\n"
        "            os.write(line, b'ignored')\n"
    )
    with running("return await agent('x')", "--agent", "python:stubborn:agent") as process:
        assert lifeline.hear() == b"up"
        process.send_signal(signal.SIGINT)
        assert lifeline.hear() == b"ignored"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not lifeline.held()
    assert "stopped without waiting" in errors.decode()


def test_a_reader_that_stalls_cannot_delay_a_cancel() -> None:
    with running("for (;;) { log('x'.repeat(1000)); await null }", "--events", "-") as process:
        assert process.stderr is not None
        assert process.stderr.read(10)  # it runs, and from here on nobody reads
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 143


# --- the live view ---


class Terminal:
    """What a person would see: a pseudo-terminal as the command's stderr."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self.seen = b""

    def read_until(self, text: str) -> None:
        while text not in self.plain:
            data = os.read(self._master, 65536)
            assert data, f"{text!r} was never shown: {self.plain}"
            self.seen += data

    def read_rest(self) -> None:
        os.close(self.slave)
        with contextlib.suppress(OSError):  # how Linux tells that no process has the terminal open
            while data := os.read(self._master, 65536):
                self.seen += data

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.decode("utf-8", "replace"))

    def close(self) -> None:
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Terminal()
    yield made
    made.close()


def test_a_terminal_shows_phase_running_agents_counts_and_the_latest_log_line(
    terminal: Terminal, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "release")
    script = """phase('Gather'); log('looking around')
    const first = await agent('exit 4', {label: 'doomed'})
    return [first, await agent('cat release', {label: 'slow one'})]"""
    with running(script, "--agent", "command:sh", stderr=terminal.slave) as process:
        terminal.read_until("slow one")
        terminal.read_until("1 of 2 FAILED, 1 running, 0 done")
        terminal.read_until("Gather: 1 of 2 FAILED, 1 running, 0 done")
        (tmp_path / "release").write_text("go\n")
        output, _ = process.communicate(timeout=PATIENCE)
    terminal.read_rest()
    assert (process.returncode, json.loads(output)) == (0, [None, "go"])
    for part in ("demo · Gather", "#2 slow one", "looking around", "FAILED #1 doomed", "1 of 2 agents FAILED"):
        assert part in terminal.plain
    # The cursor that the live region hides is back.
    assert terminal.seen.rfind(b"\x1b[?25h") > terminal.seen.rfind(b"\x1b[?25l") >= 0


def test_ctrl_c_in_a_terminal_restores_it_and_is_exit_130(terminal: Terminal, lifeline: Lifeline) -> None:
    with running("return await agent('x', {label: 'hanging'})", "--agent", HANGING, stderr=terminal.slave) as process:
        assert lifeline.hear() == b"up\n"
        terminal.read_until("#1 hanging")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    terminal.read_rest()
    assert process.returncode == 130
    assert not lifeline.held()
    assert "cancelled in" in terminal.plain
    assert terminal.seen.rfind(b"\x1b[?25h") > terminal.seen.rfind(b"\x1b[?25l") >= 0


def test_a_script_cannot_send_escape_sequences_to_the_terminal(terminal: Terminal) -> None:
    script = (
        r"phase('\u001b]0;evil\u0007'); log('\u001b]52;c;evil\u0007'); return await agent('x', {label: '\u001b[2J'})"
    )
    with running(script, "--agent", "command:cat", stderr=terminal.slave) as process:
        process.wait(timeout=PATIENCE)
    terminal.read_rest()
    assert process.returncode == 0
    assert b"\x1b]" not in terminal.seen
    assert b"\x1b[2J" not in terminal.seen
    assert b"\x07" not in terminal.seen


# --- the event order, as a reader of --events sees it ---


def test_the_events_of_a_cancelled_run_are_complete_and_in_order(lifeline: Lifeline, tmp_path: Path) -> None:
    with running("await agent('x')", "--events", "events.jsonl", "--agent", HANGING) as process:
        assert lifeline.hear() == b"up\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    decoder = msgspec.json.Decoder(_event_union())
    checker = EventOrderChecker()
    for line in (tmp_path / "events.jsonl").read_bytes().splitlines():
        checker(decoder.decode(line))
    checker.check_complete()


def _event_union() -> Any:
    union: Any = None
    for kind in WorkflowEvent.__subclasses__():
        union = kind if union is None else union | kind
    return union
