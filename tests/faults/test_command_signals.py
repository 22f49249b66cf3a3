"""Signals to the command: each kind, once and twice, to it alone and to its whole process group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.command_line import PATIENCE, ROOT, read_until, running
from tests.faults.processes import Exits
from tests.lifeline import Lifeline

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SPINS = "log('under way'); await null; for (;;) {}"
FLOODS = "log('under way'); for (;;) { log('x'.repeat(1000)); await null }"
WAITS = "log('under way'); await new Promise(r => setTimeout(r, 1e9))"
WORKS = "log('under way'); return await parallel([1, 2, 3].map(i => () => agent(`a${i}`)))"
DEAF = 'command:sh -c \'trap "" INT TERM HUP; exec 3>"$LIFELINE"; echo up >&3; while :; do sleep 99; done\''


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    line = Lifeline(tmp_path / "lifeline")
    monkeypatch.setenv("LIFELINE", str(tmp_path / "lifeline"))
    yield line
    line.close()


def everything_below(process: subprocess.Popen[Any]) -> Exits:
    """The command's zygote, its workers and whatever its agents have started."""
    below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(below) >= 2
    return Exits(below)


def send(process: subprocess.Popen[Any], number: signal.Signals, *, group: bool) -> None:
    os.killpg(process.pid, number) if group else process.send_signal(number)


@pytest.mark.parametrize("group", [False, True], ids=["the command", "the group"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("script", [SPINS, FLOODS, WAITS], ids=["spins", "floods", "waits"])
def test_a_signal_ends_whatever_the_script_does_and_leaves_no_process(
    script: str, number: signal.Signals, group: bool
) -> None:
    """Ctrl-C in a terminal is a signal to the whole group."""
    with running(script, start_new_session=True) as process:
        read_until(process, b"under way")
        with everything_below(process) as exits:
            send(process, number, group=group)
            _, errors = process.communicate(timeout=PATIENCE)
            assert exits.all_gone()
    assert process.returncode == CODES[number]
    assert b"Traceback" not in errors


@pytest.mark.parametrize("group", [False, True], ids=["the command", "the group"])
@pytest.mark.parametrize("second", CODES, ids=lambda number: f"then {number.name}")
@pytest.mark.parametrize("first", CODES, ids=lambda number: number.name)
def test_a_second_signal_does_not_wait_for_agents_that_ignore_the_first_and_leaves_none(
    lifeline: Lifeline, first: signal.Signals, second: signal.Signals, group: bool
) -> None:
    with running(WORKS, "--agent", DEAF, start_new_session=True) as process:
        assert lifeline.hear().startswith(b"up\n")
        with everything_below(process) as exits:
            send(process, first, group=group)
            read_until(process, b"cancelling")  # two signals at once would be one
            send(process, second, group=group)
            _, errors = process.communicate(timeout=PATIENCE)
            assert exits.all_gone()
    assert process.returncode in (CODES[first], CODES[second])
    assert not lifeline.held()
    assert b"Traceback" not in errors
