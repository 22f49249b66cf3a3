"""A host that is killed in the middle of a run, and what its session shows afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.acp import replay_updates
from orchestrator.sessions import DEFAULT_RULES, IllegalHistory, SqliteSessionStore
from orchestrator.tool import replay_calls
from tests.lifeline import Lifeline

ROOT = Path(__file__).resolve().parents[2]


def test_a_host_killed_in_the_middle_of_a_run_leaves_a_pending_card_and_a_legal_prefix(tmp_path: Path) -> None:
    database = tmp_path / "sessions.db"
    lifeline = Lifeline(tmp_path / "life")
    command = [sys.executable, "-m", "tests.tool.crash_host", str(database), str(tmp_path / "life")]
    with subprocess.Popen(command, cwd=ROOT) as host:
        try:
            assert lifeline.hear() == b"working"
        finally:
            host.send_signal(signal.SIGKILL)
            host.wait(10)
            lifeline.close()
    assert host.returncode == -signal.SIGKILL

    with SqliteSessionStore(database, DEFAULT_RULES) as store:
        log = store.open("s1")  # the rules accept what was written
        kinds = [event.type for event in log.events]
        assert kinds == [
            "tool/call", "tool-workflow/run-start", "tool-workflow/agent-start", "tool-workflow/agent-end",
            "tool-workflow/agent-start", "tool-workflow/agent-start",
        ]  # fmt: skip
        assert [event.data.get("seq") for event in log.events] == [None, None, 1, 1, 2, 3]
        assert log.events[2].data["phase"] == "Dig"

        (call,) = replay_calls(log.events)
        assert (call.status, call.card.title, call.content) == ("pending", "workflow: dig", ())

        (update,) = replay_updates(log.events)
        shown = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert (shown["sessionUpdate"], shown["status"], shown["toolCallId"]) == ("tool_call", "pending", "c1")
        assert "content" not in shown

        run_id = log.events[1].data["runId"]
        with pytest.raises(IllegalHistory, match=r"members \[2, 3\] are open"):
            log.append("tool-workflow/run-end", {"runId": run_id, "stopReason": "cancelled"})
