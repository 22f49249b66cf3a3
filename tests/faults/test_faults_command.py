"""``python -m orchestrator.faults``: the crash table against the agents of a host, as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import PATIENCE, ROOT

HOSTS_AGENTS = '''
import subprocess
from orchestrator import AgentResult

class _Run:
    def __init__(self, request, process):
        self.id = f"child-{request.seq}"
        self.process = process

    @property
    def result(self):
        return self._result()

    async def _result(self):
        return AgentResult(text="done")

    async def dispose(self):
        if self.process is not None:
            self.process.kill()

class Leaves:
    """Kills the process it starts and never reads its end: a zombie for each agent."""

    async def start(self, request):
        return _Run(request, subprocess.Popen(["sleep", "99"]))

class Closes:
    async def start(self, request):
        return _Run(request, None)

    async def aclose(self):
        print("closed")

leaves, closes = Leaves(), Closes()
'''


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "host_agents.py").write_text(HOSTS_AGENTS)


def faults(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.faults", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_sound_provider_gets_a_dot_for_each_cell_and_is_closed_in_the_end() -> None:
    done = faults("python:host_agents:closes", "--agent-stages", "--no-cancels")
    assert done.returncode == 0, done
    assert done.stdout.splitlines() == [
        "agent starting    ..........",
        "agent running     ..........",
        "agent settling    ..........",
        "disposing         ..........closed",
        "",
        "",
        "40 of 40 cells right (40 in all)",
    ]


def test_a_provider_that_leaves_processes_is_told_which_and_where() -> None:
    options = ("--agent-stages", "--no-cancels", "--max-failures", "1", "--settle-timeout", "0.2")
    done = faults("python:host_agents:leaves", *options)
    assert done.returncode == 1, done
    assert "F\nagent starting, exit 0, no cancel:\n  * child processes left: ['" in done.stdout
    assert "(zombie)" in done.stdout
    assert done.stdout.endswith("0 of 1 cells right (40 in all)\n")


def test_the_command_agents_of_this_project_survive_the_table_in_any_order() -> None:
    done = faults("command:cat", "--agent-stages", "--no-cancels", "--seed", "1")
    assert (done.returncode, done.stdout) == (0, "." * 40 + "\n\n40 of 40 cells right (40 in all)\n"), done


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "unknown agent 'nonsense'"),
        (["python:no_such_module:agent"], "no_such_module"),
        (["--nonsense"], "Unknown option"),
        (["--max-failures", "x"], "--max-failures"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(arguments: list[str], text: str) -> None:
    done = faults(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
